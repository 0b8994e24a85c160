//! Named values ↔ the bytes of a safetensors file.

use anyhow::{Context, Result, bail, ensure};
use gradwire_exchange::{Entry, State};
use safetensors::{Dtype, SafeTensors, View};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// More steps, or updates of anything, than a run can have.
pub const MOST_UPDATES: u64 = 1 << 60;

/// Values and their shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Sizes; their product is the number of values.
    pub shape: Vec<usize>,
    /// The values, in C order.
    pub values: Entry,
}

impl Tensor {
    /// A vector.
    pub fn flat(values: Entry) -> Self {
        let length = match &values {
            Entry::Bytes(values) => values.len(),
            Entry::F32(values) => values.len(),
            Entry::U64(values) => values.len(),
        };
        Self { shape: vec![length], values }
    }
}

/// Tensors by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors(pub BTreeMap<String, Tensor>);

impl Tensors {
    /// Takes over a vector of f32.
    pub fn insert_flat(&mut self, name: &str, values: &[f32]) {
        self.0.insert(name.into(), Tensor::flat(Entry::F32(values.to_vec())));
    }

    /// Takes over the entries of a state as vectors under `scope/`.
    pub fn insert_state(&mut self, scope: &str, state: State) {
        for (name, entry) in state.into_entries() {
            self.0.insert(format!("{scope}/{name}"), Tensor::flat(entry));
        }
    }

    /// The vectors under `scope/` as a state.
    pub fn state(&self, scope: &str) -> State {
        let mut state = State::default();
        for (name, tensor) in self.under(scope) {
            state.insert(name, tensor.values.clone());
        }
        state
    }

    /// The tensors under `scope/`, with the prefix taken off.
    pub fn under<'a>(&'a self, scope: &'a str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        let inner = move |name: &'a str| name.strip_prefix(scope)?.strip_prefix('/');
        self.0.iter().filter_map(move |(name, tensor)| Some((inner(name)?, tensor)))
    }

    /// A tensor of f32 of this shape.
    ///
    /// # Errors
    /// When there is none of that name, type and shape.
    pub fn f32s(&self, name: &str, shape: &[usize]) -> Result<&[f32]> {
        match self.0.get(name) {
            Some(Tensor { shape: found, values: Entry::F32(values) }) if found == shape => {
                Ok(values)
            }
            Some(Tensor { shape: found, values: Entry::F32(_) }) => {
                bail!("tensor {name} has the shape {found:?} where {shape:?} is needed")
            }
            Some(_) => bail!("tensor {name} is not of f32"),
            None => bail!("tensor {name} is missing"),
        }
    }

    /// The vectors of an optimizer: those of these `names` under `scope`, such as `outer/`, each of `length`
    /// elements.
    ///
    /// # Errors
    /// When they are not what is held, because another optimizer wrote it.
    pub fn vectors(&self, scope: &str, names: &[&str], length: usize) -> Result<Vec<&[f32]>> {
        let held = self.0.keys().filter_map(|name| name.strip_prefix(scope));
        let held: Vec<&str> = held.filter(|name| !name.contains('/')).collect();
        if !names.iter().all(|name| held.contains(name)) {
            bail!(
                "another optimizer wrote it: it holds {} where {} is needed; go on with the \
                 optimizer that the run was begun with",
                if held.is_empty() { "no vectors".into() } else { held.join(", ") },
                names.join(", ")
            );
        }
        names.iter().map(|name| self.f32s(&format!("{scope}{name}"), &[length])).collect()
    }

    /// A number of updates.
    ///
    /// # Errors
    /// When there is none of that name, or one that no run comes to.
    pub fn updates(&self, name: &str) -> Result<u64> {
        match self.0.get(name) {
            Some(Tensor { values: Entry::U64(updates), .. }) if updates.len() == 1 => {
                ensure!(
                    updates[0] < MOST_UPDATES,
                    "{name}: {} updates are not possible",
                    updates[0]
                );
                Ok(updates[0])
            }
            _ => bail!("{name}: it does not say how often it was updated"),
        }
    }

    /// As the bytes of a safetensors file, with one entry of metadata. Equal tensors give equal
    /// bytes.
    ///
    /// # Errors
    /// When a shape does not hold its values.
    pub fn encode(&self, metadata: Option<(&str, String)>) -> Result<Vec<u8>> {
        // One key: with several, their order, and so the bytes, would differ from time to time.
        let metadata = metadata.map(|(key, value)| HashMap::from([(key.to_string(), value)]));
        Ok(safetensors::serialize(&self.0, metadata)?)
    }

    /// From the bytes of a safetensors file.
    ///
    /// # Errors
    /// When they are not one, or hold numbers of other types than ours.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let file = SafeTensors::deserialize(bytes).context("it is not a whole safetensors file")?;
        let mut tensors = Self::default();
        for (name, view) in file.tensors() {
            let data = view.data();
            let values = match view.dtype() {
                Dtype::F32 => {
                    Entry::F32(data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
                }
                Dtype::U64 => {
                    Entry::U64(data.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)).collect())
                }
                Dtype::U8 => Entry::Bytes(data.to_vec()),
                other => bail!("tensor {name} is of {other:?}, and not of F32, U64 or U8"),
            };
            tensors.0.insert(name, Tensor { shape: view.shape().to_vec(), values });
        }
        Ok(tensors)
    }
}

/// As the bytes of a safetensors file, in one piece.
impl Serialize for Tensors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.encode(None).map_err(ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Tensors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Messages are read from slices, which can be borrowed from.
        let bytes = <&[u8]>::deserialize(deserializer)?;
        Self::decode(bytes).map_err(|error| de::Error::custom(format!("{error:#}")))
    }
}

fn to_bytes<T: Copy, const N: usize>(
    values: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> Cow<'static, [u8]> {
    let mut all = vec![0; N * values.len()];
    let places = all.as_chunks_mut::<N>().0;
    places.iter_mut().zip(values).for_each(|(place, value)| *place = bytes(*value));
    Cow::Owned(all)
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        match self.values {
            Entry::Bytes(_) => Dtype::U8,
            Entry::F32(_) => Dtype::F32,
            Entry::U64(_) => Dtype::U64,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match &self.values {
            Entry::Bytes(values) => Cow::Borrowed(values),
            Entry::F32(values) => to_bytes(values, |value| value.to_le_bytes()),
            Entry::U64(values) => to_bytes(values, |value| value.to_le_bytes()),
        }
    }

    fn data_len(&self) -> usize {
        match &self.values {
            Entry::Bytes(values) => values.len(),
            Entry::F32(values) => size_of_val(values.as_slice()),
            Entry::U64(values) => size_of_val(values.as_slice()),
        }
    }
}
