//! Every operation of [`ops`] tried on a device, against candle's composed path on the CPU.
//!
//! Adding an operation is an entry in [`TRIALS`]; a test asks for one of each.

use std::ops::Index;

use candle_core::backprop::GradStore;
use candle_core::{Device, Error, Result, Tensor, Var};

use crate::compare::{Comparison, distance, floats, norm};
use crate::golden::formula::{hashes, uniform};
use crate::kernels::{Kernels, active, with};
use crate::maps::Maps;
use crate::ops::{
    self, Activation, Affine, Dense, FeedForward, Gelu, Lstm, Norm, Reach, Running, SelfAttention,
};
use crate::packing::Packing;
use crate::randomness;

/// The largest error of an operation that passes, relative to the norm: Winograd's convolutions are off by up to 4e-6
/// (`docs/design/kernels.md`), and sums in another order by less.
const TOLERANCE: f64 = 2e-5;

/// The same with products in bf16, which has 8 bits.
const TOLERANCE_BF16: f64 = 0.02;

/// That of gradients in bf16, where an operation chooses, as a maximum and ReLU do, among values that are nearly equal:
/// rounding decides which of them gets one.
const TOLERANCE_BF16_CHOSEN: f64 = 0.25;

/// An argument of type f32: its name and its shape.
type Float = (&'static str, &'static [usize]);

/// One operation with arguments to try it on.
pub struct Trial {
    /// The name of the function in [`ops`].
    pub operation: &'static str,
    /// What sets this trial apart from others of the operation; may be empty.
    pub variant: &'static str,
    /// The arguments of type f32.
    floats: &'static [Float],
    /// Shape of the whole numbers, and what they are less than, where the operation takes any.
    ids: Option<(&'static [usize], u32)>,
    run: fn(&Arguments) -> Result<Tensor>,
}

impl Trial {
    const fn new(
        operation: &'static str,
        variant: &'static str,
        floats: &'static [Float],
        run: fn(&Arguments) -> Result<Tensor>,
    ) -> Self {
        Self { operation, variant, floats, ids: None, run }
    }

    /// The same with whole numbers of that shape, less than `below`.
    const fn with_ids(self, shape: &'static [usize], below: u32) -> Self {
        Self { ids: Some((shape, below)), ..self }
    }

