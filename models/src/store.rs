//! Named variables with seeded starting values.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Shape, Tensor, Var, bail};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::initial::values_of;

/// The variables of one replica, by PyTorch name.
///
/// A variable's starting value depends on the seed, its name and its shape alone: not on the
/// order in which a model asks, nor on candle's generator (which cannot be seeded on a CPU). Two
/// stores of one seed are bit-identical, on machines with the same C library (its logarithm, sine and
/// cosine make normal values).
///
/// Row [`PAD`](crate::PAD) of a variable named `embedding.weight` starts at zero, as
/// `nn.Embedding(padding_idx = 0)` does.
#[derive(Debug)]
pub struct Store {
    variables: Arc<Variables>,
    device: Device,
}

impl Store {
    /// An empty store; a model built on [`Store::var_builder`] fills it.
    pub fn new(seed: u64, device: &Device) -> Self {
        let variables = Variables { seed, by_name: Mutex::default() };
        Self { variables: Arc::new(variables), device: device.clone() }
    }

    /// A builder that makes each f32 variable when it is first asked for and gives the same one
    /// afterwards.
    pub fn var_builder(&self) -> VarBuilder<'static> {
        let backend = Box::new(Backend(Arc::clone(&self.variables)));
        VarBuilder::from_backend(backend, DType::F32, self.device.clone())
    }

    /// Variables that receive gradients, sorted by name.
    pub fn trainable(&self) -> Vec<(String, Var)> {
        self.select(is_trainable)
    }

    /// What batch norms keep between passes, their running statistics and how many passes these are of
    /// (`num_batches_tracked`, f32), sorted by name: part of the state, never trained.
    pub fn buffers(&self) -> Vec<(String, Var)> {
        self.select(is_buffer)
    }

    /// Variables that neither training nor a forward pass changes, sorted by name: those that
    /// [`Definition::prepare`](crate::Definition::prepare) sets once, the same on all ranks. They are part of the state.
    pub fn fixed(&self) -> Vec<(String, Var)> {
        self.select(is_fixed)
    }

    fn select(&self, keep: impl Fn(&str) -> bool) -> Vec<(String, Var)> {
        let by_name = self.variables.lock();
        let kept = by_name.iter().filter(|(name, _)| keep(name));
        kept.map(|(name, var)| (name.clone(), var.clone())).collect()
    }

    /// Every variable as the bytes of a safetensors file, which PyTorch reads as a state
    /// dictionary. Equal stores give equal bytes.
    pub fn to_safetensors(&self) -> Result<Vec<u8>> {
        let tensors = self.select(|_| true).into_iter().map(|(name, var)| (name, var.into_inner()));
        safetensors::serialize(tensors, None).map_err(candle_core::Error::from)
    }

    /// Sets every variable from a safetensors file; see [`Store::set`].
    pub fn load(&self, path: &Path) -> Result<()> {
        let tensors = candle_core::safetensors::load(path, &self.device)
            .map_err(|e| e.context(format!("cannot read {}", path.display())))?;
        self.set(&tensors).map_err(|e| e.context(format!("{} does not fit", path.display())))
    }

    /// Sets every variable to the tensor of its name.
    ///
    /// Refuses a set with a missing, unknown or wrong-shaped name and then changes nothing.
    /// The `num_batches_tracked` of a batch norm may be PyTorch's, of type i64.
    pub fn set(&self, tensors: &HashMap<String, Tensor>) -> Result<()> {
        let by_name = self.variables.lock();
        let mut values = Vec::with_capacity(by_name.len());
        let mut faults = Vec::new();
        for (name, var) in by_name.iter() {
            let found = match tensors.get(name) {
                Some(passes) if is_passes(name) => Some(as_passes(passes, var)?),
                found => found.cloned(),
            };
            match &found {
                None => faults.push(format!("{name} is missing")),
                Some(t) if t.shape() != var.shape() || t.dtype() != DType::F32 => {
                    faults.push(format!(
                        "{name} is {:?} {:?}, the model has F32 {:?}",
                        t.dtype(),
                        t.dims(),
                        var.dims()
                    ));
                }
                Some(_) => {}
            }
            values.extend(found);
        }
        let mut unknown: Vec<&String> =
            tensors.keys().filter(|name| !by_name.contains_key(*name)).collect();
        unknown.sort();
        faults.extend(unknown.into_iter().map(|name| format!("{name} is not in the model")));
        if !faults.is_empty() {
            let shown = faults.iter().take(8).cloned().collect::<Vec<_>>().join("; ");
            bail!("{} of the names do not fit this model: {shown}", faults.len());
        }
        for (var, value) in by_name.values().zip(&values) {
            var.set(value)?;
        }
        Ok(())
    }
}

