//! Residual networks of He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016),
//! for small images.
//!
//! [`cifar`] is the paper's own family for CIFAR (§4.2): a 3×3 stem of 16 channels, three stages
//! of 16, 32 and 64, parameter-free shortcuts (option A), global average pooling. Names are those
//! of the widely used PyTorch reference `pytorch_resnet_cifar10`: `conv1`, `bn1`,
//! `layer1.0.conv1`, …, `linear`.
//!
//! [`wide`] is the paper's ImageNet family (ResNet-18 and -34) with a stem for small images: one
//! 3×3 convolution of stride 1 and no max-pooling. Names are torchvision's: `conv1`, `bn1`,
//! `layer2.0.downsample.0`, …, `fc`.
//!
//! Convolutions start from N(0, 2 / (out · height · width)) as in torchvision, batch norms from
//! γ = 1 and β = 0. The networks are convolutional up to the pooling, so any image size works.

use candle_core::{Result, Tensor};
use candle_nn::{ModuleT, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::layers::{BatchNorm, Conv, Linear};
use crate::maps::Maps;
use crate::ops::{self, Activation};

/// Networks that differ in their blocks alone. They have no settings: the name says it all.
macro_rules! networks {
    ($($(#[$meta:meta])* $network:ident: $family:ident($blocks:expr), $name:literal, $line:literal;)*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
            #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
            #[serde(deny_unknown_fields)]
            pub struct $network {}

            impl Definition for $network {
                fn about(&self) -> About {
                    About { name: $name, line: $line, paper: networks!(@paper $family) }
                }

                fn reads(&self) -> InputKind {
                    InputKind::Image
                }

                fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model> {
                    let [channels, ..] = input.image()?;
                    $family($blocks, channels, classes, vb)
                }
            }
        )*
    };
    (@paper cifar) => { "He et al. 2016, section 4.2" };
    (@paper wide) => { "He et al. 2016" };
}

networks! {
    /// Three stages of 1 block: smaller than the networks of He et al. 2016, §4.2, and built alike.
    Resnet8: cifar(1), "resnet8", "0.08 M parameters, images; as resnet20, 1 block per stage";
    /// Three stages of 3 blocks (He et al. 2016, §4.2).
    Resnet20: cifar(3), "resnet20", "0.27 M parameters, images; option A shortcuts";
    /// Three stages of 5 blocks (He et al. 2016, §4.2).
    Resnet32: cifar(5), "resnet32", "0.46 M parameters, images; as resnet20, 5 blocks per stage";
    /// Three stages of 7 blocks (He et al. 2016, §4.2).
    Resnet44: cifar(7), "resnet44", "0.66 M parameters, images; as resnet20, 7 blocks per stage";
    /// Three stages of 9 blocks (He et al. 2016, §4.2).
    Resnet56: cifar(9), "resnet56", "0.85 M parameters, images; as resnet20, 9 blocks per stage";
    /// Three stages of 18 blocks (He et al. 2016, §4.2).
    Resnet110: cifar(18), "resnet110", "1.7 M parameters, images; as resnet20, 18 blocks per stage";
    /// Four stages of 2 blocks with a 3×3 stem.
    Resnet18: wide([2, 2, 2, 2]), "resnet18", "11 M parameters, images; a 3x3 stem and no max-pool";
    /// Four stages of 3, 4, 6 and 3 blocks with a 3×3 stem.
    Resnet34: wide([3, 4, 6, 3]), "resnet34", "21 M parameters, images; as resnet18, 3-4-6-3 blocks";
}

/// The CIFAR family with `blocks` residual blocks in each of three stages, `6·blocks + 2` layers.
/// Reads `f32 [B, H, W, channels]`.
pub fn cifar(blocks: usize, channels: usize, classes: usize, vb: &VarBuilder) -> Result<Model> {
    let stages = [(16, blocks), (32, blocks), (64, blocks)];
    Ok(Box::new(Resnet::new(channels, &stages, Family::Cifar, classes, vb)?))
}

/// The ImageNet family of basic blocks with a stem for small images, `blocks` in each of four
/// stages. Reads `f32 [B, H, W, channels]`.
pub fn wide(blocks: [usize; 4], channels: usize, classes: usize, vb: &VarBuilder) -> Result<Model> {
    let stages = [(64, blocks[0]), (128, blocks[1]), (256, blocks[2]), (512, blocks[3])];
    Ok(Box::new(Resnet::new(channels, &stages, Family::Imagenet, classes, vb)?))
}

#[derive(Clone, Copy)]
enum Family {
    Cifar,
    Imagenet,
}

struct Resnet {
    stem: Conv,
    stem_norm: BatchNorm,
    blocks: Vec<Block>,
    head: Linear,
}

impl Resnet {
    /// `stages` holds (width, blocks); every stage but the first halves the image.
    fn new(
        channels: usize,
        stages: &[(usize, usize)],
        family: Family,
        classes: usize,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let mut width = stages[0].0;
        let stem = Conv::new(channels, width, 3, 1, &vb.pp("conv1"))?.first();
        let stem_norm = BatchNorm::new(width, &vb.pp("bn1"))?;
        let mut blocks = Vec::new();
        for (stage, &(outputs, count)) in stages.iter().enumerate() {
            let vb = vb.pp(format!("layer{}", stage + 1));
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(Block::new(width, outputs, stride, family, &vb.pp(block))?);
                width = outputs;
            }
        }
        let head = match family {
            Family::Cifar => vb.pp("linear"),
            Family::Imagenet => vb.pp("fc"),
        };
        Ok(Self { stem, stem_norm, blocks, head: Linear::new(width, classes, &head)? })
    }
}

impl ModuleT for Resnet {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let xs = self.stem.forward(&Maps::new(xs)?)?;
        let mut xs = self.stem_norm.forward(&xs, None, Activation::Relu, train)?;
        for block in &self.blocks {
            xs = block.forward(&xs, train)?;
        }
        self.head.forward(&ops::global_average_pool(&xs)?)
    }
}

