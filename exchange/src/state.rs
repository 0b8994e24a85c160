//! Named values in which compressors and the exchange keep what a checkpoint must carry.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// One saved value.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// Raw bytes.
    Bytes(Vec<u8>),
    /// Single-precision numbers: residuals, levels.
    F32(Vec<f32>),
    /// Counters.
    U64(Vec<u64>),
}

/// Saved values by name, in ascending order of name. Names are paths: `bucket.3/levels`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    entries: BTreeMap<String, Entry>,
}

impl State {
    /// Sets an entry, replacing one of the same name.
    pub fn insert(&mut self, name: impl Into<String>, entry: Entry) {
        self.entries.insert(name.into(), entry);
    }

    /// Takes over every entry of `inner` under `scope/`.
    pub(crate) fn insert_scope(&mut self, scope: &str, inner: State) {
        for (name, entry) in inner.entries {
            self.entries.insert(format!("{scope}/{name}"), entry);
        }
    }

    /// The entries under `scope/`, with the prefix taken off.
    pub fn scope(&self, scope: &str) -> State {
        let prefix = format!("{scope}/");
        let entries = self
            .entries
            .range(prefix.clone()..)
            .map_while(|(name, entry)| {
                Some((name.strip_prefix(&prefix)?.to_string(), entry.clone()))
            })
            .collect();
        State { entries }
    }

    /// Keeps the entries whose name is wanted.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.entries.retain(|name, _| wanted(name));
    }

    /// All entries, in ascending order of name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// All entries, in ascending order of name, without copying them.
    pub fn into_entries(self) -> impl Iterator<Item = (String, Entry)> {
        self.entries.into_iter()
    }

    /// Whether an entry of this name is there.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Whether there is no entry at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An entry of bytes.
    ///
    /// # Errors
    /// [`Error::State`] when it is missing or of another type.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        match self.entries.get(name) {
            Some(Entry::Bytes(values)) => Ok(values),
            other => Err(unfit(name, other, "bytes")),
        }
    }

    /// An entry of `length` single-precision numbers, all finite.
    ///
    /// # Errors
    /// [`Error::State`] when it is missing, of another type or length, or holds NaN or infinity.
    pub fn f32s(&self, name: &str, length: usize) -> Result<&[f32]> {
        let values = match self.entries.get(name) {
            Some(Entry::F32(values)) => values,
            other => return Err(unfit(name, other, "f32 numbers")),
        };
        check_length(name, values.len(), length)?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(Error::State {
                entry: name.to_string(),
                problem: format!("holds {} at position {at}", values[at]),
            }),
        }
    }

    /// An entry of `length` counters.
    ///
    /// # Errors
    /// [`Error::State`] when it is missing or of another type or length.
    pub fn u64s(&self, name: &str, length: usize) -> Result<&[u64]> {
        match self.entries.get(name) {
            Some(Entry::U64(values)) => {
                check_length(name, values.len(), length).map(|()| values.as_slice())
            }
            other => Err(unfit(name, other, "u64 counters")),
        }
    }
}

fn check_length(name: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::State {
        entry: name.to_string(),
        problem: format!("has {found} elements where {expected} are needed"),
    })
}

fn unfit(name: &str, found: Option<&Entry>, wanted: &str) -> Error {
    let found = match found {
        None => return Error::State { entry: name.to_string(), problem: "is missing".to_string() },
        Some(Entry::Bytes(_)) => "bytes",
        Some(Entry::F32(_)) => "f32 numbers",
        Some(Entry::U64(_)) => "u64 counters",
    };
    Error::State {
        entry: name.to_string(),
        problem: format!("holds {found} where {wanted} are needed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_nest_and_come_apart_again() {
        let mut inner = State::default();
        inner.insert("levels", Entry::F32(vec![1.0, 2.0]));
        inner.insert("stage", Entry::U64(vec![3]));
        let mut outer = State::default();
        outer.insert("bucket.10", Entry::Bytes(vec![1]));
        outer.insert_scope("bucket.1", inner.clone());
        assert_eq!(outer.scope("bucket.1"), inner);
        assert!(outer.scope("bucket").is_empty());
        assert_eq!(outer.bytes("bucket.10").unwrap(), [1]);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let mut state = State::default();
        state.insert("a", Entry::F32(vec![1.0, f32::NAN]));
        for error in [
            state.f32s("b", 2).unwrap_err(),
            state.f32s("a", 3).unwrap_err(),
            state.f32s("a", 2).unwrap_err(),
            state.u64s("a", 2).unwrap_err(),
            state.bytes("a").unwrap_err(),
        ] {
            assert!(matches!(error, Error::State { .. }), "{error}");
        }
    }
}
