//! What a few seeds tell: means with their confidence intervals, and whether a difference may be
//! chance. The only place that knows Student's and Welch's distributions.
//!
//! Everything here takes runs that differ in nothing but their seed as independent draws from a
//! normal distribution. Comparisons are not corrected for their number: of twenty between arms that
//! do not differ, one is expected below p = 0.05. Verdicts and comparisons are made of [`Estimate`],
//! tables of [`SeedMean`].

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A difference with a p of at least this may be chance.
pub const LEVEL: f64 = 0.05;

/// A mean over seeds, and where it may lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Both ends of the confidence interval (Student's t), at 95 % unless another confidence stands
    /// beside it; absent for one seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<[f64; 2]>,
    /// Seeds.
    pub seeds: usize,
}

/// A mean over seeds, how they vary, and where it may lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SeedMean {
    /// The mean.
    pub mean: f64,
    /// The sample deviation; absent for one seed.
    pub deviation: Option<f64>,
    /// Both ends of the 95 % confidence interval; absent for one seed.
    pub ends: Option<[f64; 2]>,
    /// Seeds.
    pub seeds: usize,
}

impl SeedMean {
    /// Over one number of each seed. `None` without any, or where one is not finite.
    pub fn new(values: &[f64]) -> Option<Self> {
        let SampleMoments { mean, deviation, count } = SampleMoments::finite(values)?;
        let ends = Estimate::new(values)?.ends(LEVEL / 2.0);
        Some(Self { mean, deviation: (count > 1).then_some(deviation), ends, seeds: values.len() })
    }

    /// The same, its interval without what the values can never be.
    #[must_use]
    pub fn within(self, least: f64, most: f64) -> Self {
        Self { ends: self.ends.map(|ends| ends.map(|end| end.clamp(least, most))), ..self }
    }
}

/// Number, mean and deviation of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleMoments {
    /// How many values there are.
    pub count: u64,
    /// Their mean; 0 without any.
    pub mean: f64,
    /// Their sample standard deviation; 0 for fewer than two.
    pub deviation: f64,
}

impl SampleMoments {
    /// The moments of these values.
    pub fn new(values: &[f64]) -> Self {
        let count = values.len();
        let mean = mean(values.iter().copied()).unwrap_or(0.0);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        Self { count: count as u64, mean, deviation }
    }

    /// The same where there is a value and all are finite.
    fn finite(values: &[f64]) -> Option<Self> {
        let all_finite = values.iter().all(|value| value.is_finite());
        (!values.is_empty() && all_finite).then(|| Self::new(values))
    }

    /// The variance of the mean.
    fn error(&self) -> f64 {
        self.deviation.powi(2) / self.count as f64
    }
}

/// The mean of numbers; `None` without any.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// The median of numbers, of an even number the mean of the two in the middle; `None` without any.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some(f64::midpoint(values[(values.len() - 1) / 2], upper))
}

/// A mean, or the difference of two means, with what is known about its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean or the difference.
    pub mean: f64,
    /// The samples of independent numbers that it rests on.
    samples: [Option<SampleMoments>; 2],
    /// What is smaller is left of equal numbers after rounding: no deviation and no difference.
    negligible: f64,
}

impl Estimate {
    /// The mean of one sample. `None` without any number, or where one is not finite.
    pub fn new(values: &[f64]) -> Option<Self> {
        let moments = SampleMoments::finite(values)?;
        Some(Self::from_samples(moments.mean, moments.mean, [Some(moments), None]))
    }

    /// The mean difference within pairs (Student 1908). `None` as for one sample.
    pub fn paired(pairs: &[(f64, f64)]) -> Option<Self> {
        let differences: Vec<f64> = pairs.iter().map(|(a, b)| a - b).collect();
        let largest = pairs.iter().fold(0.0, |most: f64, (a, b)| most.max(a.abs()).max(b.abs()));
        let moments = SampleMoments::finite(&differences)?;
        Some(Self::from_samples(moments.mean, largest, [Some(moments), None]))
    }

    /// The mean of `a` less that of `b`, two samples that have nothing in common and whose variances
    /// may differ (Welch 1947). `None` as for one sample.
    pub fn welch(a: &[f64], b: &[f64]) -> Option<Self> {
        let (a, b) = (SampleMoments::finite(a)?, SampleMoments::finite(b)?);
        let largest = a.mean.abs().max(b.mean.abs());
        Some(Self::from_samples(a.mean - b.mean, largest, [Some(a), Some(b)]))
    }

    /// From numbers about as large as `largest`.
    fn from_samples(mean: f64, largest: f64, samples: [Option<SampleMoments>; 2]) -> Self {
        Self { mean, samples, negligible: 1e-12 * largest.abs() }
    }