/// Names of the trainable variables that `gradients` has nothing for, sorted.
///
/// Some candle operations sever the graph silently; a trainer calls this after its first backward
/// pass and refuses to go on when a name comes back.
pub fn missing_gradients(gradients: &GradStore, store: &Store) -> Vec<String> {
    let trainable = store.trainable().into_iter();
    trainable.filter(|(_, var)| gradients.get(var).is_none()).map(|(name, _)| name).collect()
}

fn is_trainable(name: &str) -> bool {
    !is_buffer(name) && !is_fixed(name)
}

fn is_buffer(name: &str) -> bool {
    name.ends_with("running_mean") || name.ends_with("running_var") || is_passes(name)
}

/// Whether it counts the passes of a batch norm.
fn is_passes(name: &str) -> bool {
    name.ends_with("num_batches_tracked")
}

/// Whether it is the weight of a whitening convolution.
fn is_fixed(name: &str) -> bool {
    name == "whiten.weight" || name.ends_with(".whiten.weight")
}

/// What `var`, which counts passes, is set to for what a file has of it: f32, or i64 of one element.
fn as_passes(found: &Tensor, var: &Var) -> Result<Tensor> {
    if found.elem_count() == 1 && found.dtype() == DType::I64 {
        return found.to_dtype(DType::F32)?.reshape(var.shape());
    }
    Ok(found.clone())
}

#[derive(Debug)]
struct Variables {
    seed: u64,
    by_name: Mutex<BTreeMap<String, Var>>,
}

impl Variables {
    /// Whatever panicked while it held the lock: a map of finished variables is whole.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Var>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What candle's builder talks to.
struct Backend(Arc<Variables>);

impl SimpleBackend for Backend {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if dtype != DType::F32 {
            bail!("{name}: variables are f32, {dtype:?} was asked for");
        }
        let mut by_name = self.0.lock();
        if let Some(var) = by_name.get(name) {
            if var.shape() != &s {
                bail!("{name}: is {:?}, {s:?} was asked for", var.shape());
            }
            return Ok(var.as_tensor().clone());
        }
        let var = Var::from_vec(values_of(self.0.seed, name, &s, h), s, dev)?;
        by_name.insert(name.to_owned(), var.clone());
        Ok(var.into_inner())
    }

