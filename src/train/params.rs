//! A replica's trainable variables and their places in its flat gradient.
//!
//! candle keeps variables in a hash map, whose order differs between replicas; here their order
//! is that of their names, so that the flat gradients of all ranks mean the same, or that of the
//! exchange's buckets, which is made of names too.

use crate::train::beside::Vector;
use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, TensorId, Var};
use gradwire_exchange::{Layout, Support};
use gradwire_models::Store;
use gradwire_models::kernels::flat::{HostBuffer, update_all, update_in_place};
use gradwire_models::kernels::gradients::Gradients;
use gradwire_models::kernels::handover::{Contribution, Places};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// One trainable variable and its place in the flat gradient.
pub struct Param {
    /// PyTorch's name of it, such as `layer1.0.conv1.weight`.
    pub name: String,
    /// The variable.
    pub var: Var,
    /// Its elements' place in the flat gradient.
    pub range: Range<usize>,
    /// Whether it is the shift of a batch norm: the bias of what has running statistics.
    pub is_norm_bias: bool,
}

impl Param {
    /// Changes the variable's elements in place.
    ///
    /// # Errors
    /// When they do not lie in memory as one contiguous `f32` slice.
    pub fn update<T>(&self, change: impl FnOnce(&mut [f32]) -> T) -> Result<T> {
        update_in_place(&self.var, change).with_context(|| format!("updating {}", self.name))
    }
}

/// All trainable variables of a replica, as they lie in the flat gradient.
pub struct Params {
    params: Vec<Param>,
    len: usize,
    index: Index,
    places: Places,
    /// What gradients and weights cross through from and to a GPU.
    host: HostBuffer,
}

/// Which variable a kernel's contribution is for, by its number; cheap to clone.
#[derive(Clone)]
pub struct Index(Arc<HashMap<TensorId, usize>>);

impl Index {
    /// The number of the variable, if it is one of these.
    pub fn of(&self, contribution: &Contribution) -> Option<usize> {
        self.0.get(&contribution.variable()).copied()
    }
}

/// The variables by what kernels know of them.
fn look_ups(params: &[Param]) -> (Index, Places) {
    let index = params.iter().enumerate().map(|(place, p)| (p.var.id(), place)).collect();
    let places = params.iter().map(|p| (p.var.id(), p.range.clone())).collect();
    (Index(Arc::new(index)), places)
}

impl Params {
    /// The trainable variables of `store`, in name order.
    pub fn new(store: &Store) -> Self {
        let mut len = 0;
        let buffers = store.buffers();
        let has_statistics = |layer: &str| {
            let of = |name: &str| name.strip_suffix(".running_mean") == Some(layer);
            buffers.iter().any(|(name, _)| of(name))
        };
        let params = store.trainable().into_iter().map(|(name, var)| {
            let range = len..len + var.elem_count();
            len = range.end;
            let is_norm_bias = name.strip_suffix(".bias").is_some_and(has_statistics);
            Param { name, var, range, is_norm_bias }
        });
        let params: Vec<Param> = params.collect();
        let (index, places) = look_ups(&params);
        Self { params, len, index, places, host: HostBuffer::default() }
    }

    /// Takes the places in the flat gradient from `layout`, that of an exchange of
    /// [these parameters](Self::layout), and the order of the variables with them.
    ///
    /// # Errors
    /// When the layout lacks a variable.
    pub fn arrange(&mut self, layout: &Layout) -> Result<()> {
        let mut unplaced: HashMap<String, Param> =
            self.params.drain(..).map(|param| (param.name.clone(), param)).collect();
        for parameter in layout.parameters() {
            let Some(param) = unplaced.remove(&parameter.name) else {
                bail!("invariant: the exchange knows a parameter {}", parameter.name);
            };
            self.params.push(Param { range: parameter.range.clone(), ..param });
        }
        ensure!(unplaced.is_empty(), "invariant: the exchange lacks parameters");
        (self.index, self.places) = look_ups(&self.params);
        Ok(())
    }

    /// Where each variable's gradient lies in the flat one.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Finds variables by what kernels contribute to them.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The number of parameters: elements of all variables.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to train.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The variables, as they lie in the flat gradient.
    pub fn iter(&self) -> impl Iterator<Item = &Param> {
        self.params.iter()
    }