    /// One with four texts of nine words each, of a vocabulary of twelve.
    const fn of_texts(
        operation: &'static str,
        variant: &'static str,
        floats: &'static [Float],
        run: fn(&Arguments) -> Result<Tensor>,
    ) -> Self {
        Self::new(operation, variant, floats, run).with_ids(&[4, 9], 12)
    }
}

/// The arguments of a 3×3 convolution.
const CONVOLUTION: &[Float] = &[("xs", &[2, 9, 8, 16]), ("weight", &[24, 16, 3, 3])];

/// The arguments of a batch norm: without the residual the first six, without the shift the first five, without the
/// scale the first four.
const BATCH_NORM: &[Float] = &[
    ("xs", &[4, 5, 6, 16]),
    ("beta", &[16]),
    ("running_mean", &[16]),
    ("running_var", &[16]),
    ("gamma", &[16]),
    ("shift", &[16]),
    ("residual", &[4, 5, 6, 16]),
];

/// The arguments of self-attention over words.
const ATTENTION: &[Float] = &[
    ("table", &[12, 20]),
    ("positions", &[9, 20]),
    ("norm.weight", &[20]),
    ("norm.bias", &[20]),
    ("in_proj.weight", &[60, 20]),
    ("in_proj.bias", &[60]),
    ("out_proj.weight", &[20, 20]),
    ("out_proj.bias", &[20]),
];

/// The trials: at least one of each operation, more where kernels go different ways.
pub static TRIALS: &[Trial] = &[
    Trial::new("conv2d", "3x3", CONVOLUTION, |a| {
        ops::conv2d(&a.maps("xs")?, &a["weight"], 1, 1, true)?.tensor()
    }),
    Trial::new("conv2d", "3x3, stride 2", CONVOLUTION, |a| {
        ops::conv2d(&a.maps("xs")?, &a["weight"], 2, 1, true)?.tensor()
    }),
    Trial::new(
        "conv2d",
        "1x1, stride 2",
        &[("xs", &[2, 9, 8, 16]), ("weight", &[24, 16, 1, 1])],
        |a| ops::conv2d(&a.maps("xs")?, &a["weight"], 2, 0, true)?.tensor(),
    ),
    Trial::new(
        "conv2d",
        "2x5, of images",
        &[("xs", &[4, 9, 8, 3]), ("weight", &[24, 3, 2, 5])],
        |a| ops::conv2d(&a.maps("xs")?, &a["weight"], 1, 1, false)?.tensor(),
    ),
    Trial::new("conv2d_max_pool", "3x3, 2x2", CONVOLUTION, |a| {
        ops::conv2d_max_pool(&a.maps("xs")?, &a["weight"], 1, 2)?.tensor()
    }),
    Trial::new("batch_norm", "training", BATCH_NORM.split_at(5).0, |a| {
        a.batch_norm(Activation::Identity, true)
    }),
    Trial::new("batch_norm", "training, shift, residual, ReLU", BATCH_NORM, |a| {
        a.batch_norm(Activation::Relu, true)
    }),
    Trial::new("batch_norm", "evaluation, shift, ReLU", BATCH_NORM.split_at(6).0, |a| {
        a.batch_norm(Activation::Relu, false)
    }),
    Trial::new("batch_norm", "training, GELU", BATCH_NORM.split_at(5).0, |a| {
        a.batch_norm(Activation::Gelu(Gelu::Exact), true)
    }),
    Trial::new("batch_norm", "training, shift, residual, GELU", BATCH_NORM, |a| {
        a.batch_norm(Activation::Gelu(Gelu::Exact), true)
    }),
    Trial::new("batch_norm", "evaluation, no scale, GELU by tanh", BATCH_NORM.split_at(4).0, |a| {
        a.batch_norm(Activation::Gelu(Gelu::Tanh), false)
    }),
    Trial::new("bias", "GELU by tanh", &[("xs", &[3, 5, 7, 20]), ("bias", &[20])], |a| {
        let activation = Activation::Gelu(Gelu::Tanh);
        ops::bias(&a.maps("xs")?, &a["bias"], activation)?.tensor()
    }),
    Trial::new("global_average_pool", "", &[("xs", &[3, 5, 7, 20])], |a| {
        ops::global_average_pool(&a.maps("xs")?)
    }),
    Trial::new("max_pool", "2x2", &[("xs", &[3, 5, 8, 20])], |a| {
        ops::max_pool(&a.maps("xs")?, 2)?.tensor()
    }),
    Trial::new("max_pool", "3x3", &[("xs", &[3, 7, 8, 20])], |a| {
        ops::max_pool(&a.maps("xs")?, 3)?.tensor()
    }),
    Trial::new("shortcut_a", "", &[("xs", &[3, 5, 8, 16])], |a| {
        ops::shortcut_a(&a.maps("xs")?, 32)?.tensor()
    }),
    Trial::new("linear", "", &[("xs", &[7, 33]), ("weight", &[10, 33]), ("bias", &[10])], |a| {
        ops::linear(&a["xs"], &a["weight"], &a["bias"])
    }),
    Trial::of_texts("embedding", "", &[("table", &[12, 20])], |a| {
        ops::embedding(a.ids()?, &a["table"])
    }),
    Trial::of_texts("embedding_mean", "", &[("table", &[12, 20])], |a| {
        ops::embedding_mean(a.ids()?, &a["table"])
    }),
    Trial::new(
        "conv1d_relu_max",
        "",
        &[("xs", &[4, 9, 20]), ("weight", &[18, 20, 3]), ("bias", &[18])],
        |a| ops::conv1d_relu_max(&a["xs"], &a["weight"], &a["bias"]),
    ),
    Trial::of_texts(
        "convs1d_relu_max",
        "of words",
        &[
            ("table", &[12, 20]),
            ("weight3", &[18, 20, 3]),
            ("bias3", &[18]),
            ("weight4", &[18, 20, 4]),
            ("bias4", &[18]),
        ],
        |a| {
            let xs = ops::embedding(a.ids()?, &a["table"])?;
            let filters = [(&a["weight3"], &a["bias3"]), (&a["weight4"], &a["bias4"])];
            let filters = filters.map(|(weight, bias)| (weight.as_tensor(), bias.as_tensor()));
            ops::convs1d_relu_max(&xs, Some(a.ids()?), &filters)
        },
    ),
    Trial::of_texts(
        "bilstm",
        "",
        &[
            ("xs", &[4, 9, 20]),
            ("forward.weight_ih", &[64, 20]),
            ("forward.weight_hh", &[64, 16]),
            ("forward.bias_ih", &[64]),
            ("forward.bias_hh", &[64]),
            ("reverse.weight_ih", &[64, 20]),
            ("reverse.weight_hh", &[64, 16]),
            ("reverse.bias_ih", &[64]),
            ("reverse.bias_hh", &[64]),
        ],
        |a| ops::bilstm(&a["xs"], a.ids()?, &a.lstm("forward"), &a.lstm("reverse")),
    ),
    Trial::new("layer_norm", "", &[("xs", &[7, 33]), ("gamma", &[33]), ("beta", &[33])], |a| {
        ops::layer_norm(&a["xs"], &a["gamma"], &a["beta"])
    }),
    Trial::of_texts("token_rows", "", &[("table", &[12, 20]), ("positions", &[9, 20])], |a| {
        Ok(a.token_rows()?.1)
    }),
    Trial::of_texts("piece_rows", "", &[("table", &[12, 20]), ("positions", &[9, 20])], |a| {
        Ok(a.piece_rows()?.1)
    }),
    Trial::new("dropout", "", &[("xs", &[7, 33])], |a| {
        randomness::begin(11);
        ops::dropout(&a["xs"], 0.25)
    }),
    Trial::of_texts(
        "text_mean",
        "of words",
        &[("table", &[12, 20]), ("positions", &[9, 20])],
        |a| {
            let (packing, xs) = a.token_rows()?;
            ops::text_mean(&xs, &packing)
        },
    ),
    Trial::of_texts("self_attention", "of words", ATTENTION, |a| {
        let (packing, xs) = a.token_rows()?;
        a.self_attention(&xs, &packing, Reach::Text)
    }),
    Trial::of_texts("self_attention", "of pieces, causal", ATTENTION, |a| {
        let (packing, xs) = a.piece_rows()?;
        a.self_attention(&xs, &packing, Reach::Past { rotary: false })
    }),
    Trial::of_texts("self_attention", "of pieces, causal, rotary", ATTENTION, |a| {
        let (packing, xs) = a.piece_rows()?;
        a.self_attention(&xs, &packing, Reach::Past { rotary: true })
    }),
    Trial::of_texts(
        "feed_forward",
        "of words, GELU by tanh",
        &[
            ("table", &[12, 20]),
            ("positions", &[9, 20]),
            ("norm.weight", &[20]),
            ("norm.bias", &[20]),
            ("linear1.weight", &[33, 20]),
            ("linear1.bias", &[33]),
            ("linear2.weight", &[20, 33]),
            ("linear2.bias", &[20]),
        ],
        |a| {
            let (packing, xs) = a.token_rows()?;
            let (linear1, linear2) = (a.dense("linear1"), a.dense("linear2"));
            let of = FeedForward { norm: a.norm(), linear1, linear2, gelu: Gelu::Tanh };
            ops::feed_forward(&xs, &packing, &of)
        },
    ),
    Trial::new("cross_entropy", "", &[("logits", &[6, 10])], |a| {
        ops::cross_entropy(&a["logits"], a.ids()?, 0.)
    })
    .with_ids(&[6], 10),
    Trial::new("cross_entropy", "label smoothing", &[("logits", &[6, 10])], |a| {
        ops::cross_entropy(&a["logits"], a.ids()?, 0.1)
    })
    .with_ids(&[6], 10),
];

/// The arguments of a trial on one device: values by integer hash in [-1, 1), variances in [0.5, 1.5).
struct Arguments {
    floats: Vec<(&'static str, Var)>,
    ids: Option<Tensor>,
}

impl Index<&str> for Arguments {
    type Output = Var;

