//! How named parameters lie in the flat gradient, and which stretches are encoded as one.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::refusal;
use crate::{Error, Result};

/// One parameter's place in the flat gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// The parameter's name.
    pub name: String,
    /// Its dimensions, outermost first; empty for a single number.
    pub shape: Vec<usize>,
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
    /// Lays out parameters given as (name, number of elements), in ascending order of name. Each
    /// counts as a vector; schemes that work on matrices need [`shaped`](Self::shaped).
    ///
    /// # Errors
    /// [`Error::Invalid`] names the first parameter that is repeated or out of order.
    pub fn new(parameters: impl IntoIterator<Item = (String, usize)>) -> Result<Self> {
        Self::shaped(parameters.into_iter().map(|(name, length)| (name, vec![length])))
    }

    /// Lays out parameters given as (name, dimensions), in ascending order of name.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the first parameter that is repeated or out of order, or that has
    /// more elements than memory can hold.
    pub fn shaped(parameters: impl IntoIterator<Item = (String, Vec<usize>)>) -> Result<Self> {
        let mut placed: Vec<Parameter> = Vec::new();
        let mut start = 0usize;
        for (name, shape) in parameters {
            if let Some(previous) = placed.last().filter(|previous| previous.name >= name) {
                let problem = format!(
                    "layout: parameter `{name}` comes after `{}`; give each once, in ascending order \
                     of name",
                    previous.name
                );
                return Err(Error::Invalid { problem });
            }
            let length = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
            let end = length.and_then(|length| start.checked_add(length));
            let Some(end) = end.filter(|end| *end <= isize::MAX as usize / size_of::<f32>()) else {
                let problem = format!(
                    "layout: parameter `{name}` has more elements than memory can hold: {shape:?}"
                );
                return Err(Error::Invalid { problem });
            };
            placed.push(Parameter { name, shape, range: start..end });
            start = end;
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

    /// The parameters in ascending order of name.
    fn by_name(&self) -> Vec<&Parameter> {
        let mut parameters: Vec<&Parameter> = self.parameters.iter().collect();
        parameters.sort_by(|one, other| one.name.cmp(&other.name));
        parameters
    }

    /// Copies values that lie as this layout has them, one for each element, into the order of the
    /// parameters' names: the order in which states are saved, whatever the buckets were.
    ///
    /// # Panics
    /// When there are not as many values as elements.
    pub fn to_name_order(&self, values: &[f32]) -> Vec<f32> {
        assert_eq!(values.len(), self.len(), "values of another layout");
        let mut sorted = Vec::with_capacity(values.len());
        for parameter in self.by_name() {
            sorted.extend_from_slice(&values[parameter.range.clone()]);
        }
        sorted
    }

    /// The inverse of [`to_name_order`](Self::to_name_order).
    ///
    /// # Panics
    /// When there are not as many values as elements.
    pub fn from_name_order(&self, sorted: &[f32]) -> Vec<f32> {
        assert_eq!(sorted.len(), self.len(), "values of another layout");
        let (mut values, mut rest) = (vec![0.0; sorted.len()], sorted);
        for parameter in self.by_name() {
            let (elements, others) = rest.split_at(parameter.range.len());
            values[parameter.range.clone()].copy_from_slice(elements);
            rest = others;
        }
        values
    }

    /// The name of the parameter that holds a position, as it travels, and the position within.
    pub fn name(&self, position: usize) -> (String, usize) {
        let (parameter, index) =
            self.locate(position).expect("invariant: every position lies in a parameter");
        (refusal::cut(&parameter.name).to_string(), index)
    }

    /// The parameter that holds a position of the flat gradient, and the position within it.
    pub(crate) fn locate(&self, position: usize) -> Option<(&Parameter, usize)> {
        let next = self.parameters.partition_point(|p| p.range.end <= position);
        let parameter = self.parameters.get(next)?;
        Some((parameter, position - parameter.range.start))
    }
}

/// Which stretches of the flat gradient are encoded as one.
///
/// As serde reads it, in TOML: `"whole"`, `"parameter"` or `{ bytes = 1048576 }`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Bucketing {
    /// One bucket: the whole flat gradient.
    #[default]
    Whole,
    /// One bucket for each parameter.
    Parameter,
    /// Neighbouring parameters together, up to this many bytes of f32 gradient. Parameters are
    /// never split: one that is larger than this has a bucket to itself.
    Bytes(#[cfg_attr(feature = "schema", schemars(range(min = size_of::<f32>())))] usize),
}

impl Bucketing {
    /// Checks the setting by itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] when not even one element fits a bucket.
    pub(crate) fn validate(&self) -> Result<()> {
        match self {
            Bucketing::Bytes(bytes) if *bytes < size_of::<f32>() => Err(Error::Invalid {
                problem: format!(
                    "bucketing: {bytes} bytes hold no f32; write at least {}",
                    size_of::<f32>()
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Assigns every parameter to a bucket, at least one, in ascending order of name: first those
    /// that go by no rule, then those of each of the `rules`, which are said by name; last, in one bucket that is not
    /// compressed, those of fewer than `dense_below` elements that go by none.
    /// Returns the layout in which the parameters of each bucket lie end to end, bucket after
    /// bucket, and the buckets' places in it.
    pub(crate) fn arrange(
        &self,
        layout: Layout,
        dense_below: usize,
        rules: impl Fn(&str) -> Option<usize>,
    ) -> (Layout, Vec<BucketRange>) {
        let limit = match self {
            Bucketing::Whole => usize::MAX,
            Bucketing::Parameter => 0,
            Bucketing::Bytes(bytes) => bytes / size_of::<f32>(),
        };
        let class = |parameter: &Parameter| {
            let rule = rules(&parameter.name);
            (rule.is_none() && parameter.range.len() < dense_below, rule)
        };
        let mut parameters: Vec<((bool, Option<usize>), Parameter)> =
            layout.parameters.into_iter().map(|parameter| (class(&parameter), parameter)).collect();
        parameters.sort_by(|(one, a), (other, b)| one.cmp(other).then_with(|| a.name.cmp(&b.name)));
        let mut arranged = Layout::default();
        let mut buckets: Vec<BucketRange> = Vec::new();
        for ((dense, rule), parameter) in parameters {
            let length = parameter.range.len();
            let fits = |last: &&mut BucketRange| {
                let has_room = length <= limit.saturating_sub(last.range.len());
                (last.dense, last.rule) == (dense, rule) && (dense || has_room)
            };
            let (number, start) = (arranged.parameters.len(), arranged.len());
            arranged.parameters.push(Parameter { range: start..start + length, ..parameter });
            match buckets.last_mut().filter(fits) {
                Some(last) => (last.parameters.end, last.range.end) = (number + 1, start + length),
                None => buckets.push(BucketRange {
                    parameters: number..number + 1,
                    range: start..start + length,
                    dense,
                    rule,
                }),
            }
        }
        if buckets.is_empty() {
            buckets.push(BucketRange { parameters: 0..0, range: 0..0, dense: false, rule: None });
        }
        (arranged, buckets)
    }
}

/// Where one bucket lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketRange {
    /// Its parameters, among those of the layout.
    pub parameters: Range<usize>,
    /// Its elements, in the flat gradient.
    pub range: Range<usize>,
    /// Whether it is sent as it is, whatever the scheme.
    pub dense: bool,
    /// The number of the policy's rule that its parameters go by.
    pub(crate) rule: Option<usize>,
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
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
    }

    /// The buckets as their lengths, a minus for the dense one; they cover the gradient once, in
    /// order, and so do their parameters.
    fn buckets(bucketing: &Bucketing, layout: &Layout, dense_below: usize) -> Vec<isize> {
        let (arranged, buckets) = bucketing.arrange(layout.clone(), dense_below, |_| None);
        let mut end = 0;
        for bucket in &buckets {
            assert_eq!(bucket.range.start, end);
            let parameters = &arranged.parameters()[bucket.parameters.clone()];
            for parameter in parameters {
                assert_eq!(parameter.range.start, end);
                assert_eq!(parameter.range.len() < dense_below, bucket.dense);
                end = parameter.range.end;
            }
            assert_eq!(bucket.range.end, end);
        }
        assert_eq!((arranged.len(), end), (layout.len(), layout.len()));
        let signed = |one: &BucketRange| one.range.len() as isize * if one.dense { -1 } else { 1 };
        buckets.iter().map(signed).collect()
    }

    #[test]
    fn small_parameters_lie_behind_the_others_and_states_are_saved_by_name() {
        let layout = layout(&[("a", 1), ("b", 3), ("c", 2), ("d", 4)]);
        let (arranged, buckets) = Bucketing::Whole.arrange(layout.clone(), 3, |_| None);
        let names: Vec<&str> = arranged.parameters().iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["b", "d", "a", "c"]);
        let small = BucketRange { parameters: 2..4, range: 7..10, dense: true, rule: None };
        assert_eq!(buckets[1], small);
        let by_name: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let flat = arranged.from_name_order(&by_name);
        assert_eq!(flat, [1.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0, 0.0, 4.0, 5.0]);
        assert_eq!(arranged.to_name_order(&flat), by_name);
        // Arranged once more, for other buckets, it is as if it had been given by name.
        assert_eq!(Bucketing::Whole.arrange(arranged, 0, |_| None).0, layout);
    }

    #[test]
    fn buckets_never_mix_rules_and_rules_come_before_sizes() {
        let layout = layout(&[("a", 1), ("b", 3), ("c", 2), ("d", 4), ("e", 1)]);
        let rules = |name: &str| ["d", "a"].iter().position(|of| name == *of);
        let (arranged, buckets) = Bucketing::Bytes(24).arrange(layout, 2, rules);
        let found = buckets.iter().map(|bucket| {
            let names = arranged.parameters()[bucket.parameters.clone()].iter();
            (names.map(|p| p.name.as_str()).collect::<String>(), bucket.rule, bucket.dense)
        });
        let found: Vec<_> = found.collect();
        let expected =
            [("bc", None, false), ("d", Some(0), false), ("a", Some(1), false), ("e", None, true)];
        assert_eq!(found, expected.map(|(names, rule, dense)| (names.to_string(), rule, dense)));
    }

    #[test]
    fn buckets_cover_the_gradient_whatever_the_policy() {
        let layout = layout(&[("a", 3), ("b", 1), ("c", 10), ("d", 2), ("e", 2)]);
        for (bucketing, dense_below, expected) in [
            (Bucketing::Whole, 0, vec![18]),
            (Bucketing::Parameter, 0, vec![3, 1, 10, 2, 2]),
            (Bucketing::Bytes(16), 0, vec![4, 10, 4]),
            (Bucketing::Bytes(1 << 20), 0, vec![18]),
            (Bucketing::Whole, 3, vec![13, -5]),
            (Bucketing::Parameter, 3, vec![3, 10, -5]),
            (Bucketing::Bytes(52), 3, vec![13, -5]),
            (Bucketing::Whole, 11, vec![-18]),
        ] {
            assert_eq!(buckets(&bucketing, &layout, dense_below), expected, "{bucketing:?}");
        }
        assert_eq!(buckets(&Bucketing::Parameter, &Layout::default(), 9), [0]);
    }
}
