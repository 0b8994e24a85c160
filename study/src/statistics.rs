//! What a few seeds allow to be said: means with their confidence intervals, and whether a
//! difference may be chance.
//!
//! Everything here takes runs that differ in nothing but their seed as independent draws from a
//! normal distribution. Comparisons are not corrected for their number: of twenty between arms that
//! do not differ, one is expected below p = 0.05. [`Estimate`] is what verdicts are made of,
//! [`Comparison`] what tables say of two arms.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// What is called chance: a difference with a p at least this large may be.
pub const LEVEL: f64 = 0.05;

/// A mean over seeds, and where it may lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Both ends of the confidence interval (Student's t), at 95 % unless something else is said beside
    /// it; absent for one seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<[f64; 2]>,
    /// Seeds.
    pub seeds: usize,
}

/// Mean and deviation of so many numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Their sample standard deviation; 0 for fewer than two.
    pub deviation: f64,
}

impl Moments {
    /// Of these numbers.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = mean(values.iter().copied()).unwrap_or(0.0);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        Self { count: count as u64, mean, deviation }
    }
}

/// The mean of numbers; `None` without any.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Two groups of runs, `a` against `b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Mean of `a` less mean of `b`.
    pub difference: f64,
    /// Both ends of the difference's 95 % confidence interval; absent where the seeds are too few.
    pub ends: Option<[f64; 2]>,
    /// How probable so large a difference would be if both had the same mean (two-sided); absent
    /// where the seeds are too few. 0 where neither group varies and the means differ.
    pub p: Option<f64>,
    /// What was compared with what.
    pub seeds: Seeds,
}

/// What a comparison rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// So many runs of `a`, so many of `b`, each for itself.
    Apart(usize, usize),
    /// So many pairs with the same seed.
    Paired(usize),
}

/// The mean of these numbers with its 95 % confidence interval by Student's t; no interval for one
/// number. `None` for none, or where one is not finite.
pub fn interval(values: &[f64]) -> Option<Interval> {
    let Moments { count, mean, deviation } = moments(values)?;
    let ends = reach(deviation / (count as f64).sqrt(), count as f64 - 1.0)
        .map(|reach| [mean - reach, mean + reach]);
    Some(Interval { mean, ends, seeds: values.len() })
}

/// Whether the mean of `a` differs from that of `b`, whose variances may differ: the t-test of
/// Welch 1947 with the degrees of freedom of Welch and Satterthwaite. `None` where one of them is
/// empty or holds a number that is not finite.
pub fn welch(a: &[f64], b: &[f64]) -> Option<Comparison> {
    let (of_a, of_b) = (moments(a)?, moments(b)?);
    let seeds = Seeds::Apart(a.len(), b.len());
    let [(share_a, free_a), (share_b, free_b)] =
        [of_a, of_b].map(|m| (m.deviation.powi(2) / m.count as f64, m.count as f64 - 1.0));
    let difference = of_a.mean - of_b.mean;
    let error = (share_a + share_b).sqrt();
    let freedom = (free_a >= 1.0 && free_b >= 1.0).then(|| {
        (share_a + share_b).powi(2) / (share_a.powi(2) / free_a + share_b.powi(2) / free_b)
    });
    let scale = of_a.mean.abs().max(of_b.mean.abs());
    Some(Comparison::new(difference, error, freedom, scale, seeds))
}

/// Whether `a` differs from `b` where the same seed was used for both, which takes out what the
/// seed does to both alike: the paired t-test (Student 1908) over the seeds that are in both, each
/// given with its number. `None` where there is no such seed or a number is not finite.
pub fn paired(a: &[(u64, f64)], b: &[(u64, f64)]) -> Option<Comparison> {
    let partner = |seed: u64| b.iter().find(|(other, _)| *other == seed).map(|(_, value)| *value);
    let pairs: Vec<(f64, f64)> =
        a.iter().filter_map(|(seed, value)| Some((*value, partner(*seed)?))).collect();
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| a - b).collect();
    let Moments { count, mean, deviation } = moments(&differences)?;
    let error = deviation / (count as f64).sqrt();
    let scale = pairs.iter().fold(0.0, |scale: f64, (a, b)| scale.max(a.abs()).max(b.abs()));
    let freedom = (count > 1).then_some(count as f64 - 1.0);
    Some(Comparison::new(mean, error, freedom, scale, Seeds::Paired(pairs.len())))
}

