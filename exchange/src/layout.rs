//! How named parameters lie in the flat gradient, and which stretches are encoded as one.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// One parameter's place in the flat gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// The parameter's name.
    pub name: String,
    /// Its elements in the flat gradient.
    pub range: Range<usize>,
}

/// The parameters of a model, in ascending order of name, laid end to end in one flat gradient.
///
/// The order is part of the contract between ranks: two replicas that flatten differently would
/// add unrelated numbers. That is why it is not left to the order of some hash map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    parameters: Vec<Parameter>,
}

impl Layout {
    /// Lays out parameters given as (name, number of elements), in ascending order of name.
    ///
    /// # Errors
    /// [`Error::Layout`] names the first parameter that is repeated or out of order.
    pub fn new(parameters: impl IntoIterator<Item = (String, usize)>) -> Result<Self> {
        let mut placed: Vec<Parameter> = Vec::new();
        let mut start = 0;
        for (name, length) in parameters {
            if let Some(previous) = placed.last().filter(|previous| previous.name >= name) {
                return Err(Error::Layout { name, previous: previous.name.clone() });
            }
            placed.push(Parameter { name, range: start..start + length });
            start += length;
        }
        Ok(Self { parameters: placed })
    }

    /// Elements of the flat gradient.
    pub fn len(&self) -> usize {
        self.parameters.last().map_or(0, |last| last.range.end)
    }

    /// Whether the flat gradient has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parameters, in the order in which they lie.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The parameter that holds a position of the flat gradient, and the position within it.
    pub fn locate(&self, position: usize) -> Option<(&Parameter, usize)> {
        let next = self.parameters.partition_point(|p| p.range.end <= position);
        let parameter = self.parameters.get(next)?;
        Some((parameter, position - parameter.range.start))
    }
}

/// Which stretches of the flat gradient are encoded as one.
///
/// In a recipe: `"whole"`, `"parameter"` or `{ bytes = 1048576 }`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bucketing {
    /// One bucket: the whole flat gradient.
    #[default]
    Whole,
    /// One bucket for each parameter.
    Parameter,
    /// Neighbouring parameters together, up to this many bytes of f32 gradient. Parameters are
    /// never split: one that is larger than this has a bucket to itself.
    Bytes(usize),
}

impl Bucketing {
    /// Checks the setting by itself.
    ///
    /// # Errors
    /// [`Error::Bucketing`] when not even one element fits a bucket.
    pub fn validate(&self) -> Result<()> {
        match self {
            Bucketing::Bytes(bytes) if *bytes < size_of::<f32>() => Err(Error::Bucketing {
                problem: format!("{bytes} bytes hold no f32; write at least {}", size_of::<f32>()),
            }),
            _ => Ok(()),
        }
    }

    /// Cuts a flat gradient into buckets: at least one, end to end, covering it.
    pub fn buckets(&self, layout: &Layout) -> Vec<Range<usize>> {
        let whole = 0..layout.len();
        let limit = match self {
            Bucketing::Whole => return vec![whole],
            Bucketing::Parameter => 0,
            Bucketing::Bytes(bytes) => bytes / size_of::<f32>(),
        };
        let mut buckets: Vec<Range<usize>> = Vec::new();
        for Parameter { range, .. } in layout.parameters() {
            match buckets.last_mut() {
                Some(last) if range.end - last.start <= limit => last.end = range.end,
                _ => buckets.push(range.clone()),
            }
        }
        if buckets.is_empty() {
            buckets.push(whole);
        }
        buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(lengths: &[(&str, usize)]) -> Layout {
        Layout::new(lengths.iter().map(|(name, length)| (name.to_string(), *length))).unwrap()
    }

    #[test]
    fn parameters_lie_end_to_end_and_are_found_again() {
        let layout = layout(&[("a", 3), ("b", 0), ("c", 2)]);
        assert_eq!(layout.len(), 5);
        let at = |position| layout.locate(position).map(|(p, i)| (p.name.as_str(), i));
        assert_eq!(at(0), Some(("a", 0)));
        assert_eq!(at(2), Some(("a", 2)));
        assert_eq!(at(3), Some(("c", 0)));
        assert_eq!(at(4), Some(("c", 1)));
        assert_eq!(at(5), None);
    }

    #[test]
    fn order_and_uniqueness_of_names_are_demanded() {
        for names in [["b", "a"], ["a", "a"]] {
            let error = Layout::new(names.map(|name| (name.to_string(), 1))).unwrap_err();
            assert!(matches!(error, Error::Layout { .. }), "{error}");
        }
    }

    #[test]
    fn buckets_cover_the_gradient_whatever_the_policy() {
        let layout = layout(&[("a", 3), ("b", 1), ("c", 10), ("d", 2), ("e", 2)]);
        assert_eq!(Bucketing::Whole.buckets(&layout), vec![0..18]);
        assert_eq!(Bucketing::Parameter.buckets(&layout), vec![0..3, 3..4, 4..14, 14..16, 16..18]);
        assert_eq!(Bucketing::Bytes(16).buckets(&layout), vec![0..4, 4..14, 14..18]);
        assert_eq!(Bucketing::Bytes(1 << 20).buckets(&layout), vec![0..18]);
        assert_eq!(Bucketing::Parameter.buckets(&Layout::default()), vec![0..0]);
    }

    #[test]
    fn bucketing_reads_from_a_recipe() {
        #[derive(Deserialize, Debug)]
        struct Recipe {
            bucketing: Bucketing,
        }
        let read = |text: &str| toml::from_str::<Recipe>(text).map(|recipe| recipe.bucketing);
        assert_eq!(read("bucketing = 'whole'").unwrap(), Bucketing::Whole);
        assert_eq!(read("bucketing = 'parameter'").unwrap(), Bucketing::Parameter);
        assert_eq!(read("bucketing = { bytes = 4096 }").unwrap(), Bucketing::Bytes(4096));
        assert!(read("bucketing = 'layer'").is_err());
        assert!(Bucketing::Bytes(3).validate().is_err());
    }
}