    fn index(&self, name: &str) -> &Var {
        self.get(name).expect("invariant: a trial names its own arguments")
    }
}

impl Arguments {
    /// Those of a trial, each size of an argument's dimension changed by `size`.
    fn new(trial: &Trial, size: Resize, device: &Device) -> Result<Self> {
        let resized = |name: &'static str, shape: &[usize]| -> Vec<usize> {
            shape.iter().enumerate().map(|(dim, own)| size(name, dim, *own)).collect()
        };
        let floats = trial.floats.iter().map(|(name, shape)| {
            let shape = resized(name, shape);
            let values = uniform(&format!("{} {name}", trial.operation), shape.iter().product());
            let values =
                values.map(|u| if *name == "running_var" { 1. + u / 2. } else { u } as f32);
            Ok((*name, Var::from_vec(values.collect(), shape, device)?))
        });
        let ids = trial.ids.map(|(shape, below)| {
            let shape = resized("ids", shape);
            let ids = hashes(&format!("{} ids", trial.operation), shape.iter().product());
            Tensor::from_vec(ids.map(|hash| hash % below).collect(), shape, device)
        });
        Ok(Self { floats: floats.collect::<Result<_>>()?, ids: ids.transpose()? })
    }

    fn get(&self, name: &str) -> Option<&Var> {
        self.floats.iter().find(|(own, _)| *own == name).map(|(_, var)| var)
    }

