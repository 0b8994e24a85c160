//! Residual networks of He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016),
//! for small images.
//!
//! Of depth `6n + 2` it is the paper's own family for CIFAR (§4.2): a 3×3 stem of 16 channels, three stages of `n` blocks
//! and 16, 32 and 64 channels, parameter-free shortcuts (option A), global average pooling. Names are those of the widely
//! used PyTorch reference `pytorch_resnet_cifar10`: `conv1`, `bn1`, `layer1.0.conv1`, …, `linear`.
//!
//! Of depth 18 or 34 it is the paper's ImageNet family with a stem for small images: one 3×3 convolution of stride 1 and no
//! max-pooling, then stages of 64, 128, 256 and 512 channels. Names are torchvision's: `conv1`, `bn1`, `layer1.0.conv1`,
//! `layer2.0.downsample.0`, …, `fc`.
//!
//! With another `width` of the first stage, all are wider or narrower in proportion (Zagoruyko and Komodakis, "Wide
//! Residual Networks", BMVC 2016, without their pre-activation).
//!
//! Convolutions start from N(0, 2 / (out · height · width)) as in torchvision, batch norms from
//! γ = 1 and β = 0. The networks are convolutional up to the pooling, so any image size works.

use candle_core::{Result, Tensor, bail};
use candle_nn::{ModuleT, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::layers::{BatchNorm, Conv, Linear};
use crate::maps::Maps;
use crate::ops::{self, Activation};

/// The deepest network: the deepest of the paper, section 4.2.
const DEEPEST: usize = 1202;

settings! {
    /// Settings of `resnet`.
    pub struct Config {
        /// Layers with weights: 6n + 2 for the networks of CIFAR (8, 14, 20, … 1202), 18 or 34 for those of ImageNet.
        #[cfg_attr(feature = "schema", schemars(range(min = 8, max = 1202)))]
        pub depth: usize = 20,
        /// Channels of the first stage; 0 for the paper's, 16 for CIFAR and 64 for ImageNet.
        pub width: usize = 0,
    }
}

impl Definition for Config {
    fn about(&self) -> About {
        About {
            name: "resnet",
            line: "images; of the depth and width that you say",
            paper: "He et al. 2016",
        }
    }

    fn reads(&self) -> InputKind {
        InputKind::Image
    }

    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model> {
        let [channels, ..] = input.image()?;
        let (family, blocks) = match self.depth {
            18 => (Family::Imagenet, vec![2; 4]),
            34 => (Family::Imagenet, vec![3, 4, 6, 3]),
            depth if (8..=DEEPEST).contains(&depth) && depth % 6 == 2 => {
                (Family::Cifar, vec![depth / 6; 3])
            }
            depth => {
                let below = (depth.clamp(8, DEEPEST) - 2) / 6 * 6 + 2;
                let above = (below + 6).min(DEEPEST);
                bail!(
                    "resnet: no network has a depth of {depth}; use {below} or {above} (6n + 2, up to {DEEPEST}), or ImageNet's 18 or 34"
                );
            }
        };
        let width = match (self.width, family) {
            (0, Family::Cifar) => 16,
            (0, Family::Imagenet) => 64,
            (width, _) => width,
        };
        let stages = blocks.into_iter().enumerate();
        let stages: Vec<_> =
            stages.map(|(stage, blocks)| (width.saturating_mul(1 << stage), blocks)).collect();
        Ok(Box::new(Resnet::new(channels, &stages, family, classes, vb)?))
    }
}

/// Names for `resnet` of a depth and the paper's width. They have no settings: the name says it all.
macro_rules! shorthands {
    ($($network:ident = $depth:literal, $name:literal, $parameters:literal;)*) => {$(
        #[doc = concat!("`resnet` of depth ", $depth, " and the paper's width.")]
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        pub struct $network {}

        impl Definition for $network {
            fn about(&self) -> About {
                let line = concat!($parameters, " parameters, images; resnet of depth ", $depth);
                About { name: $name, line, paper: "He et al. 2016" }
            }

            fn reads(&self) -> InputKind {
                InputKind::Image
            }

            fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model> {
                Config { depth: $depth, width: 0 }.build(input, classes, vb)
            }
        }
    )*};
}

shorthands! {
    Resnet8 = 8, "resnet8", "0.08 M";
    Resnet20 = 20, "resnet20", "0.27 M";
    Resnet32 = 32, "resnet32", "0.46 M";
    Resnet44 = 44, "resnet44", "0.66 M";
    Resnet56 = 56, "resnet56", "0.85 M";
    Resnet110 = 110, "resnet110", "1.7 M";
    Resnet18 = 18, "resnet18", "11 M";
    Resnet34 = 34, "resnet34", "21 M";
}

#[derive(Clone, Copy)]
enum Family {
    Cifar,
    Imagenet,
}

struct Resnet {
    stem: Conv,
    stem_norm: BatchNorm,
    blocks: Vec<ResidualBlock>,
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
                blocks.push(ResidualBlock::new(width, outputs, stride, family, &vb.pp(block))?);
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
struct ResidualBlock {
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

impl ResidualBlock {
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
