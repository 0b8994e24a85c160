//! Vectors that lie beside variables, on the same device, and change together with them there.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, Var};
use gradwire_models::updates::{Update, squares};
use std::ops::Range;

/// As many values as some variables have, those of all variables one after the other.
pub(super) struct Vector(pub(super) Tensor);

impl Vector {
    /// So many zeros on a device.
    pub(super) fn zeros(length: usize, device: &Device) -> Result<Self> {
        Ok(Self(Tensor::zeros(length, DType::F32, device)?))
    }

    /// What the variables have, in memory of its own.
    fn of(vars: &[Var]) -> Result<Self> {
        let all = vars.iter().map(|var| var.as_detached_tensor().flatten_all());
        let all = all.collect::<Result<Vec<_>, _>>()?;
        match all.as_slice() {
            [] => Self::zeros(0, &Device::Cpu),
            // candle's concatenation of one tensor is that tensor.
            [only] => Ok(Self(only.copy()?)),
            several => Ok(Self(Tensor::cat(several, 0)?)),
        }
    }

    /// The values, on the host.
    ///
    /// # Errors
    /// When a GPU does not give them.
    pub(super) fn to_host(&self) -> Result<Vec<f32>> {
        self.0.to_vec1().context("bringing a vector from the GPU")
    }

    /// Replaces the values.
    ///
    /// # Errors
    /// When there are fewer or more, or a GPU does not take them.
    pub(super) fn set(&mut self, values: &[f32]) -> Result<()> {
        let length = self.len();
        ensure!(values.len() == length, "{} values in the place of {length}", values.len());
        self.0 = Tensor::from_slice(values, length, self.0.device())?;
        Ok(())
    }

    /// How many values it has.
    pub(super) fn len(&self) -> usize {
        self.0.elem_count()
    }

    /// The Euclidean norm of a part.
    pub(super) fn norm(&self, part: &Range<usize>) -> Result<f64> {
        Ok(squares(&self.0.narrow(0, part.start, part.len())?)?.sqrt())
    }

    /// Multiplies all values.
    pub(super) fn scale(&mut self, factor: f32) -> Result<()> {
        self.0 = (&self.0 * f64::from(factor))?;
        Ok(())
    }
}

/// Updates a variable and its `place` in the `vectors` by that in the gradient.
pub(super) fn update(
    (var, place): (&Var, &Range<usize>),
    update: &Update,
    vectors: &[Vector],
    gradient: &Vector,
) -> Result<()> {
    let part = |vector: &Vector| vector.0.narrow(0, place.start, place.len());
    let vectors = vectors.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    let arrays: Vec<&Tensor> = [var.as_tensor()].into_iter().chain(&vectors).collect();
    Ok(update.apply(&arrays, Some(&part(gradient)?))?)
}

/// A vector with the variables that it lies beside.
pub(super) struct Beside {
    vars: Vec<Var>,
    pub(super) vector: Vector,
}

impl Beside {
    /// The values that the variables have.
    pub(super) fn new(vars: Vec<Var>) -> Result<Self> {
        Ok(Self { vector: Vector::of(&vars)?, vars })
    }

    /// Takes the values that the variables have now.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.vector = Vector::of(&self.vars)?;
        Ok(())
    }

    /// Changes the values beside each variable together with it.
    pub(super) fn each(&self, update: &Update) -> Result<()> {
        let mut start = 0;
        for var in &self.vars {
            let beside = self.vector.0.narrow(0, start, var.elem_count())?;
            update.apply(&[&beside, var], None).context("averaging the weights")?;
            start += var.elem_count();
        }
        Ok(())
    }
}
