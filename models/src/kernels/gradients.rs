//! The gradients of one backward pass: what the kernels handed over, and candle's store for the rest.

use std::collections::HashSet;
use std::ops::Range;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, bail};

use super::flat::{HostBuffer, copy_gradient};
use super::handover::{Contribution, Places, deliver, lend};
use super::operand::with_values;

/// What a backward pass found: a gradient for every variable the loss depends on.
pub struct Gradients {
    store: GradStore,
    contributions: Vec<Contribution>,
    /// The variables of which a part lies in its place in the flat gradient already.
    laid: HashSet<TensorId>,
}

/// As [`Tensor::backward`], but the gradients of variables stay what the kernels made: candle does
/// not add them to zeros, and those of embedding tables come as the rows the batch touched instead
/// of dense tensors of millions of values.
///
/// # Errors
/// As [`Tensor::backward`].
pub fn backward(loss: &Tensor) -> Result<Gradients> {
    backward_into(loss, Some)
}

/// As [`backward`], but the contributions of kernels go to `listener` while the pass runs, in an
/// order that is the same in every run. What it gives back is part of the gradients returned, what
/// it keeps is not.
///
/// A contribution is a variable's whole gradient only if nothing else in the loss uses it: then
/// nothing of it is [left](Gradients::left) in candle's store.
///
/// # Errors
/// As [`Tensor::backward`].
pub fn backward_into(
    loss: &Tensor,
    listener: impl FnMut(Contribution) -> Option<Contribution> + 'static,
) -> Result<Gradients> {
    let (store, contributions) = deliver(listener, || loss.backward());
    Ok(Gradients { store: store?, contributions, laid: HashSet::new() })
}

/// As [`backward`], but what kernels first contribute to the gradient of a variable that has one of `places` they
/// write there, in `flat`; [`copy`](Gradients::copy) and [`add`](Gradients::add) to that place add what is missing.
/// What lay in such a place is gone, of the others nothing is touched.
///
/// # Errors
/// As [`Tensor::backward`].
pub fn backward_in_place(loss: &Tensor, flat: &mut Vec<f32>, places: &Places) -> Result<Gradients> {
    let (store, contributions, laid) = lend(flat, places, || loss.backward());
    Ok(Gradients { store: store?, contributions, laid })
}

impl Gradients {
    /// Whether any gradient reached `var`.
    pub fn reached(&self, var: &Tensor) -> bool {
        self.laid(var)
            || self.store.get(var).is_some()
            || self.contributions_to(var).next().is_some()
    }

    /// Whether a part of the gradient of `var` lies in its place already, and is none of the contributions.
    fn laid(&self, var: &Tensor) -> bool {
        self.laid.contains(&var.id())
    }

    /// The part of the gradient of `var` that candle's store holds, unless it is all zeros.
    ///
    /// # Errors
    /// Gradients that are not `f32`.
    pub fn left(&self, var: &Tensor) -> Result<Option<&Tensor>> {
        let Some(gradient) = self.store.get(var) else { return Ok(None) };
        let zeros = gradient.device().is_cpu()
            && with_values(gradient, |values: &[f32]| {
                Ok(values.iter().all(|value| *value == 0.0))
            })?;
        Ok((!zeros).then_some(gradient))
    }

    /// What kernels contributed, in the order of the pass.
    pub fn contributions(&self) -> &[Contribution] {
        &self.contributions
    }

    /// What kernels contributed to the gradient of `var`, in an order that is the same in every
    /// run: once for each use.
    fn contributions_to(&self, var: &Tensor) -> impl Iterator<Item = &Contribution> {
        let id = var.id();
        self.contributions.iter().filter(move |contribution| contribution.variable() == id)
    }

    /// The elements of the rows of the table `var` that its gradient has something in, in any order,
    /// if that is known of all of it.
    ///
    /// # Errors
    /// Gradients that are not `f32`.
    pub fn rows(&self, var: &Tensor) -> Result<Option<impl Iterator<Item = Range<usize>>>> {
        let known = |contribution| matches!(contribution, &Contribution::Rows(_));
        if self.laid(var) || self.left(var)?.is_some() || !self.contributions_to(var).all(known) {
            return Ok(None);
        }
        let rows = self.contributions_to(var).filter_map(|contribution| match contribution {
            Contribution::Rows(rows) => Some(rows.places()),
            Contribution::Dense { .. } => None,
        });
        Ok(Some(rows.flatten()))
    }

    /// Adds the gradient of `var` to `sum`; without what the pass has written there
    /// [in place](backward_in_place).
    ///
    /// # Errors
    /// When `sum` is not of the variable's size, or the gradient is not `f32`.
    pub fn add(&self, var: &Tensor, sum: &mut [f32]) -> Result<()> {
        fits(var, sum)?;
        if let Some(gradient) = self.left(var)? {
            let mut left = vec![0.0; sum.len()];
            copy_gradient(gradient, &mut left)?;
            sum.iter_mut().zip(left).for_each(|(sum, value)| *sum += value);
        }
        self.contributions_to(var).for_each(|contribution| contribution.add_to(sum));
        Ok(())
    }

