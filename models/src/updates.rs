//! Updates of weights where they lie: by a kernel on a GPU, by its twin on the processor.

use std::cell::Cell;

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, Storage};

use crate::compare::{Comparison, floats};
#[cfg(feature = "cuda")]
use crate::fused::launch::{Gpu, ViewMut};
use crate::golden::formula::uniform;
use crate::kernels::operand::{f32s_mut, with_values};
use crate::kernels::optimizer::{AdamWStep, SgdStep, adamw, sgd, sum_of_squares};

/// A change of arrays of one length, each element by the elements in the same place of the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Update {
    /// [`sgd`] of weights and, unless its factor is 0, their momentum, by a gradient.
    Sgd(SgdStep),
    /// [`adamw`] of weights, first and second moments, by a gradient.
    AdamW(AdamWStep),
    /// An average, and what it is the average of.
    Average {
        /// The average moves towards the other by this share of the distance.
        share: f32,
        /// Whether the other is the average afterwards.
        back: bool,
    },
    /// Two arrays, of which each becomes the other.
    Swap,
}

impl Update {
    /// Changes the `arrays`, contiguous `f32` on one device. Their elements are taken row after row, whatever their shapes.
    /// Every instruction set of a processor gives the same bits; kernels round where it does, and [`compare`] tells whether a
    /// GPU gives them too.
    ///
    /// # Errors
    /// More arrays, or fewer, than the update is of, a gradient too many or none where one is needed, other lengths, types,
    /// layouts or devices, two that lie in one storage, and those of the driver.
    pub fn apply(&self, arrays: &[&Tensor], gradient: Option<&Tensor>) -> Result<()> {
        let (count, by_gradient) = match self {
            Self::Sgd(step) => (1 + usize::from(step.momentum != 0.0), true),
            Self::AdamW(_) => (3, true),
            Self::Average { .. } | Self::Swap => (2, false),
        };
        let length = arrays.first().map_or(0, |array| array.elem_count());
        let mut all = arrays.iter().copied().chain(gradient);
        if arrays.len() != count || gradient.is_some() != by_gradient {
            bail!("{self:?} is of {count} arrays, not of {}", arrays.len());
        }
        if let Some(other) = all.clone().find(|array| array.elem_count() != length) {
            bail!("an update of {length} elements has no use for an array of {:?}", other.dims());
        }
        if all.any(|array| !array.device().same_device(arrays[0].device())) {
            bail!("an update of arrays on several devices");
        }
        // Each is locked while the others are.
        let all: Vec<&Tensor> = arrays.iter().copied().chain(gradient).collect();
        if all.iter().enumerate().any(|(i, one)| all[..i].iter().any(|other| shares(one, other))) {
            bail!("an update of arrays of which two lie in one storage");
        }
        lend(arrays, Vec::new(), &|lent| self.change(lent, gradient))
    }

    /// Changes arrays that are lent.
    fn change(&self, lent: Vec<Lent>, gradient: Option<&Tensor>) -> Result<()> {
        let mut host = Vec::new();
        #[cfg(feature = "cuda")]
        let mut gpu = Vec::new();
        for array in lent {
            match array {
                Lent::Host(values) => host.push(values),
                #[cfg(feature = "cuda")]
                Lent::Gpu(storage, layout) => gpu.push((storage, layout)),
            }
        }
        #[cfg(feature = "cuda")]
        if !gpu.is_empty() {
            return self.by_kernel(gpu, gradient);
        }
        match gradient {
            None => self.by_twin(host, &[]),
            Some(gradient) => with_values(gradient, |gradient| self.by_twin(host, gradient)),
        }
    }

