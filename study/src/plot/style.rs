//! Which scheme looks how, in every plot alike: a colour and a mark of its own; those of its arms
//! that differ in settings differ in their dashes and in what is inside their marks.

/// A colour of plots: as it is on white ground, and the name by which a page may choose another for
/// its own ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour {
    /// The variable of CSS, without `--plot-`.
    pub(super) name: &'static str,
    /// On white.
    pub(super) rgb: [u8; 3],
}

const fn colour(name: &'static str, r: u8, g: u8, b: u8) -> Colour {
    Colour { name, rgb: [r, g, b] }
}

// The colours of Okabe & Ito 2008, distinct in all kinds of colour vision; their yellow, too
// light for white ground, left out, orange and sky a little darker for the same reason. Two dark
// ones are added, which differ in lightness from their neighbours.
pub(super) const BLUE: Colour = colour("blue", 0, 114, 178);
pub(super) const VERMILLION: Colour = colour("vermillion", 213, 94, 0);
pub(super) const GREEN: Colour = colour("green", 0, 158, 115);
pub(super) const PURPLE: Colour = colour("purple", 190, 100, 155);
pub(super) const ORANGE: Colour = colour("orange", 214, 142, 0);
pub(super) const SKY: Colour = colour("sky", 64, 164, 217);
pub(super) const INDIGO: Colour = colour("indigo", 88, 48, 160);
pub(super) const BROWN: Colour = colour("brown", 133, 77, 30);
pub(super) const BLACK: Colour = colour("black", 1, 1, 1);
pub(super) const INK: Colour = colour("ink", 40, 40, 40);
pub(super) const MUTED: Colour = colour("muted", 112, 112, 112);
pub(super) const GRID: Colour = colour("grid", 225, 225, 225);
pub(super) const GROUND: Colour = colour("ground", 255, 255, 255);

/// The colours of schemes.
const COLOURS: [Colour; 9] = [BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, INDIGO, BROWN, BLACK];

/// The shape at a line's points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Circle,
    Triangle,
    Inverted,
    Square,
    Diamond,
    Cross,
}

/// Every mark.
const MARKS: [Mark; 6] =
    [Mark::Circle, Mark::Triangle, Mark::Inverted, Mark::Square, Mark::Diamond, Mark::Cross];

/// What is inside a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Its colour.
    Full,
    /// Nothing.
    Open,
    /// A small mark of the same shape.
    Dot,
}

/// How a line is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dash {
    Solid,
    Dashed,
    Dotted,
}

/// How a line and its points look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub(super) colour: Colour,
    pub(super) mark: Mark,
    pub(super) fill: Fill,
    pub(super) dash: Dash,
}

/// Colour and mark of each scheme. Schemes that are compared in one paper have colours of their
/// own; of the others, those that share one differ in their marks.
const SCHEMES: [(&str, Colour, Mark); 23] = [
    ("dense", BLACK, Mark::Circle),
    ("half", BLACK, Mark::Square),
    ("nonzero", BLACK, Mark::Diamond),
    ("topk", BLUE, Mark::Circle),
    ("randomk", BROWN, Mark::Inverted),
    ("threshold", BLUE, Mark::Square),
    ("dgc", ORANGE, Mark::Triangle),
    ("gaussiank", PURPLE, Mark::Square),
    ("redsync", SKY, Mark::Diamond),
    ("sidco", VERMILLION, Mark::Circle),
    ("aggregation-aware", GREEN, Mark::Circle),
    ("powersgd", BLUE, Mark::Triangle),
    ("qsgd", GREEN, Mark::Diamond),
    ("nuqsgd", BROWN, Mark::Triangle),
    ("natural", SKY, Mark::Circle),
    ("terngrad", ORANGE, Mark::Square),
    ("signsgd", SKY, Mark::Triangle),
    ("ef-signsgd", INDIGO, Mark::Inverted),
    ("onebit", PURPLE, Mark::Cross),
    ("dqsgd", INDIGO, Mark::Triangle),
    ("casq", VERMILLION, Mark::Diamond),
    ("optquant", PURPLE, Mark::Circle),
    ("alq", PURPLE, Mark::Inverted),
];

/// The look of a scheme that is not in the list: one that no listed scheme has, by the hash of its name
/// (FNV-1a: the same on every machine and with every compiler).
fn unlisted(scheme: &str) -> (Colour, Mark) {
    let looks = MARKS.iter().flat_map(|mark| COLOURS.map(|colour| (colour, *mark)));
    let free: Vec<(Colour, Mark)> =
        looks.filter(|look| SCHEMES.iter().all(|(_, c, m)| (*c, *m) != *look)).collect();
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    free[scheme.bytes().fold(0x811c_9dc5, mix) as usize % free.len()]
}

