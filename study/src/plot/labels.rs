//! Names beside points, where there is room for them.

use super::svg::{Pixel, width};

/// A rectangle: left, top, right, bottom.
pub(super) type Room = [f64; 4];

/// Finds room beside each of `points` for its name, within `around` and over no point, none of `lines`
/// and no other name: the left end of each name, in the middle of its height. `None` where there is no
/// room, or no name.
pub(super) fn beside(
    points: &[(Pixel, Option<&str>)],
    lines: &[Room],
    size: f64,
    around: Room,
) -> Vec<Option<Pixel>> {
    const POINT: f64 = 6.0;
    let mut taken: Vec<Room> =
        points.iter().map(|((x, y), _)| [x - POINT, y - POINT, x + POINT, y + POINT]).collect();
    taken.extend(lines);
    let place = |((x, y), name): &(Pixel, Option<&str>)| {
        let wide = width((*name)?, size);
        let high = size * 0.62;
        let away = POINT + 3.0;
        let beside = [
            (x + away, *y),
            (x + away * 0.7, y - away),
            (x + away * 0.7, y + away),
            (x - away - wide, *y),
            (x - wide / 2.0, y - away - high * 0.6),
            (x - wide / 2.0, y + away + high * 0.6),
            (x - away * 0.7 - wide, y - away),
            (x - away * 0.7 - wide, y + away),
        ];
        let room = |(left, middle): Pixel| [left, middle - high, left + wide, middle + high];
        let found = beside.into_iter().find(|place| {
            let room = room(*place);
            within(room, around) && !taken.iter().any(|other| overlap(room, *other))
        })?;
        taken.push(room(found));
        Some(found)
    };
    points.iter().map(place).collect()
}

fn within(room: Room, around: Room) -> bool {
    room[0] >= around[0] && room[1] >= around[1] && room[2] <= around[2] && room[3] <= around[3]
}

fn overlap(a: Room, b: Room) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

/// A text in lines of about so many characters at most, broken between words; what does not fit
/// into `lines` is left out, with an ellipsis in its place.
pub(super) fn wrap(text: &str, most: usize, lines: usize) -> Vec<String> {
    let mut wrapped = vec![String::new()];
    for word in text.split_whitespace() {
        let full = wrapped.len() == lines;
        let last = wrapped.last_mut().expect("invariant: there is a line");
        let long = last.chars().count() + 1 + word.chars().count() > most;
        if last.is_empty() {
            last.push_str(word);
        } else if long && !full {
            wrapped.push(word.into());
        } else {
            last.push(' ');
            last.push_str(word);
        }
    }
    for line in &mut wrapped {
        if line.chars().count() > most {
            *line = line.chars().take(most - 1).collect::<String>().trim_end().to_string() + "…";
        }
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_over_nothing() {
        let around = [0.0, 0.0, 300.0, 100.0];
        let points: Vec<(Pixel, Option<&str>)> = (0..12)
            .map(|i| ((20.0 + 20.0 * f64::from(i), 50.0 + f64::from(i % 3)), Some("topk 0.01")))
            .collect();
        let found = beside(&points, &[], 12.0, around);
        let rooms: Vec<Room> = found
            .iter()
            .flatten()
            .map(|(x, y)| [*x, y - 7.0, x + width("topk 0.01", 12.0), y + 7.0])
            .collect();
        assert!(rooms.len() >= 3, "{rooms:?}");
        for (i, room) in rooms.iter().enumerate() {
            assert!(within(*room, around));
            assert!(rooms[..i].iter().all(|other| !overlap(*room, *other)), "{rooms:?}");
            let over =
                |((x, y), _): &(Pixel, Option<&str>)| overlap(*room, [*x, *y, x + 1.0, y + 1.0]);
            assert!(!points.iter().any(over), "{rooms:?}");
        }
        let line = [30.0, 0.0, 31.0, 100.0];
        let point = [((20.0, 50.0), Some("right"))];
        assert_eq!(beside(&point, &[line], 12.0, around), [None], "left there is no room");
        assert_eq!(beside(&[((5.0, 5.0), None)], &[], 12.0, around), [None]);
    }

    #[test]
    fn long_names_are_broken() {
        assert_eq!(wrap("topk feedback ratio 0.01", 16, 2), ["topk feedback", "ratio 0.01"]);
        assert_eq!(wrap("a bb ccc dddd eeeee", 8, 2), ["a bb ccc", "dddd ee…"]);
        assert_eq!(wrap("", 8, 2), [""]);
        assert_eq!(wrap("abcdefghij", 5, 2), ["abcd…"]);
    }
}