    /// The update as it is on a processor.
    fn by_twin(&self, mut arrays: Vec<&mut [f32]>, gradient: &[f32]) -> Result<()> {
        match (self, arrays.as_mut_slice()) {
            (Self::Sgd(step), [weights]) => sgd(weights, gradient, &mut [], step),
            (Self::Sgd(step), [weights, momentum]) => sgd(weights, gradient, momentum, step),
            (Self::AdamW(step), [weights, first, second]) => {
                adamw(weights, gradient, first, second, step);
            }
            (Self::Average { share, back }, [averages, others]) => {
                let pairs = averages.iter_mut().zip(others.iter());
                pairs.for_each(|(average, other)| *average += share * (other - *average));
                if *back {
                    others.copy_from_slice(averages);
                }
            }
            (Self::Swap, [one, other]) => one.swap_with_slice(other),
            (_, arrays) => bail!("{} arrays of several devices", arrays.len()),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn by_kernel(
        &self,
        arrays: Vec<(&mut CudaStorage, &Layout)>,
        gradient: Option<&Tensor>,
    ) -> Result<()> {
        let Some(device) = arrays.first().map(|(storage, _)| storage.device.clone()) else {
            return Ok(());
        };
        let views = arrays.into_iter().map(|(storage, layout)| Gpu::view_mut(storage, layout));
        let mut views: Vec<ViewMut> = views.collect::<Result<_>>()?;
        let gpu = Gpu::new(&device);
        let Some(gradient) = gradient else {
            return match (self, views.as_mut_slice()) {
                (Self::Average { share, back }, [average, other]) => {
                    gpu.average(*share, *back, average, other)
                }
                (_, [one, other]) => gpu.swap(one, other),
                _ => bail!("arrays of several devices"),
            };
        };
        let (storage, layout) = gradient.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { bail!("the gradient is not on the GPU") };
        let gradient = Gpu::view(storage, layout)?;
        match (self, views.as_mut_slice()) {
            (Self::Sgd(step), [weights]) => gpu.sgd(step, &gradient, None, weights),
            (Self::Sgd(step), [weights, momentum]) => {
                gpu.sgd(step, &gradient, Some(momentum), weights)
            }
            (Self::AdamW(step), [weights, first, second]) => {
                gpu.adamw(step, &gradient, [first, second], weights)
            }
            _ => bail!("arrays of several devices"),
        }
    }
}

/// Every update on that device against its twin on the processor: three steps of each, of the second half of longer arrays.
/// The device passes that gives the same bits.
///
/// # Errors
/// Those of the device.
pub fn compare(device: &Device) -> Result<Vec<Comparison>> {
    const LENGTH: usize = 100_000;
    let momentum =
        SgdStep { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.01, first: false };
    let adamw =
        AdamWStep { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-2, weight_decay: 0.01, step: 3 };
    let sgd = |nesterov, first| Update::Sgd(SgdStep { nesterov, first, ..momentum });
    let updates = [
        ("sgd", Update::Sgd(SgdStep { momentum: 0.0, ..momentum }), 1),
        ("sgd with momentum", sgd(false, false), 2),
        ("its first step", sgd(false, true), 2),
        ("sgd with Nesterov's momentum", sgd(true, false), 2),
        ("adamw", Update::AdamW(adamw), 3),
        ("average", Update::Average { share: 0.3, back: false }, 2),
        ("lookahead", Update::Average { share: 0.3, back: true }, 2),
        ("swap", Update::Swap, 2),
    ];
    // Second moments are not negative.
    let values = |number: usize| uniform(&number.to_string(), 2 * LENGTH).map(|x| x.abs() as f32);
    let mut compared = Vec::new();
    for (name, update, count) in updates {
        let by_gradient = matches!(update, Update::Sgd(_) | Update::AdamW(_));
        let run = |device: &Device| {
            let whole = |number| Tensor::from_iter(values(number), device);
            let arrays = (0..count).map(|number| whole(number)?.narrow(0, LENGTH, LENGTH));
            let arrays = arrays.collect::<Result<Vec<_>>>()?;
            let gradient = (whole(9)? - 0.5)?.narrow(0, LENGTH, LENGTH)?;
            let all: Vec<&Tensor> = arrays.iter().collect();
            for _ in 0..3 {
                update.apply(&all, by_gradient.then_some(&gradient))?;
            }
            let sum = squares(&arrays[0])?;
            Ok::<_, candle_core::Error>((floats(&Tensor::cat(&arrays, 0)?)?, sum))
        };
        let ((right, sum), (found, of_device)) = (run(&Device::Cpu)?, run(device)?);
        let differs = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits();
        let other = found.iter().zip(&right).filter(differs).count();
        compared.push(Comparison::new(name, other as f64 / right.len() as f64, 0.0));
        let error = (of_device - sum).abs() / sum;
        compared.push(Comparison::new(format!("squares after {name}"), error, 1e-6));
    }
    Ok(compared)
}

/// The sum of squares of a vector, in one order on each device. A GPU sums in f64, a processor as [`sum_of_squares`].
///
/// # Errors
/// When it is no contiguous `f32`, and those of the driver.
pub fn squares(vector: &Tensor) -> Result<f64> {
    #[cfg(feature = "cuda")]
    {
        let (storage, layout) = vector.storage_and_layout();
        if let Storage::Cuda(storage) = &*storage {
            return Gpu::holding(storage).squares(&Gpu::view(storage, layout)?);
        }
    }
    with_values(vector, |values| Ok(sum_of_squares(values)))
}

/// Whether two tensors lie in one storage.
fn shares(one: &Tensor, other: &Tensor) -> bool {
    std::ptr::eq(&*one.storage_and_layout().0, &*other.storage_and_layout().0)
}

/// An array while it is changed.
enum Lent<'a> {
    Host(&'a mut [f32]),
    #[cfg(feature = "cuda")]
    Gpu(&'a mut CudaStorage, &'a Layout),
}

/// What is done with arrays that are lent together.
type Work<'w> = dyn for<'a> Fn(Vec<Lent<'a>>) -> Result<()> + 'w;

/// Calls `work` with what `lent` has and the `arrays` behind it. candle lends one array at a time, so each is lent within the
/// work on the one before.
fn lend(arrays: &[&Tensor], lent: Vec<Lent>, work: &Work) -> Result<()> {
    let Some((array, rest)) = arrays.split_first() else { return work(lent) };
    array.inplace_op1(&Lending { before: Cell::new(Some(lent)), rest, work })
}

struct Lending<'l, 'w> {
    before: Cell<Option<Vec<Lent<'l>>>>,
    rest: &'l [&'l Tensor],
    work: &'l Work<'w>,
}

impl Lending<'_, '_> {
    fn go_on<'a>(&'a self, with: Lent<'a>) -> Result<()> {
        let before = self.before.take().expect("invariant: candle runs an in-place op once");
        let mut lent: Vec<Lent<'a>> = before;
        lent.push(with);
        lend(self.rest, lent, self.work)
    }
}

impl InplaceOp1 for Lending<'_, '_> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.go_on(Lent::Host(f32s_mut(storage, layout)?))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        self.go_on(Lent::Gpu(storage, layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;

    fn vector(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    const SGD: SgdStep =
        SgdStep { lr: 0.5, momentum: 0.5, nesterov: false, weight_decay: 0.0, first: false };

    #[test]
    fn a_part_of_an_array_changes_and_nothing_else() {
        let (weights, all) =
            (Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap(), vector(&[8., 2., 4., 8.]));
        let (momentum, gradient) = (all.narrow(0, 1, 2).unwrap(), vector(&[1., -2.]));
        Update::Sgd(SGD).apply(&[&weights, &momentum], Some(&gradient)).unwrap();
        assert_eq!((values(&weights), values(&all)), (vec![0., 1.], vec![8., 2., 0., 8.]));
        Update::Average { share: 0.25, back: false }.apply(&[&momentum, &weights], None).unwrap();
        assert_eq!((values(&weights), values(&all)), (vec![0., 1.], vec![8., 1.5, 0.25, 8.]));
        Update::Average { share: 0.5, back: true }.apply(&[&weights, &momentum], None).unwrap();
        assert_eq!(
            (values(&weights), values(&all)),
            (vec![0.75, 0.625], vec![8., 0.75, 0.625, 8.])
        );
        let whole = all.narrow(0, 0, 2).unwrap();
        assert!(
            Update::Swap
                .apply(&[&momentum, &whole], None)
                .unwrap_err()
                .to_string()
                .contains("one storage")
        );
        Update::Swap.apply(&[&weights, &whole], None).unwrap();
        assert_eq!(
            (values(&weights), values(&all)),
            (vec![8., 0.75], vec![0.75, 0.625, 0.625, 8.])
        );
        assert_eq!(squares(&weights).unwrap(), 64.5625);
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let (two, three) = (vector(&[1., 2.]), vector(&[1., 2., 3.]));
        let double = two.to_dtype(DType::F64).unwrap();
        let other = vector(&[1., 2.]);
        for (update, arrays, gradient) in [
            (Update::Sgd(SGD), vec![&two], Some(&other)),
            (Update::Sgd(SGD), vec![&two, &other], None),
            (Update::Sgd(SGD), vec![&two, &three], Some(&other)),
            (Update::Sgd(SGD), vec![&two, &other], Some(&three)),
            (Update::Swap, vec![&two, &other], Some(&three)),
            (Update::Swap, vec![&two, &double], None),
            (Update::Swap, vec![], None),
        ] {
            assert!(update.apply(&arrays, gradient).is_err(), "{update:?}");
        }
        assert_eq!((values(&two), values(&other)), (vec![1., 2.], vec![1., 2.]));
    }
}
