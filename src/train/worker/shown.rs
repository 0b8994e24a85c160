//! Which parameters histograms are made of.

use anyhow::{Result, ensure};

/// A parameter's name and dimensions.
pub(super) type About<'a> = (&'a str, &'a [usize]);

/// The places of the parameters that `patterns` name, `*` standing for any letters; without patterns
/// those that tell of the whole model: of each part, the name up to the first dot, the weight with most
/// elements.
///
/// # Errors
/// When a pattern names no parameter.
pub(super) fn shown(patterns: Option<&[String]>, params: &[About<'_>]) -> Result<Vec<usize>> {
    let places = 0..params.len();
    let Some(patterns) = patterns else { return Ok(largest_of_parts(params)) };
    for pattern in patterns {
        ensure!(
            params.iter().any(|(name, _)| matches(pattern, name)),
            "record.histograms: no parameter is named {pattern:?}; the names are {}",
            params.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        );
    }
    let named = |place: &usize| patterns.iter().any(|pattern| matches(pattern, params[*place].0));
    Ok(places.filter(named).collect())
}

fn largest_of_parts(params: &[About<'_>]) -> Vec<usize> {
    let part = |place: usize| params[place].0.split('.').next();
    let size = |place: usize| params[place].1.iter().product::<usize>();
    let weights: Vec<usize> =
        (0..params.len()).filter(|place| params[*place].1.len() > 1).collect();
    let beaten = |place: usize, other: usize| {
        let larger =
            (size(other), std::cmp::Reverse(other)) > (size(place), std::cmp::Reverse(place));
        part(other) == part(place) && larger
    };
    let kept = weights.iter().filter(|place| !weights.iter().any(|other| beaten(**place, *other)));
    kept.copied().collect()
}

/// Whether a name is as a pattern says.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            let mut starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            starts.any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESNET: [About<'_>; 7] = [
        ("conv1.weight", &[16, 3, 3, 3]),
        ("fc.bias", &[10]),
        ("fc.weight", &[10, 64]),
        ("layer1.0.bn1.weight", &[16]),
        ("layer1.0.conv1.weight", &[16, 16, 3, 3]),
        ("layer1.0.conv2.weight", &[16, 16, 3, 3]),
        ("layer1.1.conv1.weight", &[16, 8, 3, 3]),
    ];

    #[test]
    fn without_a_word_each_part_has_its_largest_weight() {
        assert_eq!(shown(None, &RESNET).unwrap(), [0, 2, 4]);
    }

    #[test]
    fn patterns_name_parameters() {
        let of = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            shown(Some(&patterns), &RESNET)
        };
        assert_eq!(of(&["*"]).unwrap(), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(of(&["fc*", "conv1.weight"]).unwrap(), [0, 1, 2]);
        assert_eq!(of(&["layer1.*.conv*.weight"]).unwrap(), [4, 5, 6]);
        assert_eq!(of(&["*größe*", "*"]).map_err(|error| error.to_string().len() > 20), Err(true));
        assert!(of(&[]).unwrap().is_empty());
    }
}