    fn maps(&self, name: &str) -> Result<Maps> {
        Maps::new(&self[name])
    }

    fn ids(&self) -> Result<&Tensor> {
        self.ids.as_ref().ok_or_else(|| Error::msg("the trial has no whole numbers"))
    }

    /// The packing of the whole numbers as words, and their rows.
    fn token_rows(&self) -> Result<(Packing, Tensor)> {
        let packing = Packing::new(self.ids()?)?;
        let rows = ops::token_rows(&packing, &self["table"], &self["positions"])?;
        Ok((packing, rows))
    }

    /// As [`token_rows`](Self::token_rows), without padding.
    fn piece_rows(&self) -> Result<(Packing, Tensor)> {
        let packing = Packing::whole(self.ids()?)?;
        let rows = ops::piece_rows(&packing, &self["table"], Some(&self["positions"]))?;
        Ok((packing, rows))
    }

    fn self_attention(&self, xs: &Tensor, packing: &Packing, reach: Reach) -> Result<Tensor> {
        let (in_proj, out_proj) = (self.dense("in_proj"), self.dense("out_proj"));
        let of = SelfAttention { norm: self.norm(), in_proj, out_proj, heads: 2, reach };
        ops::self_attention(xs, packing, &of)
    }

    fn norm(&self) -> Norm {
        let Dense { weight, bias } = self.dense("norm");
        Norm { weight, bias }
    }

    fn dense(&self, layer: &str) -> Dense {
        let of = |name: &str| self[&*format!("{layer}.{name}")].as_tensor().clone();
        Dense { weight: of("weight"), bias: of("bias") }
    }

    /// With a shift and a residual where the trial has them.
    fn batch_norm(&self, activation: Activation, train: bool) -> Result<Tensor> {
        let residual = self.get("residual").map(|residual| Maps::new(residual)).transpose()?;
        let affine = Affine {
            shift: self.get("shift").map(Var::as_tensor),
            gamma: self.get("gamma").map(Var::as_tensor),
            beta: &self["beta"],
        };
        let (mean, variance) = (self["running_mean"].clone(), self["running_var"].clone());
        // Neither the first pass, which leaves nothing of what they were, nor one after many.
        let passes = Var::from_tensor(&Tensor::full(3f32, (), mean.device())?)?;
        let running =
            Running { mean, variance, passes, ..Running::new(&self["beta"], &self["beta"])? };
        ops::batch_norm(&self.maps("xs")?, affine, &running, residual.as_ref(), activation, train)?
            .tensor()
    }