/// Two 3×3 convolutions and a shortcut around them.
struct Block {
    conv1: Conv,
    norm1: BatchNorm,
    conv2: Conv,
    norm2: BatchNorm,
    shortcut: Shortcut,
}

enum Shortcut {
    Identity,
    /// Option A: subsample, pad with zero channels to this many.
    Padded(usize),
    /// Option B: 1×1 convolution and batch norm.
    Projected(Conv, BatchNorm),
}

impl Block {
    fn new(
        inputs: usize,
        outputs: usize,
        stride: usize,
        family: Family,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let shortcut = match family {
            _ if stride == 1 && inputs == outputs => Shortcut::Identity,
            Family::Cifar => Shortcut::Padded(outputs),
            Family::Imagenet => {
                let vb = vb.pp("downsample");
                Shortcut::Projected(
                    Conv::new(inputs, outputs, 1, stride, &vb.pp(0))?,
                    BatchNorm::new(outputs, &vb.pp(1))?,
                )
            }
        };
        Ok(Self {
            conv1: Conv::new(inputs, outputs, 3, stride, &vb.pp("conv1"))?,
            norm1: BatchNorm::new(outputs, &vb.pp("bn1"))?,
            conv2: Conv::new(outputs, outputs, 3, 1, &vb.pp("conv2"))?,
            norm2: BatchNorm::new(outputs, &vb.pp("bn2"))?,
            shortcut,
        })
    }

    fn forward(&self, xs: &Maps, train: bool) -> Result<Maps> {
        let ys = self.norm1.forward(&self.conv1.forward(xs)?, None, Activation::Relu, train)?;
        let ys = self.conv2.forward(&ys)?;
        let shortcut = match &self.shortcut {
            Shortcut::Identity => xs.clone(),
            Shortcut::Padded(channels) => ops::shortcut_a(xs, *channels)?,
            Shortcut::Projected(conv, norm) => {
                norm.forward(&conv.forward(xs)?, None, Activation::Identity, train)?
            }
        };
        self.norm2.forward(&ys, Some(&shortcut), Activation::Relu, train)
    }
}