    /// Seeds of the smaller sample.
    pub fn seeds(&self) -> usize {
        self.samples.iter().flatten().map(|sample| sample.count as usize).min().unwrap_or(0)
    }

    /// Both ends of the interval outside of which the truth lies with the probability `side` to each
    /// side; `None` where there are too few seeds.
    pub fn ends(&self, side: f64) -> Option<[f64; 2]> {
        self.ends_with(0, side)
    }

    /// The same if each sample had so many more numbers, and varied as it does.
    pub fn ends_with(&self, more: u64, side: f64) -> Option<[f64; 2]> {
        let reach = match self.student(more)? {
            (_, None) => 0.0,
            (error, Some(student)) => error * student.inverse_cdf(1.0 - side),
        };
        Some([self.mean - reach, self.mean + reach])
    }

    /// How probable so large a mean would be if the truth were 0 (two-sided); `None` where there are too
    /// few seeds, or where nothing varies and the mean is not 0: an accuracy counts samples, and a few seeds may well
    /// differ by the same number of them.
    pub fn p(&self) -> Option<f64> {
        Some(match self.student(0)? {
            (_, None) if self.is_nothing() => 1.0,
            (_, None) => return None,
            (error, Some(student)) => 2.0 * student.sf((self.mean / error).abs()),
        })
    }

    fn is_nothing(&self) -> bool {
        self.mean.abs() <= self.negligible
    }

    /// The standard error and Student's distribution, with the degrees of freedom of Welch and
    /// Satterthwaite; no distribution where nothing varies. `None` where a sample has fewer than two
    /// numbers.
    fn student(&self, more: u64) -> Option<(f64, Option<StudentsT>)> {
        let samples: Vec<SampleMoments> = self.samples.iter().flatten().copied().collect();
        let samples = samples.into_iter().map(|of| SampleMoments { count: of.count + more, ..of });
        let errors: Vec<(f64, f64)> =
            samples.map(|sample| (sample.error(), sample.count as f64 - 1.0)).collect();
        if errors.iter().any(|(_, freedom)| *freedom < 1.0) {
            return None;
        }
        let error: f64 = errors.iter().map(|(error, _)| error).sum();
        if error.sqrt() <= self.negligible {
            return Some((0.0, None));
        }
        let shares: f64 = errors.iter().map(|(error, freedom)| error.powi(2) / freedom).sum();
        let student = StudentsT::new(0.0, 1.0, error.powi(2) / shares).ok()?;
        Some((error.sqrt(), Some(student)))
    }

    /// How many seeds beyond those that there are would make `decides` true of the interval, if mean
    /// and deviation stayed as they are; `None` if more than `most` would be needed.
    pub fn more_seeds(
        &self,
        side: f64,
        most: usize,
        decides: impl Fn([f64; 2]) -> bool,
    ) -> Option<usize> {
        // The interval only narrows: what has been decided stays so.
        let decided = |more: usize| self.ends_with(more as u64, side).is_some_and(&decides);
        let (mut no, mut yes) = (0, most);
        while decided(yes) && yes - no > 1 {
            let middle = no + (yes - no) / 2;
            if decided(middle) {
                yes = middle;
            } else {
                no = middle;
            }
        }
        decided(yes).then_some(yes)
    }
}

/// How alike two groups of numbers vary (Pearson's r), pair by pair; `None` for fewer than three
/// pairs, or where one of the groups does not vary.
pub fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (of_a, of_b) = (SampleMoments::finite(&a)?, SampleMoments::finite(&b)?);
    let products = pairs.iter().map(|(a, b)| (a - of_a.mean) * (b - of_b.mean));
    let covariance = products.sum::<f64>() / (pairs.len() as f64 - 1.0);
    let r = covariance / (of_a.deviation * of_b.deviation);
    (pairs.len() > 2 && r.is_finite()).then_some(r)
}

/// Two groups of runs compared, `a` against `b`: by Welch's t-test where they have nothing in common, else by that of
/// pairs, in which what the seed does to both alike drops out.
impl Estimate {
    /// Mean of `a` less mean of `b`, without what rounding leaves of equal numbers.
    pub fn difference(&self) -> f64 {
        if self.is_nothing() { 0.0 } else { self.mean }
    }

    /// Whether the difference is hardly chance: p below [`LEVEL`].
    pub fn is_significant(&self) -> bool {
        self.p().is_some_and(|p| p < LEVEL)
    }