    /// Changes all variables' elements in place, one after the other; those of a GPU in one transfer each way.
    ///
    /// # Errors
    /// As [`Param::update`].
    pub fn update(&self, mut change: impl FnMut(&Param, &mut [f32])) -> Result<()> {
        let vars: Vec<&Var> = self.params.iter().map(|param| &param.var).collect();
        update_all(&vars, &self.host, |number, elements| change(&self.params[number], elements))
            .context("updating the weights")
    }

    /// Whether the variables are the host's.
    pub(super) fn on_host(&self) -> bool {
        self.device().is_cpu()
    }

    fn device(&self) -> &Device {
        self.params.first().map_or(&Device::Cpu, |param| param.var.device())
    }

    /// A vector of zeros beside the variables.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub(super) fn zeros(&self) -> Result<Vector> {
        Vector::zeros(self.len, self.device())
    }

    /// A flat vector of the host, beside the variables.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn send(&self, flat: &[f32]) -> Result<Vector> {
        let sent = self.host.send(flat, self.device());
        Ok(Vector(sent.context("bringing the gradient to the GPU")?))
    }

    /// Names and shapes in order of name, as an exchange wants them.
    ///
    /// # Errors
    /// When two variables have one name.
    pub fn layout(&self) -> Result<Layout> {
        let shaped = |p: &Param| (p.name.clone(), p.var.dims().to_vec());
        let parameters: BTreeMap<_, _> = self.params.iter().map(shaped).collect();
        Ok(Layout::shaped(parameters)?)
    }

    /// Fails when a variable has no gradient: an operation on the way severed autograd, or the
    /// model does not use the variable.
    ///
    /// # Errors
    /// Names every such variable.
    pub fn audit(&self, gradients: &Gradients) -> Result<()> {
        let missing: Vec<_> =
            self.iter().filter(|p| !gradients.reached(&p.var)).map(|p| p.name.as_str()).collect();
        if !missing.is_empty() {
            bail!("no gradient reaches {}: the model does not train them", missing.join(", "));
        }
        Ok(())
    }

    /// Writes the gradients into `flat`, where the pass has not done so, and adds where they may have something to
    /// `support`. A variable without gradient counts as zeros. Where `flat` has nothing but `zeros` for a whole
    /// variable, only what is not zero is written. From a GPU all of them come in one transfer.
    ///
    /// # Errors
    /// When a gradient is not `f32` or not of its variable's size.
    pub fn gather(
        &self,
        gradients: &Gradients,
        flat: &mut [f32],
        zeros: Option<&Range<usize>>,
        support: &mut Support,
    ) -> Result<()> {
        if !self.on_host() {
            return self.gather_at_once(gradients, flat, support);
        }
        for param in self.iter() {
            let rows = if zeros == Some(&param.range) { gradients.rows(&param.var)? } else { None };
            match rows {
                None => support.add(param.range.clone()),
                Some(rows) => rows.for_each(|row| {
                    support.add(param.range.start + row.start..param.range.start + row.end);
                }),
            }
            let into = &mut flat[param.range.clone()];
            let gathered = if zeros == Some(&param.range) {
                gradients.add(&param.var, into)
            } else {
                gradients.copy(&param.var, into)
            };
            gathered.with_context(|| format!("gathering the gradient of {}", param.name))?;
        }
        Ok(())
    }

    /// As [`gather`](Self::gather) of gradients that no kernel has a part in, in one transfer.
    fn gather_at_once(
        &self,
        gradients: &Gradients,
        flat: &mut [f32],
        support: &mut Support,
    ) -> Result<()> {
        support.fill();
        let vars = self.iter().map(|param| param.var.as_tensor());
        gradients.copy_at_once(vars, flat, &self.host).context("gathering the gradient")
    }

    /// One hash per variable over the bits of its elements: equal on replicas that agree.
    ///
    /// # Errors
    /// When a variable does not lie in memory as one contiguous `f32` slice.
    pub fn hashes(&self) -> Result<Vec<u64>> {
        self.iter().map(|param| param.update(|elements| hash_bits(elements))).collect()
    }
}