/// A mean, or a difference of two means, with what is known about its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean or the difference.
    pub mean: f64,
    /// Of each group of independent numbers: their variance and how many there are.
    groups: [(f64, usize); 2],
}

impl Estimate {
    /// Of the mean of one group: numbers, or the differences within pairs. `None` for no number, or
    /// where one is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        let Moments { mean, deviation, .. } = moments(values)?;
        Some(Self { mean, groups: [(deviation.powi(2), values.len()), (0.0, usize::MAX)] })
    }

    /// Of the mean of `a` less that of `b`, drawn apart from each other, whose variances may differ
    /// (Welch 1947). `None` where one of them is empty or holds a number that is not finite.
    pub fn apart(a: &[f64], b: &[f64]) -> Option<Self> {
        let (of_a, of_b) = (moments(a)?, moments(b)?);
        let groups = [(of_a.deviation.powi(2), a.len()), (of_b.deviation.powi(2), b.len())];
        Some(Self { mean: of_a.mean - of_b.mean, groups })
    }

    /// Seeds of the smaller group.
    pub fn seeds(&self) -> usize {
        self.groups[0].1.min(self.groups[1].1)
    }

    /// Both ends of the interval outside of which the truth lies with the probability `side` to each
    /// side; `None` where there are too few seeds.
    pub fn ends(&self, side: f64) -> Option<[f64; 2]> {
        self.ends_with(side, |seeds| seeds)
    }

    /// The same if each group had as many numbers as `count` makes of those that it has, and varied as
    /// it does.
    fn ends_with(&self, side: f64, count: impl Fn(usize) -> usize) -> Option<[f64; 2]> {
        // The mean of a second group that does not exist is known.
        let real = self.groups.iter().filter(|(_, seeds)| *seeds != usize::MAX);
        let groups: Vec<(f64, f64)> = real.map(|(v, n)| (*v, count(*n) as f64)).collect();
        let error: f64 = groups.iter().map(|(variance, n)| variance / n).sum();
        if groups.iter().any(|(_, n)| *n < 2.0) {
            return None;
        }
        if error.sqrt() <= 1e-12 * self.mean.abs() {
            return Some([self.mean; 2]);
        }
        // The degrees of freedom of Welch and Satterthwaite; n - 1 for one group.
        let shares: f64 = groups.iter().map(|(v, n)| (v / n).powi(2) / (n - 1.0)).sum();
        let t = StudentsT::new(0.0, 1.0, error.powi(2) / shares).ok()?;
        let reach = error.sqrt() * t.inverse_cdf(1.0 - side);
        Some([self.mean - reach, self.mean + reach])
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
        let decided = |more: usize| self.ends_with(side, |n| n + more).is_some_and(&decides);
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
    let (of_a, of_b) = (moments(&a)?, moments(&b)?);
    let products = pairs.iter().map(|(a, b)| (a - of_a.mean) * (b - of_b.mean));
    let covariance = products.sum::<f64>() / (pairs.len() as f64 - 1.0);
    let r = covariance / (of_a.deviation * of_b.deviation);
    (pairs.len() > 2 && r.is_finite()).then_some(r)
}

/// Mean and deviation of numbers that all are finite, at least one.
fn moments(values: &[f64]) -> Option<Moments> {
    let sound = !values.is_empty() && values.iter().all(|value| value.is_finite());
    sound.then(|| Moments::of(values))
}

/// How far a 95 % confidence interval reaches to each side of an estimate with this standard error
/// and so many degrees of freedom; `None` without any.
fn reach(error: f64, freedom: f64) -> Option<f64> {
    if freedom.is_nan() || freedom < 1.0 - 1e-9 {
        return None;
    }
    let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(error * t.inverse_cdf(1.0 - LEVEL / 2.0))
}

