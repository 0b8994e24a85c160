//! Axes: where values lie, and which are labelled.

use gradwire::text;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use std::ops::Range;

/// What a number is, and so how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// How many.
    Count,
    /// Without a unit.
    Number,
    /// Of all, 0 to 1, written in percent.
    Fraction,
    /// Of a message.
    Bytes,
    /// In bits per second.
    Bandwidth,
    /// Of time.
    Seconds,
}

impl Quantity {
    /// A value of it in words.
    pub(super) fn words(self, value: f64) -> String {
        match self {
            Self::Count => text::count(value),
            Self::Number => text::three_digits(value),
            Self::Fraction => text::percent(value),
            Self::Bytes => text::bytes(value),
            Self::Bandwidth => text::bandwidth(value),
            Self::Seconds => format!("{} s", text::count(value)),
        }
    }
}

/// An axis: what it shows, and from where to where.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows.
    pub(super) title: String,
    pub(super) quantity: Quantity,
    /// Whether equal factors are equally far apart, and not equal differences.
    pub(super) logarithmic: bool,
    pub(super) ends: [f64; 2],
}

impl Axis {
    /// An axis on which all `values` lie that have a place there, with a little air. A linear one begins at 0, or a
    /// little below the least value where that is far above. No fraction is more than all.
    pub fn new(
        title: &str,
        quantity: Quantity,
        logarithmic: bool,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        // What is larger or smaller has no room for air around it.
        let usable = |value: &f64| value.abs() < 1e300 && (!logarithmic || *value > 1e-300);
        let values: Vec<f64> = values.into_iter().filter(usable).collect();
        let (low, high) = match values.is_empty() {
            true => (0.1, 1.0),
            false => {
                values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                    (low.min(*value), high.max(*value))
                })
            }
        };
        let mut ends = if logarithmic {
            let air = (high / low).powf(0.04).clamp(1.05, 1e24);
            [(low / air).max(1e-300), (high * air).min(1e300)]
        } else {
            let span = if high > low { high - low } else { high.abs().max(1e-9) * 0.2 };
            let is_near_zero = low >= 0.0 && low < 1.5 * span;
            [if is_near_zero { 0.0 } else { low - 0.05 * span }, high + 0.05 * span]
        };
        if quantity == Quantity::Fraction && high <= 1.0 {
            ends[1] = ends[1].min(1.0);
        }
        Self { title: title.into(), quantity, logarithmic, ends }
    }

    /// Where a value lies between both ends, 0 to 1; at the edge where it is beyond them. `None` for one that has no
    /// place.
    pub(super) fn share(&self, value: f64) -> Option<f64> {
        let scaled = |value: f64| if self.logarithmic { value.log10() } else { value };
        let [low, high] = self.ends.map(scaled);
        let has_place = !value.is_nan() && (!self.logarithmic || value > 0.0);
        has_place.then(|| ((scaled(value) - low) / (high - low)).clamp(0.0, 1.0))
    }

    /// The values that are labelled, about so many at most.
    fn ticks(&self, most: usize) -> Vec<f64> {
        let [low, high] = self.ends;
        let even = || RangedCoordf64::from(low..high).key_points(most);
        if !self.logarithmic {
            return even();
        }
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let decades = |factors: &[f64]| -> Vec<f64> {
            let all = powers.clone().flat_map(|n| factors.iter().map(move |m| m * 10f64.powi(n)));
            all.filter(|value| (low..=high).contains(value)).collect()
        };
        let lists = [decades(&[1.0, 2.0, 5.0]), decades(&[1.0, 3.0]), decades(&[1.0])];
        let few = lists.iter().find(|list| list.len() <= most).unwrap_or(&lists[2]);
        if few.len() < 2 {
            return even();
        }
        few.iter().copied().step_by(few.len().div_ceil(most.max(1))).collect()
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = self.share(*value).unwrap_or(0.0);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks(hint.max_num_points()),
        }
    }

    fn range(&self) -> Range<f64> {
        self.ends[0]..self.ends[1]
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.quantity.words(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(quantity: Quantity, logarithmic: bool, values: &[f64]) -> Vec<String> {
        let axis = Axis::new("x", quantity, logarithmic, values.iter().copied());
        axis.ticks(8).into_iter().map(|value| quantity.words(value)).collect()
    }

    #[test]
    fn labels_are_round_and_few() {
        let labels = |quantity, logarithmic, values: &[f64]| {
            labels(quantity, logarithmic, values).join(", ")
        };
        let found = labels(Quantity::Fraction, false, &[0.12, 0.93]);
        assert_eq!(found, "0 %, 20 %, 40 %, 60 %, 80 %");
        let found = labels(Quantity::Number, true, &[0.01, 32.0]);
        assert_eq!(found, "0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30");
        let found = labels(Quantity::Seconds, true, &[8.0, 700.0]);
        assert_eq!(found, "10 s, 20 s, 50 s, 100 s, 200 s, 500 s");
        assert!(labels(Quantity::Number, true, &[4.2, 4.4]).split(',').count() >= 2);
        assert!(labels(Quantity::Bytes, true, &[1.0, 1e12]).split(',').count() <= 8);
    }

    #[test]
    fn an_axis_ends_where_numbers_do() {
        for values in [[1e-200, 1e200], [1.1e-300, 9e299], [1.1e-300, 1.2e-300]] {
            let axis = Axis::new("x", Quantity::Number, true, values);
            assert!(axis.ends[0] > 0.0 && axis.ends[1].is_finite(), "{:?}", axis.ends);
            assert!(axis.ticks(8).len() <= 9, "{:?}", axis.ticks(8));
        }
    }

    #[test]
    fn no_accuracy_is_beyond_all() {
        for values in [vec![0.2, 1.0], vec![1.0], vec![0.98, 0.999]] {
            let [low, high] = Axis::new("accuracy", Quantity::Fraction, false, values).ends;
            assert!(low < high && high <= 1.0, "{low} to {high}");
        }
    }

    #[test]
    fn nothing_and_one_value_have_an_axis() {
        for values in [vec![], vec![0.0], vec![5.0], vec![f64::NAN], vec![-1.0, f64::INFINITY]] {
            for logarithmic in [true, false] {
                let axis = Axis::new("x", Quantity::Seconds, logarithmic, values.clone());
                assert!(axis.ends[0] < axis.ends[1], "{values:?} {axis:?}");
                assert!(axis.ends.iter().all(|end| end.is_finite()), "{values:?} {axis:?}");
                assert_eq!(axis.share(f64::NAN), None);
                assert!(axis.ticks(8).iter().all(|value| value.is_finite()), "{axis:?}");
            }
        }
    }
}