    fn lstm(&self, direction: &str) -> Lstm {
        let weight = |name: &str| self[&*format!("{direction}.{name}")].as_tensor().clone();
        Lstm {
            weight_ih: weight("weight_ih"),
            weight_hh: weight("weight_hh"),
            bias_ih: weight("bias_ih"),
            bias_hh: weight("bias_hh"),
        }
    }
}

/// What a size of an argument becomes, given its name, the dimension and the size that the trial has.
type Resize<'a> = &'a dyn Fn(&'static str, usize, usize) -> usize;

/// The sizes as the trial has them.
const AS_THEY_ARE: Resize = &|_, _, size| size;

/// What an operation makes of its arguments.
struct Computed {
    output: Vec<f32>,
    /// Of each f32 argument, where one reaches it.
    gradients: Vec<Option<Vec<f32>>>,
    /// The f32 arguments afterwards: the running statistics move.
    after: Vec<Vec<f32>>,
}

impl Trial {
    /// The operation, and its variant in brackets.
    pub fn name(&self) -> String {
        match self.variant {
            "" => self.operation.to_owned(),
            variant => format!("{} ({variant})", self.operation),
        }
    }

    /// Computes the operation and the gradients of a weighed sum of its output on `device`, on the CPU with this thread's
    /// kernels, and compares both, and what the operation changes, with the composed path on the CPU.
    ///
    /// # Errors
    /// When the operation fails on either.
    pub fn compare(&self, device: &Device) -> Result<Vec<Comparison>> {
        let right = with(Kernels::Candle, || self.outcome(AS_THEY_ARE, &Device::Cpu))?;
        let kernels = active().map_err(Error::wrap)?;
        let bf16 =
            device.is_cpu() && matches!(kernels, Kernels::Native(of) if of.isa.bf16().is_some());
        Ok(self.differences(&self.outcome(AS_THEY_ARE, device)?, &right, bf16))
    }

    fn outcome(&self, size: Resize, device: &Device) -> Result<Computed> {
        let arguments = Arguments::new(self, size, device)?;
        let output = (self.run)(&arguments)?;
        let weights = uniform(&format!("{} weights", self.operation), output.elem_count());
        let weights: Vec<f32> = weights.map(|u| u as f32).collect();
        let weights = Tensor::from_vec(weights, output.shape(), device)?;
        let gradients: GradStore = (&output * &weights)?.sum_all()?.backward()?;
        let vars = || arguments.floats.iter().map(|(_, var)| var);
        let gradients = vars().map(|var| gradients.get(var).map(floats).transpose());
        Ok(Computed {
            output: floats(&output)?,
            gradients: gradients.collect::<Result<_>>()?,
            after: vars().map(|var| floats(var)).collect::<Result<_>>()?,
        })
    }

    /// How far what was found, with products in bf16 or not, is from what is right.
    fn differences(&self, found: &Computed, right: &Computed, bf16: bool) -> Vec<Comparison> {
        let chooses = self.operation.contains("max") || self.variant.contains("ReLU");
        let compare = |what: String, found: &[f32], right: &[f32], least| {
            let tolerance = match bf16 {
                false => TOLERANCE,
                true if chooses && what.starts_with("gradient") => TOLERANCE_BF16_CHOSEN,
                true => TOLERANCE_BF16,
            };
            Comparison::new(what, distance(found, right, least), tolerance)
        };
        let mut all = vec![compare("output".into(), &found.output, &right.output, 0.)];
        // A gradient that is nothing but rounding, as that of a shift which batch norm takes out again, is measured by
        // a tenth of the largest.
        let largest = right.gradients.iter().flatten().map(|g| norm(g)).fold(0., f64::max);
        for (i, (name, _)) in self.floats.iter().enumerate() {
            let zeros = vec![0.; right.after[i].len()];
            let one = match (&found.gradients[i], &right.gradients[i]) {
                (None, None) => compare((*name).to_owned(), &found.after[i], &right.after[i], 0.),
                (found, right) => compare(
                    format!("gradient of {name}"),
                    found.as_ref().unwrap_or(&zeros),
                    right.as_ref().unwrap_or(&zeros),
                    largest / 10.,
                ),
            };
            all.push(one);
        }
        all
    }
}

#[cfg(test)]
mod tests;
