//! The gradients of one backward pass, with those of embedding tables as the rows they touched.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, bail};

use super::embedding::{RowGradient, collect};
use super::optimizer::copy_gradient;

/// What [`backward`] found: a gradient for every variable the loss depends on.
pub struct Gradients {
    store: GradStore,
    rows: Vec<RowGradient>,
}

/// As [`Tensor::backward`], but the gradients of embedding tables come as the rows the batch
/// touched instead of dense tensors: a table of millions of values is not zeroed, filled and added
/// up for the sake of some thousand rows.
///
/// Tables looked up by composed candle operations have a dense gradient as ever.
///
/// # Errors
/// As [`Tensor::backward`].
pub fn backward(loss: &Tensor) -> Result<Gradients> {
    let (store, rows) = collect(|| loss.backward());
    Ok(Gradients { store: store?, rows })
}

impl Gradients {
    /// Whether any gradient reached `var`.
    pub fn reached(&self, var: &Tensor) -> bool {
        self.store.get(var).is_some() || self.rows_of(var).next().is_some()
    }

    /// The dense gradient of `var`, if it has one.
    pub fn dense(&self, var: &Tensor) -> Option<&Tensor> {
        self.store.get(var)
    }

    /// The row gradients of a table: one per look-up, in an order that is the same in every run.
    pub fn rows_of(&self, table: &Tensor) -> impl Iterator<Item = &RowGradient> {
        let id = table.id();
        self.rows.iter().filter(move |rows| rows.table() == id)
    }

    /// Writes the gradient of `var` into `into`, zeros where nothing reached it.
    ///
    /// # Errors
    /// When `into` is not of the variable's size, or the gradient is not `f32`.
    pub fn copy(&self, var: &Tensor, into: &mut [f32]) -> Result<()> {
        if var.elem_count() != into.len() {
            bail!(
                "a variable of shape {:?} does not fit a slice of {} values",
                var.shape(),
                into.len()
            );
        }
        match self.store.get(var) {
            Some(gradient) => copy_gradient(gradient, into)?,
            None => into.fill(0.0),
        }
        for rows in self.rows_of(var) {
            rows.add_to(into);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::kernels::{Kernels, with};
    use crate::ops;

    #[test]
    fn gradients_are_those_of_the_store_whatever_the_kernels() {
        let table: Vec<f32> = (0..30).map(|i| (i as f32).sin()).collect();
        let table = Var::from_vec(table, (10, 3), &Device::Cpu).unwrap();
        let weight = Var::new(&[[0.5f32, -1.0, 2.0]], &Device::Cpu).unwrap();
        let bias = Var::new(&[0.1f32], &Device::Cpu).unwrap();
        let unused = Var::new(&[1f32, 2.0], &Device::Cpu).unwrap();
        let ids = Tensor::new(&[[3u32, 4, 3, 0], [9, 0, 0, 0]], &Device::Cpu).unwrap();
        for kernels in Kernels::available() {
            with(kernels, || {
                let mean = ops::embedding_mean(&ids, &table).unwrap();
                let rows = ops::embedding(&ids, &table).unwrap().sum(1).unwrap();
                let loss = ops::linear(&(mean + rows).unwrap(), &weight, &bias).unwrap();
                let loss = loss.sqr().unwrap().sum_all().unwrap();
                let (store, gradients) = (loss.backward().unwrap(), backward(&loss).unwrap());
                for var in [&table, &weight, &bias] {
                    let mut ours = vec![f32::NAN; var.elem_count()];
                    gradients.copy(var, &mut ours).unwrap();
                    let theirs = store.get(var).unwrap().flatten_all().unwrap().to_vec1::<f32>();
                    assert!(gradients.reached(var));
                    for (a, b) in ours.iter().zip(theirs.unwrap()) {
                        assert!((a - b).abs() <= 1e-5, "{kernels}: {a} {b}");
                    }
                }
                let mut nothing = [f32::NAN; 2];
                gradients.copy(&unused, &mut nothing).unwrap();
                assert_eq!((gradients.reached(&unused), nothing), (false, [0.0; 2]));
                assert!(gradients.copy(&bias, &mut nothing).is_err());
                let sparse = kernels != Kernels::Candle;
                assert_eq!(gradients.dense(&table).is_none(), sparse);
                assert_eq!(gradients.rows_of(&table).count(), if sparse { 2 } else { 0 });
            });
        }
    }
}
