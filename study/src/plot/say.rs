//! Quantities as a person says them.

/// Seconds: `50 ms`, `2 s`, `5 min`, `3 h`, `2 d`.
pub fn duration(seconds: f64) -> String {
    let (factor, unit) = clock_unit(seconds);
    format!("{} {unit}", three_digits(seconds * factor))
}

/// Seconds with their deviation, in one unit: `7.36 ± 0.11 ms`.
pub fn duration_about(seconds: f64, deviation: f64) -> String {
    let (factor, unit) = clock_unit(seconds);
    format!("{} {unit}", about(seconds * factor, deviation * factor))
}

/// What seconds are multiplied by to be said, and the unit that they are said in.
fn clock_unit(seconds: f64) -> (f64, &'static str) {
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

/// A number with its deviation, if that is not nought beside it: `0.404`, `8 ± 1.4`.
pub fn about(value: f64, deviation: f64) -> String {
    match deviation > 5e-4 * value.abs() {
        true => format!("{} ± {}", three_digits(value), two_digits(deviation)),
        false => three_digits(value),
    }
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

/// How many, in steps of a thousand where they are many: `750`, `12k`, `1.5M`.
pub fn count(value: f64) -> String {
    match value.abs() {
        v if v < 9_999.5 => three_digits(value),
        v if v < 999.5e3 => format!("{}k", three_digits(value / 1e3)),
        v if v < 999.5e6 => format!("{}M", three_digits(value / 1e6)),
        _ => format!("{}G", three_digits(value / 1e9)),
    }
}

/// A fraction in percent, without needless noughts: `50 %`, `2.5 %`.
pub fn percent(fraction: f64) -> String {
    format!("{} %", three_digits(fraction * 100.0))
}

/// A plain number with three digits that count: `0.0042`, `0.05`, `1.67`, `33.3`, `833`.
pub fn three_digits(value: f64) -> String {
    digits(value, 3)
}

/// The same with two digits, for what is uncertain.
pub fn two_digits(value: f64) -> String {
    digits(value, 2)
}

/// A plain number with so many digits that count, without needless noughts.
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
    // Rounding may add a digit in front: 9.996 is said as 10.
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
    fn quantities_are_said_shortly() {
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
        assert_eq!([5e5, 1e8, 2.5e10].map(bandwidth), ["500 kbit/s", "100 Mbit/s", "25 Gbit/s"]);
        assert_eq!([12.0, 1.5e6, 999.9e6].map(bytes), ["12 B", "1.5 MB", "1 GB"]);
        assert_eq!([160.0, 12_500.0, 2e6].map(count), ["160", "12.5k", "2M"]);
        assert_eq!([0.5, 0.025].map(percent), ["50 %", "2.5 %"]);
        assert_eq!(
            [0.0, 0.000_123_4, 0.404_4, 9.999, 123_456.0, 2e9, f64::NAN].map(three_digits),
            ["0", "0.000123", "0.404", "10", "123456", "2.0e9", "–"]
        );
        assert_eq!(about(7.0, 0.1149), "7 ± 0.11");
        assert_eq!(about(4.06, 1e-15), "4.06");
        assert_eq!(duration_about(0.00736, 0.000_112), "7.36 ± 0.11 ms");
    }
}