    /// As a sentence without a full stop, such as `casq is 0.4 points below qsgd; over 3 seeds each
    /// this may be chance (p = 0.31)`. `format` writes how large the difference is.
    pub fn in_words(&self, a: &str, b: &str, format: impl Fn(f64) -> String) -> String {
        let amount = format(self.difference().abs());
        let relation = match self.difference() {
            d if d > 0.0 => format!("{a} is {amount} above {b}"),
            d if d < 0.0 => format!("{a} is {amount} below {b}"),
            _ if self.p().is_none() => format!("{a} and {b} are the same"),
            _ => return format!("{a} and {b} are the same {}", self.over()),
        };
        format!("{relation}; {}", self.chance())
    }

    /// What follows about chance, such as `over 3 seeds each this may be chance (p = 0.31)`.
    pub fn chance(&self) -> String {
        let over = self.over();
        match self.p() {
            None => format!("{over} nothing can be said about chance"),
            Some(p) if p < LEVEL => format!("{over} this is hardly chance ({})", p_value(p)),
            Some(p) => format!("{over} this may be chance ({})", p_value(p)),
        }
    }

    /// What it rests on, such as `over 3 seeds each`.
    fn over(&self) -> String {
        match self.samples.map(|sample| sample.map(|sample| sample.count)) {
            [Some(1), Some(1) | None] => "with one seed".to_string(),
            [Some(1), _] | [_, Some(1)] => "with one seed on one side".to_string(),
            [Some(a), Some(b)] if a == b => format!("over {a} seeds each"),
            [Some(a), Some(b)] => format!("over {a} and {b} seeds"),
            [pairs, _] => {
                format!("over {} pairs of runs with the same seed", pairs.unwrap_or_default())
            }
        }
    }
}

