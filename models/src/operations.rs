//! Every operation of [`ops`] tried on a device, against candle's composed path on the CPU.
//!
//! Adding an operation is an entry in [`TRIALS`]; a test asks for one of each.

use std::ops::Index;

use candle_core::backprop::GradStore;
use candle_core::{Device, Result, Tensor, Var};

use crate::compare::{Comparison, distance, floats, norm};
use crate::golden::formula::{hashes, uniform};
use crate::kernels::{Kernels, with};
use crate::maps::Maps;
use crate::ops::{self, Lstm};

/// The largest error of an operation that passes, relative to the norm: Winograd's convolutions are off by up to 4e-6
/// (`docs/design/kernels.md`), and sums in another order by less.
pub const TOLERANCE: f64 = 2e-5;

/// One operation with arguments to try it on.
pub struct Trial {
    /// The name of the function in [`ops`].
    pub operation: &'static str,
    /// What sets this trial apart from others of the operation; may be empty.
    pub variant: &'static str,
    /// Names and shapes of the arguments of type f32.
    floats: &'static [(&'static str, &'static [usize])],
    /// Shape of the whole numbers, and what they are less than, where the operation takes any.
    ids: Option<(&'static [usize], u32)>,
    run: fn(&Arguments) -> Result<Tensor>,
}

/// The trials: at least one of each operation, more where kernels go different ways.
pub static TRIALS: &[Trial] = &[
    Trial {
        operation: "conv2d",
        variant: "3x3",
        floats: &[("xs", &[2, 9, 8, 16]), ("weight", &[24, 16, 3, 3])],
        ids: None,
        run: |a| ops::conv2d(&a.maps("xs")?, &a["weight"], 1, 1, true)?.tensor(),
    },
    Trial {
        operation: "conv2d",
        variant: "3x3, stride 2",
        floats: &[("xs", &[2, 9, 8, 16]), ("weight", &[24, 16, 3, 3])],
        ids: None,
        run: |a| ops::conv2d(&a.maps("xs")?, &a["weight"], 2, 1, true)?.tensor(),
    },
    Trial {
        operation: "conv2d",
        variant: "1x1, stride 2",
        floats: &[("xs", &[2, 9, 8, 16]), ("weight", &[24, 16, 1, 1])],
        ids: None,
        run: |a| ops::conv2d(&a.maps("xs")?, &a["weight"], 2, 0, true)?.tensor(),
    },
    Trial {
        operation: "conv2d",
        variant: "2x5, of images",
        floats: &[("xs", &[2, 9, 8, 3]), ("weight", &[24, 3, 2, 5])],
        ids: None,
        run: |a| ops::conv2d(&a.maps("xs")?, &a["weight"], 1, 1, false)?.tensor(),
    },
    Trial {
        operation: "batch_norm",
        variant: "training",
        floats: &[
            ("xs", &[4, 5, 6, 16]),
            ("gamma", &[16]),
            ("beta", &[16]),
            ("running_mean", &[16]),
            ("running_var", &[16]),
        ],
        ids: None,
        run: |a| a.batch_norm(false, false, false, true),
    },
    Trial {
        operation: "batch_norm",
        variant: "training, shift, residual, ReLU",
        floats: &[
            ("xs", &[4, 5, 6, 16]),
            ("gamma", &[16]),
            ("beta", &[16]),
            ("running_mean", &[16]),
            ("running_var", &[16]),
            ("shift", &[16]),
            ("residual", &[4, 5, 6, 16]),
        ],
        ids: None,
        run: |a| a.batch_norm(true, true, true, true),
    },
    Trial {
        operation: "batch_norm",
        variant: "evaluation, shift, ReLU",
        floats: &[
            ("xs", &[4, 5, 6, 16]),
            ("gamma", &[16]),
            ("beta", &[16]),
            ("running_mean", &[16]),
            ("running_var", &[16]),
            ("shift", &[16]),
        ],
        ids: None,
        run: |a| a.batch_norm(true, false, true, false),
    },
    Trial {
        operation: "global_average_pool",
        variant: "",
        floats: &[("xs", &[3, 5, 7, 20])],
        ids: None,
        run: |a| ops::global_average_pool(&a.maps("xs")?),
    },
    Trial {
        operation: "max_pool",
        variant: "",
        floats: &[("xs", &[3, 5, 8, 20])],
        ids: None,
        run: |a| ops::max_pool(&a.maps("xs")?)?.tensor(),
    },
    Trial {
        operation: "shortcut_a",
        variant: "",
        floats: &[("xs", &[3, 5, 8, 16])],
        ids: None,
        run: |a| ops::shortcut_a(&a.maps("xs")?, 32)?.tensor(),
    },
    Trial {
        operation: "linear",
        variant: "",
        floats: &[("xs", &[7, 33]), ("weight", &[10, 33]), ("bias", &[10])],
        ids: None,
        run: |a| ops::linear(&a["xs"], &a["weight"], &a["bias"]),
    },
    Trial {
        operation: "embedding",
        variant: "",
        floats: &[("table", &[12, 20])],
        ids: Some((&[4, 9], 12)),
        run: |a| ops::embedding(a.ids()?, &a["table"]),
    },
    Trial {
        operation: "embedding_mean",
        variant: "",
        floats: &[("table", &[12, 20])],
        ids: Some((&[4, 9], 12)),
        run: |a| ops::embedding_mean(a.ids()?, &a["table"]),
    },
    Trial {
        operation: "conv1d_relu_max",
        variant: "",
        floats: &[("xs", &[4, 9, 20]), ("weight", &[18, 20, 3]), ("bias", &[18])],
        ids: None,
        run: |a| ops::conv1d_relu_max(&a["xs"], &a["weight"], &a["bias"]),
    },
    Trial {
        operation: "convs1d_relu_max",
        variant: "of words",
        floats: &[
            ("table", &[12, 20]),
            ("weight3", &[18, 20, 3]),
            ("bias3", &[18]),
            ("weight4", &[18, 20, 4]),
            ("bias4", &[18]),
        ],
        ids: Some((&[4, 9], 12)),
        run: |a| {
            let xs = ops::embedding(a.ids()?, &a["table"])?;
            let filters = [(&a["weight3"], &a["bias3"]), (&a["weight4"], &a["bias4"])];
            let filters = filters.map(|(weight, bias)| (weight.as_tensor(), bias.as_tensor()));
            ops::convs1d_relu_max(&xs, Some(a.ids()?), &filters)
        },
    },
    Trial {
        operation: "bilstm",
        variant: "",
        floats: &[
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
        ids: Some((&[4, 9], 12)),
        run: |a| ops::bilstm(&a["xs"], a.ids()?, &a.lstm("forward"), &a.lstm("reverse")),
    },
    Trial {
        operation: "cross_entropy",
        variant: "",
        floats: &[("logits", &[6, 10])],
        ids: Some((&[6], 10)),
        run: |a| ops::cross_entropy(&a["logits"], a.ids()?, 0.),
    },
    Trial {
        operation: "cross_entropy",
        variant: "label smoothing",
        floats: &[("logits", &[6, 10])],
        ids: Some((&[6], 10)),
        run: |a| ops::cross_entropy(&a["logits"], a.ids()?, 0.1),
    },
];

/// The arguments of a trial on one device: values by integer hash in [-1, 1), variances in [0.5, 1.5).
struct Arguments {
    floats: Vec<(&'static str, Var)>,
    ids: Option<Tensor>,
}

impl Index<&str> for Arguments {
    type Output = Var;

    fn index(&self, name: &str) -> &Var {
        let found = self.floats.iter().find(|(own, _)| *own == name);
        &found.expect("invariant: a trial names its own arguments").1
    }
}

impl Arguments {
    fn of(trial: &Trial, device: &Device) -> Result<Self> {
        let floats = trial.floats.iter().map(|(name, shape)| {
            let values = uniform(&format!("{} {name}", trial.operation), shape.iter().product());
            let values =
                values.map(|u| if *name == "running_var" { 1. + u / 2. } else { u } as f32);
            Ok((*name, Var::from_vec(values.collect(), *shape, device)?))
        });
        let ids = trial.ids.map(|(shape, below)| {
            let ids = hashes(&format!("{} ids", trial.operation), shape.iter().product());
            Tensor::from_vec(ids.map(|hash| hash % below).collect(), shape, device)
        });
        Ok(Self { floats: floats.collect::<Result<_>>()?, ids: ids.transpose()? })
    }

    fn maps(&self, name: &str) -> Result<Maps> {
        Maps::new(&self[name])
    }

    fn ids(&self) -> Result<&Tensor> {
        self.ids.as_ref().ok_or_else(|| candle_core::Error::msg("the trial has no whole numbers"))
    }

    fn batch_norm(&self, shift: bool, residual: bool, relu: bool, train: bool) -> Result<Tensor> {
        let residual = if residual { Some(self.maps("residual")?) } else { None };
        ops::batch_norm(
            &self.maps("xs")?,
            shift.then(|| self["shift"].as_tensor()),
            &self["gamma"],
            &self["beta"],
            &self["running_mean"],
            &self["running_var"],
            residual.as_ref(),
            relu,
            train,
        )?
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

/// What an operation makes of its arguments.
struct Outcome {
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
        let right = with(Kernels::Candle, || self.outcome(&Device::Cpu))?;
        Ok(self.differences(&self.outcome(device)?, &right))
    }

    fn outcome(&self, device: &Device) -> Result<Outcome> {
        let arguments = Arguments::of(self, device)?;
        let output = (self.run)(&arguments)?;
        let weights = uniform(&format!("{} weights", self.operation), output.elem_count());
        let weights: Vec<f32> = weights.map(|u| u as f32).collect();
        let weights = Tensor::from_vec(weights, output.shape(), device)?;
        let gradients: GradStore = (&output * &weights)?.sum_all()?.backward()?;
        let vars = || arguments.floats.iter().map(|(_, var)| var);
        let gradients = vars().map(|var| gradients.get(var).map(floats).transpose());
        Ok(Outcome {
            output: floats(&output)?,
            gradients: gradients.collect::<Result<_>>()?,
            after: vars().map(|var| floats(var)).collect::<Result<_>>()?,
        })
    }

    fn differences(&self, found: &Outcome, right: &Outcome) -> Vec<Comparison> {
        let compare = |what: String, found: &[f32], right: &[f32], least| {
            Comparison::new(what, distance(found, right, least), TOLERANCE)
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
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_tried() {
        let functions = include_str!("ops.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("pub fn ")?.split(['(', '<']).next());
        let functions: Vec<&str> = functions.collect();
        assert!(functions.contains(&"conv2d") && functions.len() >= 11, "{functions:?}");
        for name in functions {
            assert!(
                TRIALS.iter().any(|trial| trial.operation == name),
                "ops::{name} has no entry in operations::TRIALS"
            );
        }
    }

    #[test]
    fn every_set_of_kernels_computes_what_the_composed_path_does() {
        for kernels in Kernels::available() {
            for trial in TRIALS {
                let compared = with(kernels, || trial.compare(&Device::Cpu)).unwrap();
                assert_eq!(compared.len(), 1 + trial.floats.len());
                println!("{kernels} {}: {:?}", trial.name(), Comparison::worst(&compared));
                for one in compared {
                    assert!(one.holds(), "{} on {kernels}: {one:?}", trial.name());
                }
            }
        }
    }

    /// Whatever part of an outcome is off by a thousandth, or missing, is found and named.
    #[test]
    fn a_wrong_outcome_is_found() {
        for trial in TRIALS {
            let right = trial.outcome(&Device::Cpu).unwrap();
            let wrong = |spoil: &dyn Fn(&mut Outcome)| {
                let mut found = trial.outcome(&Device::Cpu).unwrap();
                spoil(&mut found);
                let compared = trial.differences(&found, &right);
                compared.into_iter().filter(|one| !one.holds()).map(|one| one.what).collect()
            };
            let off =
                |values: &mut Vec<f32>| values.iter_mut().for_each(|v| *v = *v * 1.001 + 0.001);
            let none: Vec<String> = wrong(&|_| {});
            assert!(none.is_empty(), "{none:?}");
            assert_eq!(wrong(&|found| off(&mut found.output)), ["output"], "{}", trial.name());
            for (i, (name, _)) in trial.floats.iter().enumerate() {
                let of_gradient = right.gradients[i].is_some();
                let named =
                    if of_gradient { format!("gradient of {name}") } else { (*name).into() };
                let spoilt = wrong(&|found| match &mut found.gradients[i] {
                    Some(gradient) => off(gradient),
                    None => off(&mut found.after[i]),
                });
                assert_eq!(spoilt, [named.as_str()], "{}", trial.name());
                if right.gradients[i].as_ref().is_some_and(|g| norm(g) > 0.1) {
                    let severed = wrong(&|found| found.gradients[i] = None);
                    assert_eq!(severed, [named.as_str()], "{}", trial.name());
                }
            }
        }
    }
}