impl Style {
    /// Of the arm number `variant`, from 0, among those of a scheme. One that has no look of its own
    /// in the list above is given one.
    pub fn of_scheme(scheme: &str, variant: usize) -> Self {
        let listed = SCHEMES.iter().find(|(name, _, _)| *name == scheme);
        let (colour, mark) =
            listed.map_or_else(|| unlisted(scheme), |(_, colour, mark)| (*colour, *mark));
        Self { colour, mark, ..Self::variant(variant) }
    }

    /// Of the line number `number`, from 0, where lines stand for anything but schemes.
    pub fn numbered(number: usize) -> Self {
        const LINES: [Colour; 7] = [BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK];
        const POINTS: [Mark; 5] =
            [Mark::Circle, Mark::Triangle, Mark::Square, Mark::Diamond, Mark::Cross];
        let colour = LINES[number % LINES.len()];
        let mark = POINTS[number % POINTS.len()];
        Self { colour, mark, ..Self::variant(number / LINES.len()) }
    }

    fn variant(variant: usize) -> Self {
        let (fill, dash) = match variant % 9 {
            0 => (Fill::Full, Dash::Solid),
            1 => (Fill::Open, Dash::Dashed),
            2 => (Fill::Dot, Dash::Dotted),
            3 => (Fill::Full, Dash::Dashed),
            4 => (Fill::Open, Dash::Dotted),
            5 => (Fill::Dot, Dash::Solid),
            6 => (Fill::Full, Dash::Dotted),
            7 => (Fill::Open, Dash::Solid),
            _ => (Fill::Dot, Dash::Dashed),
        };
        Self { colour: MUTED, mark: Mark::Circle, fill, dash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire_exchange::{Scheme, SchemeConfig};

    #[test]
    fn every_scheme_has_a_look_of_its_own() {
        let all = SchemeConfig::all();
        let looks: Vec<Style> =
            all.iter().map(|scheme| Style::of_scheme(scheme.about().name, 0)).collect();
        for (name, _, _) in SCHEMES {
            assert!(all.iter().any(|scheme| scheme.about().name == name), "there is no {name}");
        }
        for (i, look) in looks.iter().enumerate() {
            assert!(look.colour != MUTED, "{} has none", all[i].about().name);
            assert!(!looks[..i].contains(look), "{} looks like another", all[i].about().name);
        }
        assert_ne!(Style::of_scheme("topk", 0), Style::of_scheme("topk", 1));
        assert_eq!(Style::of_scheme("topk", 0).colour, Style::of_scheme("topk", 1).colour);
        let arms: Vec<Style> = (0..9).map(|variant| Style::of_scheme("sidco", variant)).collect();
        for (i, arm) in arms.iter().enumerate() {
            assert!(!arms[..i].contains(arm), "arm {i} looks like another");
        }
    }

    #[test]
    fn a_scheme_that_nobody_drew_has_a_look_of_its_own_too() {
        let unknown = Style::of_scheme("of-another-program", 0);
        assert!(SCHEMES.iter().all(|(_, c, m)| (*c, *m) != (unknown.colour, unknown.mark)));
        assert_eq!(unknown, Style::of_scheme("of-another-program", 0));
        assert_ne!(unknown, Style::of_scheme("of-another-program", 1));
    }

    #[test]
    fn what_papers_compare_differs_in_colour() {
        for compared in [
            &["dense", "topk", "dgc", "gaussiank", "redsync", "sidco"][..],
            &["dense", "signsgd", "terngrad", "qsgd", "alq", "dqsgd"],
            &["dense", "casq", "qsgd", "terngrad", "optquant"],
            &["dense", "aggregation-aware", "topk"],
            &["dense", "topk", "randomk", "qsgd", "ef-signsgd", "signsgd"],
        ] {
            let colours: Vec<_> =
                compared.iter().map(|s| Style::of_scheme(s, 0).colour.name).collect();
            for (i, colour) in colours.iter().enumerate() {
                assert!(!colours[..i].contains(colour), "{compared:?}: {colours:?}");
            }
        }
    }

    /// Contrast of at least 2.2 with white, so that a thin line is seen.
    #[test]
    fn colours_are_seen_on_white() {
        let light = |[r, g, b]: [u8; 3]| {
            let linear = |v: u8| {
                let v = f64::from(v) / 255.0;
                if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
        };
        for colour in COLOURS.into_iter().chain([INK, MUTED]) {
            let contrast = 1.05 / (light(colour.rgb) + 0.05);
            assert!(contrast > 2.2, "{colour:?}: {contrast:.2}");
        }
    }
}
