//! How what is compared looks: a hue and a mark of its own.

use gradwire_exchange::{Scheme, SchemeConfig};

/// Every hue on white and on dark ground. Black is that of dense gradients. The others are the colours of Okabe
/// & Ito 2008, distinct in all kinds of colour vision, without their yellow, which is too light for white ground;
/// three dark ones are added. The last is that of guides.
pub const HUES: [[&str; 2]; 11] = [
    ["#101010", "#f2f4f7"],
    ["#0072b2", "#4aa3e0"],
    ["#d55e00", "#f2803a"],
    ["#009e73", "#2fc39a"],
    ["#be649b", "#dd92c0"],
    ["#d68e00", "#eeb23a"],
    ["#40a4d9", "#8fd0f5"],
    ["#5830a0", "#a98bf0"],
    ["#854d1e", "#c8936a"],
    ["#7a8b00", "#bccb3a"],
    ["#707070", "#98a1ad"],
];

/// The hues of what is compared, without the last, which is that of [`Style::GUIDE`].
const COMPARED: usize = HUES.len() - 1;

/// The shape at a line's points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Circle,
    Triangle,
    Square,
    Inverted,
    Diamond,
    Cross,
    None,
}

const MARKS: [Mark; 6] =
    [Mark::Circle, Mark::Triangle, Mark::Square, Mark::Inverted, Mark::Diamond, Mark::Cross];

/// How a line and its points look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// The index of its hue in [`HUES`].
    pub(crate) hue: usize,
    pub(super) mark: Mark,
}

impl Style {
    /// Of a line that the others are seen beside.
    pub const GUIDE: Self = Self { hue: COMPARED, mark: Mark::None };

    /// The styles of lines that are compared, by the scheme of each. A hue is given twice only where all have been
    /// given. A scheme has the same hue in most reports: it is the first that it is offered.
    pub fn of_schemes(schemes: &[String]) -> Vec<Self> {
        let known = SchemeConfig::all();
        let mut styles: Vec<Self> = Vec::new();
        for (number, scheme) in schemes.iter().enumerate() {
            let place = known.iter().position(|known| known.about().name == scheme).unwrap_or(0);
            let others = (0..COMPARED - 1).map(|next| 1 + (place + next) % (COMPARED - 1));
            let hues = [0].into_iter().filter(|_| scheme == "dense").chain(others);
            let given = |hue: &usize| styles.iter().filter(|style| style.hue == *hue).count();
            let hue = hues.min_by_key(given).unwrap_or(0);
            let mut looks = (0..MARKS.len())
                .map(|next| Self { hue, mark: MARKS[(number + next) % MARKS.len()] });
            let free = looks.find(|look| !styles.contains(look));
            styles.push(free.unwrap_or(Self { hue, mark: MARKS[0] }));
        }
        styles
    }

    /// Of the line number `number`, from 0, where lines stand for anything but schemes.
    pub fn numbered(number: usize) -> Self {
        Self { hue: 1 + number % (COMPARED - 1), mark: MARKS[number % MARKS.len()] }
    }

    /// With the mark that is `on` places after its own.
    pub(crate) fn with_mark(self, on: usize) -> Self {
        let place = MARKS.iter().position(|mark| *mark == self.mark).unwrap_or(0);
        Self { mark: MARKS[(place + on) % MARKS.len()], ..self }
    }

    /// The mark as a letter.
    pub(crate) fn letter(self) -> char {
        match self.mark {
            Mark::Circle => '●',
            Mark::Triangle => '▲',
            Mark::Square => '■',
            Mark::Inverted => '▼',
            Mark::Diamond => '◆',
            Mark::Cross => '✖',
            Mark::None => ' ',
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hues(schemes: &[&str]) -> Vec<usize> {
        let schemes: Vec<String> = schemes.iter().map(ToString::to_string).collect();
        Style::of_schemes(&schemes).iter().map(|style| style.hue).collect()
    }

    #[test]
    fn no_hue_is_given_twice_while_there_is_another() {
        let all = SchemeConfig::all();
        let names: Vec<&str> = all.iter().map(|scheme| scheme.about().name).collect();
        for compared in [
            &["dense", "powersgd", "signsgd", "topk", "topk", "topk"][..],
            &["dense", "unknown", "of-another-program"],
            &names[..10],
        ] {
            let mut hues = hues(compared);
            assert_eq!(hues[0], 0, "dense is black: {hues:?}");
            hues.sort_unstable();
            hues.dedup();
            assert_eq!(hues.len(), compared.len(), "{compared:?}: {hues:?}");
        }
        let schemes = [vec!["topk".to_string(); 30], vec!["dense".into(); 20]].concat();
        let styles = Style::of_schemes(&schemes);
        for (place, style) in styles.iter().enumerate() {
            assert!(!styles[..place].contains(style), "line {place} looks like another");
        }
    }
}