    /// Writes the gradient of `var` into `into`, zeros where nothing reached it. What the pass has written there
    /// [in place](backward_in_place) is part of it.
    ///
    /// # Errors
    /// When `into` is not of the variable's size, or the gradient is not `f32`.
    pub fn copy(&self, var: &Tensor, into: &mut [f32]) -> Result<()> {
        if self.laid(var) {
            return self.add(var, into);
        }
        fits(var, into)?;
        let mut contributions = self.contributions_to(var);
        match (self.left(var)?, contributions.next()) {
            (None, None) => into.fill(0.0),
            (None, Some(first)) => first.write_to(into),
            (Some(gradient), first) => {
                copy_gradient(gradient, into)?;
                first.into_iter().for_each(|first| first.add_to(into));
            }
        }
        contributions.for_each(|contribution| contribution.add_to(into));
        Ok(())
    }

    /// Writes the gradients of `vars`, end to end in this order, into `flat`; zeros where nothing reached a variable. They
    /// are laid end to end where they are computed and cross once, through `host`: of a hundred variables on a GPU each
    /// would otherwise wait for a transfer of its own. For gradients that candle's store holds, as it does all those of a GPU.
    ///
    /// # Errors
    /// When `flat` is not as long as all variables together, a gradient is not `f32`, or kernels contributed to one.
    pub fn copy_at_once<'v>(
        &self,
        vars: impl IntoIterator<Item = &'v Tensor>,
        flat: &mut [f32],
        host: &HostBuffer,
    ) -> Result<()> {
        let part = |var: &Tensor| match self.store.get(var) {
            _ if self.laid(var) || self.contributions_to(var).next().is_some() => {
                bail!("kernels contributed to the gradient of shape {:?}", var.shape())
            }
            Some(gradient) => gradient.flatten_all(),
            None => var.zeros_like()?.flatten_all(),
        };
        let parts = vars.into_iter().map(part).collect::<Result<Vec<_>>>()?;
        let gradient = Tensor::cat(&parts, 0)?;
        fits(&gradient, flat)?;
        host.read(&gradient, |values| flat.copy_from_slice(values))
    }
}