/// FNV-1a over 32-bit words in eight lanes: not cryptographic, and fast enough to run often.
fn hash_bits(elements: &[f32]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut lanes: [u64; 8] = std::array::from_fn(|i| 0xcbf2_9ce4_8422_2325 ^ i as u64);
    let mix = |lane: &mut u64, element: &f32| {
        *lane = (*lane ^ u64::from(element.to_bits())).wrapping_mul(PRIME);
    };
    let mut chunks = elements.chunks_exact(8);
    for chunk in &mut chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, element)| mix(lane, element));
    }
    lanes.iter_mut().zip(chunks.remainder()).for_each(|(lane, element)| mix(lane, element));
    lanes
        .iter()
        .fold(elements.len() as u64, |hash, lane| (hash ^ lane).wrapping_mul(PRIME).rotate_left(29))
}

/// What the name of a batch norm's count of passes ends with.
pub(super) const PASSES: &str = "num_batches_tracked";

/// Whether a buffer of that name holds means or variances, and is no count of passes.
pub(super) fn is_statistic(name: &str) -> bool {
    !name.ends_with(PASSES)
}

/// Calls `change` with the values of each buffer whose name is `wanted`, in the order of their names, and keeps
/// what it leaves; on a GPU they cross once each way.
pub(super) fn update_buffers(
    store: &Store,
    wanted: impl Fn(&str) -> bool,
    mut change: impl FnMut(&mut [f32]),
) -> Result<()> {
    let buffers = store.buffers();
    let vars: Vec<&Var> =
        buffers.iter().filter(|(name, _)| wanted(name)).map(|(_, var)| var).collect();
    // They are few: memory that is kept for them would not pay.
    let host = HostBuffer::default();
    update_all(&vars, &host, |_, values| change(values)).context("updating the running statistics")
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Tensor;
    use gradwire_models::kernels::gradients::backward;
    use gradwire_models::kernels::{Kernels, with};
    use gradwire_models::{Config, Input, cross_entropy};

    /// What a GPU's gradients go through, on the processor.
    #[test]
    fn gradients_gathered_at_once_are_those_gathered_one_by_one() {
        with(Kernels::Candle, || {
            let store = Store::new(3, &Device::Cpu);
            let input = Input::Text { vocabulary: 20, length: 6 };
            let model = Config::from_name("textcnn").unwrap();
            let model = model.build(&input, 4, store.var_builder()).unwrap();
            let ids =
                Tensor::new(&[[3u32, 4, 5, 6, 7, 8], [9, 1, 2, 0, 0, 0]], &Device::Cpu).unwrap();
            let labels = Tensor::new(&[1u32, 3], &Device::Cpu).unwrap();
            let loss = cross_entropy(&model.forward_t(&ids, true).unwrap(), &labels, 0.0).unwrap();
            let gradients = backward(&loss).unwrap();
            let params = Params::new(&store);
            let fresh = || (vec![f32::NAN; params.len()], Support::nothing(params.len()));
            let ((mut one_by_one, mut of_one), (mut at_once, mut of_all)) = (fresh(), fresh());
            params.gather(&gradients, &mut one_by_one, None, &mut of_one).unwrap();
            params.gather_at_once(&gradients, &mut at_once, &mut of_all).unwrap();
            assert_eq!(one_by_one, at_once);
            assert!(of_all.is_everything());
            assert_eq!(of_one, of_all);
            assert!(at_once.iter().filter(|value| **value != 0.0).count() > params.len() / 10);
        });
    }

    #[test]
    fn the_hash_sees_every_bit_and_every_place() {
        let base: Vec<f32> = (0..37).map(|i| i as f32 * 0.37 - 3.0).collect();
        let hash = hash_bits(&base);
        for i in 0..base.len() {
            for bit in [0, 12, 31] {
                let mut changed = base.clone();
                changed[i] = f32::from_bits(changed[i].to_bits() ^ (1 << bit));
                assert_ne!(hash, hash_bits(&changed), "element {i}, bit {bit}");
            }
        }
        let mut swapped = base.clone();
        swapped.swap(3, 11);
        assert_ne!(hash, hash_bits(&swapped));
        assert_ne!(hash_bits(&[0.0; 8]), hash_bits(&[0.0; 16]));
        assert_ne!(hash_bits(&[0.0]), hash_bits(&[-0.0]));
    }
}
