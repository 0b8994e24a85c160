//! The network of airbench: Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (arXiv 2404.00498, 2024),
//! section 3, in the smaller form that its public code calls airbench93.
//!
//! A 2×2 convolution whose weight whitens patches of the training images and stays as it is, with a trained bias and
//! GELU. Three groups of: 3×3 convolution, 2×2 max-pooling, batch norm, GELU, 3×3 convolution, batch norm, GELU. A 3×3
//! max-pooling that leaves one pixel, a linear layer without bias, and a fixed factor. Batch norms have no scale γ, a
//! momentum of 0.4 in PyTorch's sense (0.6 in the paper's) and an epsilon of 1e-12. The 3×3 convolutions begin as
//! copies of their inputs (section 3.3), as far as they have filters for that, and otherwise as PyTorch's default.
//!
//! Names are those of He et al.'s networks where these have one: `whiten.weight`, `whiten.bias`, `layer1.conv1.weight`,
//! `layer1.bn1.bias`, …, `layer3.bn2.bias`, `fc.weight`.
//!
//! The weight of the whitening comes from [`Definition::prepare`]. Before, it is random, which does for everything but
//! training well.

use candle_core::{Result, Tensor, bail};
use candle_nn::{Init, ModuleT, VarBuilder};

use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::layers::{BatchNorm, Copying, Linear, uniform};
use crate::maps::Maps;
use crate::ops::{self, Activation, Gelu};
use crate::store::Store;
use crate::whitening;

/// Rows and columns of the patches that are whitened.
const PATCH: usize = 2;

/// Training images that the whitening is computed from.
const SAMPLES: usize = 5000;

/// Of batch norms, in PyTorch's sense.
const MOMENTUM: f64 = 0.4;
const EPSILON: f64 = 1e-12;

/// Rows and columns of the last max-pooling.
const LAST: usize = 3;

/// Rows and columns of images that leave the last max-pooling one window: 3 to 5 rows after one less and three halvings.
const SMALLEST: usize = 8 * LAST + 1;
const LARGEST: usize = 16 * LAST;

settings! {
    /// Settings of airbench's network.
    pub struct Config {
        /// Filters of the convolutions in each of the three groups.
        #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
        pub widths: [usize; 3] = [64, 128, 128],
        /// The form of GELU.
        pub gelu: Gelu = Gelu::Exact,
        /// What the outputs of the linear layer are multiplied by, above 0.
        #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0.0)))]
        pub scale: f64 = 1. / 9.,
    }
}

impl Definition for Config {
    fn about(&self) -> About {
        About {
            name: "airbench",
            line: "0.57 M parameters, images of 25x25 to 48x48; whitened patches, for short training",
            paper: "Jordan 2024",
        }
    }

    fn reads(&self) -> InputKind {
        InputKind::Image
    }

    /// Reads `f32 [B, H, W, channels]`, 25 to 48 rows and columns.
    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model> {
        let [channels, height, width] = input.image()?;
        if !(SMALLEST..=LARGEST).contains(&height) || !(SMALLEST..=LARGEST).contains(&width) {
            bail!(
                "airbench takes the maximum over the {LAST}x{LAST} pixels that three halvings leave, which {SMALLEST} to {LARGEST} rows and columns do, got {height}x{width}; choose resnet18 for other sizes"
            );
        }
        if self.widths.contains(&0) {
            bail!("airbench: widths must be at least 1 each, got {:?}", self.widths);
        }
        if !(self.scale > 0. && self.scale.is_finite()) {
            bail!("airbench: scale must be a number above 0, such as 1/9, got {}", self.scale);
        }
        let whiten = Whiten::new(channels, &vb.pp("whiten"))?;
        let mut inputs = whitening::filters(PATCH, channels);
        let mut groups = Vec::new();
        for (number, outputs) in (1..).zip(self.widths) {
            groups.push(Group::new(inputs, outputs, &vb.pp(format!("layer{number}")))?);
            inputs = outputs;
        }
        let head = Linear::unbiased(inputs, classes, &vb.pp("fc"))?;
        let activation = Activation::Gelu(self.gelu);
        Ok(Box::new(Airbench { whiten, groups, head, activation, scale: self.scale }))
    }

    fn prepares_from(&self) -> usize {
        SAMPLES
    }

    /// Sets the weight of the whitening, from training images as they are without augmentation.
    fn prepare(&self, store: &Store, samples: &Tensor) -> Result<()> {
        let weight = whitening::weight(samples, PATCH)?;
        match store.fixed().as_slice() {
            [(_, fixed)] if fixed.shape() == weight.shape() => {
                fixed.set(&weight.to_device(fixed.device())?)
            }
            _ => bail!(
                "airbench: images of {} channels whiten for another network than this; build it for such images first",
                samples.dim(3)?
            ),
        }
    }
}

struct Airbench {
    whiten: Whiten,
    groups: Vec<Group>,
    head: Linear,
    activation: Activation,
    scale: f64,
}

impl ModuleT for Airbench {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let mut xs = self.whiten.forward(&Maps::new(xs)?, self.activation)?;
        for group in &self.groups {
            xs = group.forward(&xs, self.activation, train)?;
        }
        // Of the one pixel that is left, which is how feature maps become rows.
        let rows = ops::global_average_pool(&ops::max_pool(&xs, LAST)?)?;
        self.head.forward(&rows)? * self.scale
    }
}

/// A convolution whose weight is fixed, and its bias, which is trained.
struct Whiten {
    weight: Tensor,
    bias: Tensor,
}

impl Whiten {
    fn new(channels: usize, vb: &VarBuilder) -> Result<Self> {
        let (filters, taps) = (whitening::filters(PATCH, channels), PATCH * PATCH * channels);
        let shape = (filters, channels, PATCH, PATCH);
        let weight = vb.get_with_hints(shape, "weight", uniform(taps))?;
        Ok(Self { weight, bias: vb.get_with_hints(filters, "bias", Init::Const(0.))? })
    }

    fn forward(&self, xs: &Maps, activation: Activation) -> Result<Maps> {
        let whitened = ops::conv2d(xs, &self.weight.detach(), 1, 0, false)?;
        ops::bias(&whitened, &self.bias, activation)
    }
}

/// Two convolutions, the maximum of each 2×2 pixels behind the first.
struct Group {
    conv1: Copying,
    norm1: BatchNorm,
    conv2: Copying,
    norm2: BatchNorm,
}

impl Group {
    fn new(inputs: usize, outputs: usize, vb: &VarBuilder) -> Result<Self> {
        let norm = |name| -> Result<BatchNorm> {
            Ok(BatchNorm::unscaled(outputs, &vb.pp(name))?.with(MOMENTUM, EPSILON))
        };
        Ok(Self {
            conv1: Copying::new(inputs, outputs, &vb.pp("conv1"))?,
            norm1: norm("bn1")?,
            conv2: Copying::new(outputs, outputs, &vb.pp("conv2"))?,
            norm2: norm("bn2")?,
        })
    }

    fn forward(&self, xs: &Maps, activation: Activation, train: bool) -> Result<Maps> {
        let xs = self.norm1.forward(&self.conv1.pooled(xs)?, None, activation, train)?;
        self.norm2.forward(&self.conv2.forward(&xs)?, None, activation, train)
    }
}