fn fits(var: &Tensor, values: &[f32]) -> Result<()> {
    let (shape, count) = (var.shape(), values.len());
    if shape.elem_count() != count {
        bail!("a variable of shape {shape:?} does not fit a slice of {count} values");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::kernels::{Kernels, with};
    use crate::ops;

    /// The cosines of 0, 0.7, 1.4, …
    fn var(shape: &[usize]) -> Var {
        let count = shape.iter().product::<usize>();
        let values = (0..count).map(|i| (i as f32 * 0.7).cos()).collect();
        Var::from_vec(values, shape, &Device::Cpu).unwrap()
    }

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
                let native = kernels != Kernels::Candle;
                assert_eq!(gradients.left(&table).unwrap().is_none(), native);
                assert_eq!(gradients.contributions_to(&table).count(), if native { 2 } else { 0 });
                assert_eq!(gradients.contributions.len(), if native { 4 } else { 0 });
            });
        }
    }

    #[test]
    fn gradients_written_in_place_have_the_same_bits() {
        let (table, shared, last) = (var(&[10, 4]), var(&[4, 4]), var(&[3, 4]));
        let biases = [4, 3].map(|n| var(&[n]));
        let (unused, elsewhere) = (var(&[2, 2]), var(&[1, 3]));
        let ids = Tensor::new(&[[3u32, 4, 3, 0], [9, 0, 0, 0]], &Device::Cpu).unwrap();
        let placed = [&table, &shared, &last, &biases[0], &biases[1], &unused];
        let mut end = 0;
        let ranges = placed.map(|var| {
            end += var.elem_count();
            end - var.elem_count()..end
        });
        let places: Places = placed.iter().map(|var| var.id()).zip(ranges.clone()).collect();
        for kernels in Kernels::available() {
            with(kernels, || {
                let mean = ops::embedding_mean(&ids, &table).unwrap();
                // By a kernel twice, and once where none sees it.
                let hidden = ops::linear(&mean, &shared, &biases[0]).unwrap();
                let hidden = ops::linear(&hidden.relu().unwrap(), &shared, &biases[0]).unwrap();
                let ys = ops::linear(&hidden, &last, &biases[1]).unwrap();
                let ys = ys.broadcast_mul(&elsewhere).unwrap();
                let decay = shared.as_tensor().sqr().unwrap().sum_all().unwrap();
                let loss = (ys.sqr().unwrap().sum_all().unwrap() + decay).unwrap();
                let plain = backward(&loss).unwrap();
                let mut flat = vec![7.0; end];
                let gradients = backward_in_place(&loss, &mut flat, &places).unwrap();
                let native = kernels != Kernels::Candle;
                assert_eq!(gradients.laid(&last) && gradients.laid(&shared), native);
                assert!(
                    gradients.contributions_to(&last).next().is_none()
                        && !gradients.laid(&elsewhere)
                );
                for (var, range) in placed.iter().zip(&ranges) {
                    let mut expected = vec![f32::NAN; var.elem_count()];
                    plain.copy(var, &mut expected).unwrap();
                    assert_eq!(gradients.reached(var), plain.reached(var));
                    gradients.copy(var, &mut flat[range.clone()]).unwrap();
                    assert_eq!(flat[range.clone()], expected, "{kernels}");
                }
                // Nothing is lent any more.
                assert_eq!(
                    backward(&loss).unwrap().contributions_to(&last).count(),
                    usize::from(native)
                );
            });
        }
    }

    /// The simple form is a copy of each variable's gradient.
    #[test]
    fn gradients_that_cross_at_once_are_those_that_cross_one_by_one() {
        let [table, weight, unused, xs] = [[7, 4], [5, 4], [2, 3], [3, 4]].map(|shape| var(&shape));
        let bias = var(&[5]);
        let ids =
            Tensor::new(&[[3u32, 4, 3, 0], [6, 0, 0, 0], [1, 1, 2, 5]], &Device::Cpu).unwrap();
        let loss = || {
            let xs = (ops::embedding_mean(&ids, &table).unwrap() + xs.as_tensor()).unwrap();
            ops::linear(&xs, &weight, &bias).unwrap().sqr().unwrap().sum_all().unwrap()
        };
        let vars = [&table, &weight, &unused, &bias];
        let count = vars.iter().map(|var| var.elem_count()).sum();
        let host = HostBuffer::default();
        with(Kernels::Candle, || {
            let gradients = backward(&loss()).unwrap();
            let (mut expected, mut flat) = (vec![f32::NAN; count], vec![f32::NAN; count]);
            let mut rest = expected.as_mut_slice();
            for var in vars {
                let (mine, others) = rest.split_at_mut(var.elem_count());
                gradients.copy(var, mine).unwrap();
                rest = others;
            }
            gradients.copy_at_once(vars.map(Var::as_tensor), &mut flat, &host).unwrap();
            assert_eq!(flat, expected);
            assert!(flat.iter().any(|value| *value != 0.0));
            assert!(gradients.copy_at_once([weight.as_tensor()], &mut flat, &host).is_err());
        });
        let native = Kernels::available().find(|kernels| *kernels != Kernels::Candle).unwrap();
        with(native, || {
            let gradients = backward(&loss()).unwrap();
            let refused =
                gradients.copy_at_once([weight.as_tensor()], &mut [0.0; 20], &host).unwrap_err();
            assert!(refused.to_string().contains("kernels contributed"), "{refused}");
        });
    }

    #[test]
    fn a_listener_is_told_while_the_pass_runs_and_sees_every_bit() {
        use std::cell::RefCell;
        use std::rc::Rc;

        let (first, second) = (var(&[5, 4]), var(&[3, 5]));
        let biases = [5, 3].map(|n| var(&[n]));
        let xs = var(&[2, 4]);
        for kernels in Kernels::available() {
            with(kernels, || {
                let hidden = ops::linear(xs.as_tensor(), &first, &biases[0]).unwrap();
                let ys = ops::linear(&hidden.relu().unwrap(), &second, &biases[1]).unwrap();
                let loss = ys.sqr().unwrap().sum_all().unwrap();
                // `second` is also used where no kernel sees it.
                let decay = second.as_tensor().sqr().unwrap().sum_all().unwrap();
                let loss = (loss + decay).unwrap();
                let whole = backward(&loss).unwrap();
                let received = Rc::new(RefCell::new(Vec::new()));
                let (receive, unwanted) = (received.clone(), second.id());
                let rest = backward_into(&loss, move |contribution| {
                    receive.borrow_mut().push(contribution.clone());
                    (contribution.variable() == unwanted).then_some(contribution)
                });
                let rest = rest.unwrap();
                assert_eq!(whole.contributions, received.take());
                assert!(rest.contributions.iter().all(|c| c.variable() == unwanted));
                assert!(rest.left(&second).unwrap().is_some());
                let native = kernels != Kernels::Candle;
                assert_eq!(rest.left(&first).unwrap().is_none(), native);
                let order: Vec<_> =
                    whole.contributions.iter().map(Contribution::variable).collect();
                let last_layer_first = [second.id(), biases[1].id(), first.id(), biases[0].id()];
                assert_eq!(order, if native { &last_layer_first[..] } else { &[] });
                // Nobody listens any more.
                assert!(loss.backward().unwrap().get(&first).is_some());
            });
        }
    }
}