    fn get_unchecked(&self, name: &str, _dtype: DType, _dev: &Device) -> Result<Tensor> {
        match self.0.lock().get(name) {
            Some(var) => Ok(var.as_tensor().clone()),
            None => bail!("{name}: no such variable, and no shape to make it by"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.lock().contains_key(name)
    }
}

/// The trainable variables that `build` asks its builder for, in order of name, each with the number of its elements.
/// Each variable that it gets is one zero, broadcast to the variable's shape; a batch norm's statistics are not
/// broadcast.
///
/// # Errors
/// What `build` returns, and when the numbers do not add up within a `u64`.
pub(crate) fn count_trainable<T>(
    build: impl FnOnce(VarBuilder) -> Result<T>,
) -> Result<Vec<(String, u64)>> {
    let shapes = Arc::new(Mutex::new(BTreeMap::new()));
    let backend = Box::new(Outline(Arc::clone(&shapes)));
    build(VarBuilder::from_backend(backend, DType::F32, Device::Cpu))?;
    let shapes = shapes.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut count, mut counted) = (0u64, Vec::new());
    for (name, shape) in shapes.iter().filter(|(name, _)| is_trainable(name)) {
        let sizes = shape.iter().map(|size| u64::try_from(*size).ok());
        let elements = sizes.into_iter().try_fold(1u64, |n, size| n.checked_mul(size?));
        match elements.zip(elements.and_then(|elements| count.checked_add(elements))) {
            Some((elements, sum)) => {
                count = sum;
                counted.push((name.clone(), elements));
            }
            None => bail!("{name} of shape {shape:?} has more elements than can be counted"),
        }
    }
    Ok(counted)
}

/// Gives out variables that have a shape and next to no memory.
struct Outline(Arc<Mutex<BTreeMap<String, Vec<usize>>>>);

impl SimpleBackend for Outline {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let mut shapes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shapes.insert(name.to_owned(), s.dims().to_vec());
        let zero = Tensor::zeros((), dtype, dev)?;
        // A batch norm copies its statistics, all that they are broadcast to.
        if is_buffer(name) { Ok(zero) } else { zero.broadcast_as(s) }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name}: no such variable, and no shape to make it by")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(seed: u64, order: &[&str]) -> Store {
        let store = Store::new(seed, &Device::Cpu);
        let vb = store.var_builder();
        for name in order {
            vb.get_with_hints((30, 40), name, Init::Randn { mean: 0., stdev: 1. }).unwrap();
        }
        store
    }

    fn values(store: &Store, name: &str) -> Vec<f32> {
        let all = store.select(|n| n == name);
        all[0].1.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn values_depend_on_seed_and_name_but_not_on_order() {
        let (a, b) = (store(1, &["x", "y"]), store(1, &["y", "x"]));
        assert_eq!(values(&a, "x"), values(&b, "x"));
        assert_eq!(values(&a, "y"), values(&b, "y"));
        assert_ne!(values(&a, "x"), values(&a, "y"));
        assert_ne!(values(&a, "x"), values(&store(2, &["x"]), "x"));
    }

    #[test]
    fn trainable_elements_are_counted_without_being_made() {
        let counted = |shape: &[usize]| {
            count_trainable(|vb| {
                vb.get(shape, "weight")?;
                vb.get((7,), "running_mean")
            })
        };
        assert_eq!(counted(&[30, 40]).unwrap(), [("weight".to_string(), 1200)]);
        // Four tebibytes.
        assert_eq!(counted(&[1 << 20, 1 << 20]).unwrap()[0].1, 1 << 40);
        let error = counted(&[1 << 40, 1 << 40]).unwrap_err().to_string();
        assert!(error.contains("more elements than can be counted"), "{error}");
    }

    #[test]
    fn every_model_is_counted_as_it_is_made() {
        let inputs = [
            crate::Input::Image { channels: 3, height: 32, width: 32 },
            crate::Input::Text { vocabulary: 50, length: 8 },
            crate::Input::Sequence { vocabulary: 4, length: 8 },
        ];
        for config in crate::Config::all() {
            let input = inputs.iter().find(|input| input.kind() == config.input_kind()).unwrap();
            let store = Store::new(0, &Device::Cpu);
            let counted = config.parameters(input, 4).unwrap();
            config.build(input, 4, store.var_builder()).unwrap();
            let made: usize = store.trainable().iter().map(|(_, var)| var.elem_count()).sum();
            assert_eq!(counted, made as u64, "{}", config.name());
        }
    }

    #[test]
    fn the_padding_row_of_an_embedding_starts_at_zero() {
        let store = store(1, &["embedding.weight"]);
        let rows = values(&store, "embedding.weight");
        assert!(rows[..40].iter().all(|v| *v == 0.));
        assert!(rows[40..].iter().all(|v| *v != 0.));
    }

    #[test]
    fn asking_twice_gives_the_same_variable_and_another_shape_is_refused() {
        let store = store(1, &["x"]);
        let vb = store.var_builder();
        let again = vb.get((30, 40), "x").unwrap();
        store.trainable()[0]
            .1
            .set(&Tensor::zeros((30, 40), DType::F32, &Device::Cpu).unwrap())
            .unwrap();
        assert_eq!(again.sum_all().unwrap().to_scalar::<f32>().unwrap(), 0.);
        assert!(vb.get((40, 30), "x").unwrap_err().to_string().contains("x: is [30, 40]"));
        assert!(vb.get_unchecked("z").unwrap_err().to_string().contains("z"));
        assert!(vb.set_dtype(DType::F64).get((30, 40), "x").is_err());
    }

    #[test]
    fn buffers_are_apart_from_what_trains() {
        let passes = "bn.num_batches_tracked";
        let all = ["bn.running_var", "bn.weight", "a", "bn.running_mean", passes, "whiten.weight"];
        let store = store(1, &all);
        let names = |list: Vec<(String, Var)>| list.into_iter().map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(names(store.trainable()), ["a", "bn.weight"]);
        assert_eq!(names(store.buffers()), [passes, "bn.running_mean", "bn.running_var"]);
        assert_eq!(names(store.fixed()), ["whiten.weight"]);
    }

    #[test]
    fn passes_are_read_as_pytorch_has_them() {
        let store = Store::new(1, &Device::Cpu);
        let name = "bn.num_batches_tracked";
        store.var_builder().get((), name).unwrap();
        let read = |tensor: Option<Tensor>| -> Result<f32> {
            store.set(&tensor.map(|tensor| (name.to_owned(), tensor)).into_iter().collect())?;
            store.buffers()[0].1.to_scalar()
        };
        let cpu = &Device::Cpu;
        assert_eq!(read(Some(Tensor::new(391i64, cpu).unwrap())).unwrap(), 391.);
        assert_eq!(read(Some(Tensor::new(&[7i64], cpu).unwrap())).unwrap(), 7.);
        assert_eq!(read(Some(Tensor::new(12.5f32, cpu).unwrap())).unwrap(), 12.5);
        assert!(read(None).is_err());
        assert!(read(Some(Tensor::new(&[7i64, 8], cpu).unwrap())).is_err());
        assert!(read(Some(Tensor::new(7u32, cpu).unwrap())).is_err());
    }

    #[test]
    fn a_set_that_does_not_fit_changes_nothing_and_says_why() {
        let store = store(1, &["a", "b", "c"]);
        let before = values(&store, "a");
        let zeros = |shape: (usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        let named = |list: &[(&str, Tensor)]| {
            list.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect::<HashMap<_, _>>()
        };
        let wrong = named(&[
            ("a", zeros((30, 40))),
            ("b", zeros((40, 30))),
            ("d", zeros((1, 1))),
            ("bn.num_batches_tracked", zeros((1, 1))),
        ]);
        let message = store.set(&wrong).unwrap_err().to_string();
        assert!(message.contains("4 of the names"), "{message}");
        assert!(message.contains("b is F32 [40, 30], the model has F32 [30, 40]"), "{message}");
        assert!(message.contains("c is missing"), "{message}");
        assert!(message.contains("d is not in the model"), "{message}");
        assert_eq!(values(&store, "a"), before);
        let doubles = zeros((30, 40)).to_dtype(DType::F64).unwrap();
        let wrong = named(&[("a", doubles), ("b", zeros((30, 40))), ("c", zeros((30, 40)))]);
        assert!(store.set(&wrong).unwrap_err().to_string().contains("a is F64"));
    }
}
