//! Between candle's tensors and flat slices of `f32`: variables lent for an update, gradients copied out.

mod host;
#[cfg(feature = "cuda")]
mod pinned;

use std::cell::Cell;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Tensor, Var, bail};

use super::operand::{f32s_mut, with_values};

pub use host::HostBuffer;

/// Lends a variable's values to `update` as one flat slice in the variable's own storage, row
/// after row, and returns what `update` returns. Variables away from the CPU are brought to the
/// host, updated and set.
///
/// The variable's lock is held meanwhile: `update` must not read the variable itself.
///
/// # Errors
/// When the variable is not `f32`, or its storage is not contiguous.
pub fn update_in_place<T>(var: &Var, update: impl FnOnce(&mut [f32]) -> T) -> Result<T> {
    if var.dtype() != DType::F32 {
        bail!("only f32 variables are updated in place, this one is {:?}", var.dtype());
    }
    if !var.device().is_cpu() {
        let mut values = var.flatten_all()?.to_vec1::<f32>()?;
        let out = update(&mut values);
        var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
        return Ok(out);
    }
    let lend = Lend { update: Cell::new(Some(update)), out: Cell::new(None) };
    var.inplace_op1(&lend)?;
    Ok(lend.out.take().expect("invariant: the op ran once, so the update did"))
}

/// Lends the values of all `vars` to `change`, one variable after the other with its number, as [`update_in_place`] does.
/// Those of a GPU come to the host in one transfer and go back in one, through `host`: of a hundred variables each would
/// otherwise wait for two of its own.
///
/// # Errors
/// As [`update_in_place`], and for variables on several devices.
pub fn update_all(
    vars: &[&Var],
    host: &HostBuffer,
    mut change: impl FnMut(usize, &mut [f32]),
) -> Result<()> {
    if vars.iter().all(|var| var.device().is_cpu()) {
        let each = |(number, var): (usize, &&Var)| update_in_place(var, |xs| change(number, xs));
        return vars.iter().enumerate().try_for_each(each);
    }
    update_at_once(vars, host, change)
}

/// As [`update_all`], by way of one flat vector.
fn update_at_once(
    vars: &[&Var],
    host: &HostBuffer,
    mut change: impl FnMut(usize, &mut [f32]),
) -> Result<()> {
    if vars.is_empty() {
        return Ok(());
    }
    let flat = vars.iter().map(|var| var.as_detached_tensor().flatten_all());
    let flat = Tensor::cat(&flat.collect::<Result<Vec<_>>>()?, 0)?;
    let flat = host.change(&flat, |mut rest| {
        for (number, var) in vars.iter().enumerate() {
            let (mine, others) = rest.split_at_mut(var.elem_count());
            change(number, mine);
            rest = others;
        }
    })?;
    let mut start = 0;
    for var in vars {
        var.set(&flat.narrow(0, start, var.elem_count())?.reshape(var.shape())?)?;
        start += var.elem_count();
    }
    Ok(())
}

/// Carries a closure through candle's in-place op, which only lends `&self`.
struct Lend<F, T> {
    update: Cell<Option<F>>,
    out: Cell<Option<T>>,
}

impl<T, F: FnOnce(&mut [f32]) -> T> InplaceOp1 for Lend<F, T> {
    fn name(&self) -> &'static str {
        "update-in-place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let values = f32s_mut(storage, layout).map_err(|_| {
            let wanted = "a variable updated in place must be contiguous f32";
            candle_core::Error::msg(format!("{wanted}, this one has layout {layout:?}"))
        })?;
        let update = self.update.take().expect("invariant: candle runs an in-place op once");
        self.out.set(Some(update(values)));
        Ok(())
    }
}

/// Copies a gradient into its place in a flat slice, in row-major order.
///
/// # Errors
/// When `gradient` is not `f32`, or `into` does not have exactly its number of elements.
pub fn copy_gradient(gradient: &Tensor, into: &mut [f32]) -> Result<()> {
    if gradient.elem_count() != into.len() {
        bail!(
            "a gradient of shape {:?} does not fit a slice of {} values",
            gradient.shape(),
            into.len()
        );
    }
    with_values(&gradient.to_device(&Device::Cpu)?, |values| {
        into.copy_from_slice(values);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What variables of a GPU go through, on the processor.
    #[test]
    fn variables_changed_at_once_are_those_changed_one_by_one() {
        let var = |from: f32, shape: &[usize]| {
            let values = (0..shape.iter().product::<usize>()).map(|i| from + i as f32).collect();
            Var::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        let change = |number: usize, values: &mut [f32]| {
            let start = values.len() as f32;
            values.iter_mut().for_each(|x| *x = *x * (number as f32 + 2.0) + start);
        };
        let all = || [var(1.0, &[2, 3]), var(-7.0, &[]), var(0.5, &[4])];
        let (one_by_one, at_once) = (all(), all());
        update_all(&one_by_one.each_ref(), &HostBuffer::default(), change).unwrap();
        update_at_once(&at_once.each_ref(), &HostBuffer::default(), change).unwrap();
        for (one, other) in one_by_one.iter().zip(&at_once) {
            let values = |var: &Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!((one.dims(), values(one)), (other.dims(), values(other)));
        }
        assert_eq!(at_once[1].to_scalar::<f32>().unwrap(), -20.0);
        update_at_once(&[], &HostBuffer::default(), |_, _| panic!("there is none")).unwrap();
    }

    #[test]
    fn a_variable_changes_in_its_own_storage() {
        let var = Var::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
        let view = var.as_detached_tensor();
        let sum = update_in_place(&var, |values| {
            values[1] = 7.0;
            values.iter().sum::<f32>()
        });
        assert_eq!(sum.unwrap(), 15.0);
        assert_eq!(view.to_vec2::<f32>().unwrap(), [[1.0, 7.0], [3.0, 4.0]]);
    }

    #[test]
    fn what_cannot_be_lent_or_copied_is_an_error() {
        let double = Var::new(&[1f64], &Device::Cpu).unwrap();
        assert!(update_in_place(&double, |_| ()).is_err());
        assert!(copy_gradient(&double, &mut [0.0]).is_err());
        let single = Var::new(&[1f32, 2.0], &Device::Cpu).unwrap();
        assert!(copy_gradient(&single, &mut [0.0]).is_err());
    }
}
