//! Quantities and tables as a person reads them: the one place that turns figures into text for
//! terminals, reports and plots.
//!
//! | function | text |
//! |---|---|
//! | [`duration`] | `50 ms`, `7.36 s`, `2 h`: a figure with its unit |
//! | [`clock`] | `0.8s`, `13m 20s`, `2h 05m`: a span to wait for, in at most 7 columns |
//! | [`percent`], [`percent_column`] | `2.5 %` in a sentence, `2.5%` with one place in a column |
//! | [`percent_to`], [`milliseconds`] | `93.40 %`, `7.40 ms`: with as many places as are asked for |
//! | [`bytes`], [`bandwidth`] | `1.5 MB`, `100 Mbit/s`: powers of ten |
//! | [`count`], [`grouped`], [`plural`] | `12.5k`, `12,500`, `12,500 steps` |
//! | [`three_digits`], [`about`] | `0.404`, `8 ± 1.4` |
//! | [`factor`] | `41.7`, `1.003`: how far from 1 |
//! | [`wrapped`] | a text in lines of at most so many letters |
//! | [`Table`] | rows under titles, no wider than the terminal |

mod table;

use indicatif::HumanCount;
pub use table::{Column, Table};

/// Seconds: `50 ms`, `2 s`, `5 min`, `3 h`, `2 d`.
pub fn duration(seconds: f64) -> String {
    let (factor, unit) = unit_of_time(seconds);
    format!("{} {unit}", three_digits(seconds * factor))
}

/// Seconds with their deviation, in one unit: `7.36 ± 0.11 ms`.
pub fn duration_about(seconds: f64, deviation: f64) -> String {
    let (factor, unit) = unit_of_time(seconds);
    format!("{} {unit}", about(seconds * factor, deviation * factor))
}

/// The unit in which seconds are short, and how many of it are a second.
fn unit_of_time(seconds: f64) -> (f64, &'static str) {
    match seconds {
        0.0 => (1.0, "s"),
        s if s < 1e-3 => (1e6, "µs"),
        s if s < 1.0 => (1e3, "ms"),
        s if s < 100.0 => (1.0, "s"),
        s if s < 6_000.0 => (1.0 / 60.0, "min"),
        s if s < 172_800.0 => (1.0 / 3_600.0, "h"),
        _ => (1.0 / 86_400.0, "d"),
    }
}

/// A span of time in at most 7 columns: `0.8s`, `45s`, `13m 20s`, `2h 05m`, `3d 04h`.
pub fn clock(seconds: f64) -> String {
    if seconds < 9.95 {
        return format!("{:.1}s", seconds.max(0.0));
    }
    let whole = seconds.round() as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3600, whole / 86400);
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{minutes}m {:02}s", whole % 60),
        3600..86400 => format!("{hours}h {:02}m", minutes % 60),
        _ => format!("{days}d {:02}h", hours % 24),
    }
}

/// A fraction in percent, without needless noughts: `50 %`, `2.5 %`.
pub fn percent(fraction: f64) -> String {
    format!("{} %", three_digits(fraction * 100.0))
}