/// A p with two digits that count: `p = 0.31`, `p = 0.0042`, `p < 0.001`.
pub fn p_value(p: f64) -> String {
    match p {
        p if p < 0.001 => "p < 0.001".into(),
        p if p < 0.01 => format!("p = {p:.4}"),
        p if p < 0.1 => format!("p = {p:.3}"),
        p => format!("p = {p:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(got: f64, expected: f64) {
        assert!((got - expected).abs() <= 1e-9 * expected.abs().max(1e-3), "{got}, not {expected}");
    }

    #[track_caller]
    fn both_close(got: Option<[f64; 2]>, [low, high]: [f64; 2]) {
        let got = got.unwrap();
        close(got[0], low);
        close(got[1], high);
    }

    const A: [f64; 3] = [0.912, 0.918, 0.907];
    const B: [f64; 3] = [0.915, 0.921, 0.9205];

    fn points(difference: f64) -> String {
        format!("{:.2} points", 100.0 * difference)
    }

    /// Expected values here and below: SciPy 1.17.1, `stats.t.interval`, `ttest_ind` with
    /// `equal_var=False`, `ttest_rel`, and their `confidence_interval(0.95)`.
    #[test]
    fn an_interval_ends_where_its_values_can_be() {
        let seconds = SeedMean::new(&[0.01, 0.2]).unwrap();
        assert!(seconds.ends.unwrap()[0] < 0.0);
        let seconds = seconds.within(0.0, f64::INFINITY);
        assert!(seconds.ends.unwrap()[0] == 0.0 && seconds.ends.unwrap()[1] > 1.0);
    }

    #[test]
    fn intervals_are_students() {
        let three = SeedMean::new(&A).unwrap();
        close(three.mean, 0.9123333333333333);
        both_close(three.ends, [0.8986517696366945, 0.9260148970299722]);
        assert_eq!(three.seeds, 3);
        both_close(
            SeedMean::new(&[0.4, 0.6]).unwrap().ends,
            [-0.7706204736174691, 1.770620473617469],
        );
        let one = SeedMean { mean: 0.5, deviation: None, ends: None, seeds: 1 };
        assert_eq!(SeedMean::new(&[0.5]), Some(one));
        assert_eq!(SeedMean::new(&[0.5, 0.5]).unwrap().ends, Some([0.5, 0.5]));
        assert_eq!(SeedMean::new(&[]), None);
        assert_eq!(SeedMean::new(&[0.5, f64::NAN]), None);
    }

    #[test]
    fn welch_agrees_with_scipy() {
        let test = |a: &[f64], b: &[f64], p: f64, ends: [f64; 2]| {
            let found = Estimate::welch(a, b).unwrap();
            close(found.p().unwrap(), p);
            both_close(found.ends(LEVEL / 2.0), ends);
        };
        test(&A, &B, 0.17040877992054998, [-0.01775735544475458, 0.004757355444754679]);
        let c = [
            27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7,
            21.4,
        ];
        let d =
            [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.6];
        test(&c, &d, 0.01169713640241693, [-4.901551976723745, -0.6727337375619769]);
        let (e, f) = ([0.9, 0.91], [0.5, 0.52, 0.49, 0.505]);
        test(&e, &f, 2.809065188197865e-6, [0.37807737184091916, 0.42442262815908083]);
    }

    #[test]
    fn pairs_agree_with_scipy() {
        let pairs: Vec<(f64, f64)> = A.iter().copied().zip(B).collect();
        let found = Estimate::paired(&pairs).unwrap();
        assert_eq!(found.over(), "over 3 pairs of runs with the same seed");
        close(found.p().unwrap(), 0.20441292022926333);
        both_close(found.ends(LEVEL / 2.0), [-0.021559284554123037, 0.008559284554123064]);
        assert_eq!(Estimate::paired(&[]), None);
    }

    /// `stats.pearsonr` of SciPy 1.17.1.
    #[test]
    fn correlations_agree_with_scipy() {
        let pairs: Vec<(f64, f64)> = A.iter().copied().zip(B).collect();
        close(correlation(&pairs).unwrap(), 0.12725695259516415);
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)]), None);
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 3.0)]), None);
    }

    #[test]
    fn more_seeds_are_counted_as_the_interval_narrows() {
        let estimate = Estimate::new(&[-1.0, 1.0, 3.0]).unwrap();
        assert!(estimate.ends(0.05).unwrap()[0] < 0.0);
        let more = estimate.more_seeds(0.05, 100, |[low, _]| low > 0.0).unwrap();
        let ends = |n: usize| estimate.ends_with(n as u64, 0.05).unwrap();
        assert!(ends(more)[0] > 0.0 && ends(more - 1)[0] <= 0.0, "{more}");
        assert_eq!(estimate.more_seeds(0.05, 100, |[low, _]| low > 1.0), None);
        assert_eq!(Estimate::new(&[1.0]).unwrap().ends(0.05), None);
        assert_eq!(Estimate::new(&[1.0, 1.0]).unwrap().ends(0.05), Some([1.0, 1.0]));
        assert_eq!(Estimate::welch(&[1.0], &[1.0, 2.0]).unwrap().ends(0.05), None);
        assert_eq!(Estimate::new(&[f64::NAN]), None);
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        let median = |values: &[f64]| median(values.iter().copied());
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!((median(&[7.0]), median(&[])), (Some(7.0), None));
    }

    #[test]
    fn what_does_not_vary_is_no_chance() {
        let third = 1.0 / 3.0;
        let same = Estimate::welch(&[third + third + third; 3], &[1.0; 4]).unwrap();
        assert_eq!((same.difference(), same.p()), (0.0, Some(1.0)));
        let other = Estimate::welch(&[2.0; 3], &[3.0; 3]).unwrap();
        assert_eq!((other.p(), other.ends(LEVEL / 2.0)), (None, Some([-1.0, -1.0])));
        assert!(!other.is_significant());
        assert!(!Estimate::welch(&[2.0], &[3.0; 3]).unwrap().is_significant());
        let one_varies = Estimate::welch(&[0.1; 3], &[0.1, 0.2, 0.3]).unwrap();
        assert!(one_varies.p().unwrap() > 0.05);
        assert!(one_varies.ends(LEVEL / 2.0).unwrap()[0] < 0.0);
    }

    #[test]
    fn words_say_what_the_seeds_allow() {
        let say =
            |a: &[f64], b: &[f64]| Estimate::welch(a, b).unwrap().in_words("casq", "qsgd", points);
        assert_eq!(
            say(&A, &B),
            "casq is 0.65 points below qsgd; over 3 seeds each this may be chance (p = 0.17)"
        );
        assert_eq!(
            say(&[0.9, 0.91], &[0.5, 0.52, 0.49, 0.505]),
            "casq is 40.12 points above qsgd; over 2 and 4 seeds this is hardly chance (p < 0.001)"
        );
        assert_eq!(
            say(&[0.5], &[0.25]),
            "casq is 25.00 points above qsgd; with one seed nothing can be said about chance"
        );
        assert_eq!(say(&[0.5, 0.5], &[0.5, 0.5]), "casq and qsgd are the same over 2 seeds each");
        let pairs = Estimate::paired(&[(0.5, 0.4), (0.6, 0.55)]).unwrap();
        assert!(pairs.chance().starts_with("over 2 pairs of runs with the same seed this may be"));
        assert_eq!(
            [0.31, 0.0321, 0.00423, 1e-9].map(p_value),
            ["p = 0.31", "p = 0.032", "p = 0.0042", "p < 0.001"]
        );
    }
}
