//! VGG-16 of Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
//! Recognition" (ICLR 2015, configuration D), with batch norm and for small images, as it is
//! trained on CIFAR: 13 convolutions in five groups, each group followed by a 2×2 max-pooling, and
//! one linear layer instead of three. On 32×32 images the last group ends in a single pixel; larger
//! ones are averaged over what is left.
//!
//! Names and shapes are those of torchvision's `vgg16_bn` up to the head: `features.0.weight`,
//! `features.0.bias`, `features.1.weight`, …, then `classifier.weight` and `classifier.bias`. With
//! 10 classes these are 14,728,266 parameters, as in the networks of SIDCo (Abdelmoniem et al.
//! 2021) and of many others. The convolutions' biases are among them although batch norm takes them
//! out again and their gradients are zero.
//!
//! Convolutions start from N(0, 2 / (out · height · width)) and biases from 0, as in torchvision.

use candle_core::{Result, Tensor, bail};
use candle_nn::{ModuleT, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::layers::{BatchNorm, Conv, Linear};
use crate::maps::Maps;
use crate::ops::{self, Activation};

/// Settings of VGG-16: none, the name says it all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// Convolutions of each group, and their channels.
const GROUPS: [(usize, usize); 5] = [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)];

/// Fewest rows and columns that five halvings leave a pixel of.
const SMALLEST: usize = 1 << GROUPS.len();

impl Definition for Config {
    fn about(&self) -> About {
        About {
            name: "vgg16",
            line: "15 M parameters, images of 32x32 and more; with batch norm and one linear layer",
            paper: "Simonyan and Zisserman 2015",
        }
    }

    fn reads(&self) -> InputKind {
        InputKind::Image
    }

    /// Reads `f32 [B, H, W, channels]`, at least 32×32 pixels.
    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model> {
        let [channels, height, width] = input.image()?;
        if height < SMALLEST || width < SMALLEST {
            bail!(
                "vgg16 halves images five times and needs {SMALLEST}x{SMALLEST} pixels, got {height}x{width}; choose a ResNet for smaller ones"
            );
        }
        let features = vb.pp("features");
        let (mut groups, mut inputs, mut layer) = (Vec::new(), channels, 0);
        for (count, outputs) in GROUPS {
            let mut group = Vec::new();
            for _ in 0..count {
                group.push(Layer::new(inputs, outputs, &features, layer)?);
                inputs = outputs;
                layer += Layer::MODULES;
            }
            groups.push(group);
            // The pooling.
            layer += 1;
        }
        Ok(Box::new(Vgg { groups, head: Linear::new(inputs, classes, &vb.pp("classifier"))? }))
    }
}

struct Vgg {
    groups: Vec<Vec<Layer>>,
    head: Linear,
}

impl ModuleT for Vgg {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let mut xs = Maps::new(xs)?;
        for group in &self.groups {
            for layer in group {
                xs = layer.forward(&xs, train)?;
            }
            xs = ops::max_pool(&xs, 2)?;
        }
        self.head.forward(&ops::global_average_pool(&xs)?)
    }
}

/// A 3×3 convolution with bias, batch norm and ReLU.
struct Layer {
    conv: Conv,
    norm: BatchNorm,
}

impl Layer {
    /// Entries of `features` in PyTorch: convolution, batch norm, ReLU.
    const MODULES: usize = 3;

    /// From the entries of `features` that begin with number `first`.
    fn new(inputs: usize, outputs: usize, features: &VarBuilder, first: usize) -> Result<Self> {
        let names = features.pp(first);
        let conv = Conv::new(inputs, outputs, 3, 1, &names)?;
        let norm = BatchNorm::new(outputs, &features.pp(first + 1))?;
        Ok(Self {
            conv: if first == 0 { conv.first() } else { conv },
            norm: norm.shifted(outputs, &names)?,
        })
    }

    fn forward(&self, xs: &Maps, train: bool) -> Result<Maps> {
        self.norm.forward(&self.conv.forward(xs)?, None, Activation::Relu, train)
    }
}