/// A fraction in percent with one place, so that a column of them lines up: `100.0%`, `2.5%`.
pub fn percent_column(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

/// A fraction in percent with so many places, noughts among them: `93.40 %`.
pub fn percent_to(fraction: f64, places: usize) -> String {
    format!("{:.places$} %", fraction * 100.0)
}

/// Seconds in milliseconds with so many places, noughts among them: `7.40 ms`.
pub fn milliseconds(seconds: f64, places: usize) -> String {
    format!("{:.places$} ms", seconds * 1e3)
}

/// Bytes, in powers of ten: `512 B`, `1.5 MB`.
pub fn bytes(bytes: f64) -> String {
    let (value, unit) = match bytes {
        b if b < 999.5 => (b, "B"),
        b if b < 999.5e3 => (b / 1e3, "kB"),
        b if b < 999.5e6 => (b / 1e6, "MB"),
        b if b < 999.5e9 => (b / 1e9, "GB"),
        b => (b / 1e12, "TB"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Bits per second: `100 Mbit/s`.
pub fn bandwidth(bits: f64) -> String {
    let (value, unit) = match bits {
        b if b < 1e6 => (b / 1e3, "kbit/s"),
        b if b < 1e9 => (b / 1e6, "Mbit/s"),
        b => (b / 1e9, "Gbit/s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// How many, in steps of a thousand where they are many: `750`, `12.5k`, `1.5M`.
pub fn count(value: f64) -> String {
    match value.abs() {
        v if v < 9_999.5 => three_digits(value),
        v if v < 999.5e3 => format!("{}k", three_digits(value / 1e3)),
        v if v < 999.5e6 => format!("{}M", three_digits(value / 1e6)),
        _ => format!("{}G", three_digits(value / 1e9)),
    }
}

/// How many exactly, in groups of three digits: `272,474`.
pub fn grouped(count: u64) -> String {
    HumanCount(count).to_string()
}

/// How many of a thing: `1 step`, `1,960 steps`.
pub fn plural(count: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// The words of a text in lines of at most so many letters; a longer word has a line of its own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// A number with its deviation, unless that is nothing beside it: `0.404`, `8 ± 1.4`.
pub fn about(value: f64, deviation: f64) -> String {
    match deviation > 5e-4 * value.abs() {
        true => format!("{} ± {}", three_digits(value), two_digits(deviation)),
        false => three_digits(value),
    }
}

/// A plain number with three significant digits: `0.0042`, `0.05`, `1.67`, `33.3`, `833`.
pub fn three_digits(value: f64) -> String {
    digits(value, 3)
}

/// A factor: three digits, near 1 as many as tell it from 1: `41.7`, `1.003`, `0.9996`.
pub fn factor(value: f64) -> String {
    let count = (2..8).find(|count| (value - 1.0).abs() >= 0.1f64.powi(*count));
    let below = i32::from(value >= 1.0);
    digits(value, count.map_or(3, |count| (count + below).max(3)))
}

/// A plain number with two significant digits, for a deviation.
pub fn two_digits(value: f64) -> String {
    digits(value, 2)
}

/// A plain number with so many significant digits, without needless noughts.
fn digits(value: f64, count: i32) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if !value.is_finite() {
        return "–".into();
    }
    if !(1e-4..1e7).contains(&value.abs()) {
        return format!("{value:.1e}");
    }
    // Rounding may add a digit in front: 9.996 becomes 10.
    let rounded: f64 =
        format!("{value:.0$e}", (count - 1).max(0) as usize).parse().unwrap_or(value);
    let places = (count - 1 - rounded.abs().log10().floor() as i32).max(0) as usize;
    let text = format!("{rounded:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_short() {
        for (seconds, expected) in [
            (0.05, "50 ms"),
            (0.0004, "400 µs"),
            (0.0, "0 s"),
            (2.0, "2 s"),
            (33.33, "33.3 s"),
            (100.0, "1.67 min"),
            (7200.0, "2 h"),
            (864_000.0, "10 d"),
        ] {
            assert_eq!(duration(seconds), expected);
        }
        assert_eq!(duration_about(0.00736, 0.000_112), "7.36 ± 0.11 ms");
        assert_eq!([5e5, 1e8, 2.5e10].map(bandwidth), ["500 kbit/s", "100 Mbit/s", "25 Gbit/s"]);
        assert_eq!([12.0, 1.5e6, 999.9e6].map(bytes), ["12 B", "1.5 MB", "1 GB"]);
        assert_eq!([160.0, 12_500.0, 2e6].map(count), ["160", "12.5k", "2M"]);
        assert_eq!([0.5, 0.025].map(percent), ["50 %", "2.5 %"]);
        assert_eq!([1.0, 0.0251].map(percent_column), ["100.0%", "2.5%"]);
        assert_eq!([percent_to(0.934, 2), percent_to(0.125, 0)], ["93.40 %", "12 %"]);
        assert_eq!([milliseconds(0.0074, 2), milliseconds(1.5, 0)], ["7.40 ms", "1500 ms"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(wrapped("a bc  def ghijkl m", 5), ["a bc", "def", "ghijkl", "m"]);
        assert_eq!([plural(1, "step"), plural(1960, "step")], ["1 step", "1,960 steps"]);
    }

    #[test]
    fn numbers_keep_the_digits_that_count() {
        assert_eq!(
            [0.0, 0.000_123_4, 0.404_4, 9.999, 123_456.0, 2e9, f64::NAN].map(three_digits),
            ["0", "0.000123", "0.404", "10", "123456", "2.0e9", "–"]
        );
        assert_eq!(
            [41.72, 1.054, 1.0033, 0.9996, 1.000_04, 1.0].map(factor),
            ["41.7", "1.05", "1.003", "0.9996", "1.00004", "1"]
        );
        assert_eq!(about(7.0, 0.1149), "7 ± 0.11");
        assert_eq!(about(4.06, 1e-15), "4.06");
    }

    #[test]
    fn spans_of_time_fit_seven_columns() {
        for (seconds, expected) in [
            (-1.0, "0.0s"),
            (0.04, "0.0s"),
            (9.94, "9.9s"),
            (9.96, "10s"),
            (59.4, "59s"),
            (59.6, "1m 00s"),
            (800.0, "13m 20s"),
            (3599.6, "1h 00m"),
            (7500.0, "2h 05m"),
            (86400.0 * 3.2, "3d 04h"),
            (f64::NAN, "0s"),
        ] {
            assert_eq!(clock(seconds), expected, "{seconds}");
        }
    }
}