impl Comparison {
    /// From a difference with its standard error and degrees of freedom, of numbers about as large
    /// as `scale`.
    fn new(difference: f64, error: f64, freedom: Option<f64>, scale: f64, seeds: Seeds) -> Self {
        // What is left of equal numbers after rounding is no difference and no deviation.
        let nothing = scale * 1e-12;
        let (ends, p) = match freedom {
            None => (None, None),
            Some(_) if error <= nothing => {
                let same = difference.abs() <= nothing;
                (Some([difference, difference]), Some(if same { 1.0 } else { 0.0 }))
            }
            Some(freedom) => (
                reach(error, freedom).map(|reach| [difference - reach, difference + reach]),
                StudentsT::new(0.0, 1.0, freedom)
                    .ok()
                    .map(|t| 2.0 * t.sf((difference / error).abs())),
            ),
        };
        let difference = if difference.abs() <= nothing { 0.0 } else { difference };
        Self { difference, ends, p, seeds }
    }

    /// Whether the difference is hardly chance: p below [`LEVEL`].
    pub fn is_significant(&self) -> bool {
        self.p.is_some_and(|p| p < LEVEL)
    }

    /// As a sentence without a full stop, such as `casq is 0.4 points below qsgd; over 3 seeds each
    /// this may be chance (p = 0.31)`. `say` says how large a difference of either sign is, without
    /// the sign.
    pub fn in_words(&self, a: &str, b: &str, say: impl Fn(f64) -> String) -> String {
        let amount = say(self.difference.abs());
        let relation = match self.difference {
            d if d > 0.0 => format!("{a} is {amount} above {b}"),
            d if d < 0.0 => format!("{a} is {amount} below {b}"),
            _ if self.p.is_none() => format!("{a} and {b} are the same"),
            _ => return format!("{a} and {b} are the same {}", self.over()),
        };
        format!("{relation}; {}", self.chance())
    }

    /// What can be said about chance, such as `over 3 seeds each this may be chance (p = 0.31)`.
    pub fn chance(&self) -> String {
        let over = self.over();
        match self.p {
            None => format!("{over} nothing can be said about chance"),
            Some(p) if p < LEVEL => format!("{over} this is hardly chance ({})", p_value(p)),
            Some(p) => format!("{over} this may be chance ({})", p_value(p)),
        }
    }

    /// What it rests on, such as `over 3 seeds each`.
    fn over(&self) -> String {
        match self.seeds {
            Seeds::Apart(1, 1) | Seeds::Paired(1) => "with one seed".to_string(),
            Seeds::Apart(1, _) | Seeds::Apart(_, 1) => "with one seed on one side".to_string(),
            Seeds::Apart(a, b) if a == b => format!("over {a} seeds each"),
            Seeds::Apart(a, b) => format!("over {a} and {b} seeds"),
            Seeds::Paired(pairs) => format!("over {pairs} pairs of runs with the same seed"),
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
    fn intervals_are_students() {
        let three = interval(&A).unwrap();
        close(three.mean, 0.9123333333333333);
        both_close(three.ends, [0.8986517696366945, 0.9260148970299722]);
        assert_eq!(three.seeds, 3);
        both_close(interval(&[0.4, 0.6]).unwrap().ends, [-0.7706204736174691, 1.770620473617469]);
        assert_eq!(interval(&[0.5]).unwrap(), Interval { mean: 0.5, ends: None, seeds: 1 });
        assert_eq!(interval(&[0.5, 0.5]).unwrap().ends, Some([0.5, 0.5]));
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&[0.5, f64::NAN]), None);
    }

    #[test]
    fn welch_agrees_with_scipy() {
        let test = |a: &[f64], b: &[f64], p: f64, ends: [f64; 2]| {
            let found = welch(a, b).unwrap();
            close(found.p.unwrap(), p);
            both_close(found.ends, ends);
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
        let seeded = |values: [f64; 3]| [(1, values[0]), (2, values[1]), (3, values[2])];
        let mut b = seeded(B).to_vec();
        b.reverse();
        b.push((9, 0.1));
        let found = paired(&seeded(A), &b).unwrap();
        assert_eq!(found.seeds, Seeds::Paired(3));
        close(found.p.unwrap(), 0.20441292022926333);
        both_close(found.ends, [-0.021559284554123037, 0.008559284554123064]);
        assert_eq!(paired(&seeded(A), &[(7, 0.5)]), None);
    }

    /// `stats.ttest_rel(A, B).confidence_interval(0.90)`, the same of `ttest_ind` with
    /// `equal_var=False`, and `stats.pearsonr` of SciPy 1.17.1.
    #[test]
    fn estimates_agree_with_scipy() {
        let differences: Vec<f64> = A.iter().zip(B).map(|(a, b)| a - b).collect();
        let paired = Estimate::of(&differences).unwrap();
        both_close(paired.ends(0.05), [-0.016719949531237985, 0.0037199495312380025]);
        let apart = Estimate::apart(&A, &B).unwrap();
        both_close(apart.ends(0.05), [-0.014939234466653541, 0.0019392344666536374]);
        close(apart.ends(0.025).unwrap()[0], -0.01775735544475458);
        let pairs: Vec<(f64, f64)> = A.iter().copied().zip(B).collect();
        close(correlation(&pairs).unwrap(), 0.12725695259516415);
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)]), None);
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 3.0)]), None);
    }

    #[test]
    fn more_seeds_are_counted_as_the_interval_narrows() {
        let estimate = Estimate::of(&[-1.0, 1.0, 3.0]).unwrap();
        assert!(estimate.ends(0.05).unwrap()[0] < 0.0);
        let more = estimate.more_seeds(0.05, 100, |[low, _]| low > 0.0).unwrap();
        let ends = |n: usize| estimate.ends_with(0.05, |seeds| seeds + n).unwrap();
        assert!(ends(more)[0] > 0.0 && ends(more - 1)[0] <= 0.0, "{more}");
        assert_eq!(estimate.more_seeds(0.05, 100, |[low, _]| low > 1.0), None);
        assert_eq!(Estimate::of(&[1.0]).unwrap().ends(0.05), None);
        assert_eq!(Estimate::of(&[1.0, 1.0]).unwrap().ends(0.05), Some([1.0, 1.0]));
        assert_eq!(Estimate::apart(&[1.0], &[1.0, 2.0]).unwrap().ends(0.05), None);
        assert_eq!(Estimate::of(&[f64::NAN]), None);
    }

    #[test]
    fn what_does_not_vary_is_no_chance() {
        let third = 1.0 / 3.0;
        let same = welch(&[third + third + third; 3], &[1.0; 4]).unwrap();
        assert_eq!((same.difference, same.p), (0.0, Some(1.0)));
        let other = welch(&[2.0; 3], &[3.0; 3]).unwrap();
        assert_eq!((other.p, other.ends), (Some(0.0), Some([-1.0, -1.0])));
        assert!(other.is_significant());
        assert!(!welch(&[2.0], &[3.0; 3]).unwrap().is_significant());
        let one_varies = welch(&[0.1; 3], &[0.1, 0.2, 0.3]).unwrap();
        assert!(one_varies.p.unwrap() > 0.05 && one_varies.ends.unwrap()[0] < 0.0);
    }

    #[test]
    fn words_say_what_the_seeds_allow() {
        let say = |a: &[f64], b: &[f64]| welch(a, b).unwrap().in_words("casq", "qsgd", points);
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
        let pairs = paired(&[(1, 0.5), (2, 0.6)], &[(1, 0.4), (2, 0.55)]).unwrap();
        assert!(pairs.chance().starts_with("over 2 pairs of runs with the same seed this may be"));
        assert_eq!(
            [0.31, 0.0321, 0.00423, 1e-9].map(p_value),
            ["p = 0.31", "p = 0.032", "p = 0.0042", "p < 0.001"]
        );
    }
}
