//! A report as data: what HTML, Markdown and the terminal show alike.

use crate::plot::{Figure, Style};

/// A part of a report, in order.
#[derive(Clone, Debug)]
pub(super) enum Block {
    /// A heading; 2 is the level below the title.
    Heading(u8, String),
    /// A paragraph.
    Text(String),
    /// What to know when reading what is above.
    Note(String),
    /// What was made with what, with its name in bold: short lines.
    Facts(Vec<(String, String)>),
    /// A table.
    Table(PageTable),
    /// The same of each of several things, such as links, of which a page shows one at a time.
    Choice(String, Vec<(String, Vec<Block>)>),
    /// One quantity against one thing or another.
    Plots(Vec<Plot>),
    /// Things that went wrong, or that must be known.
    Warnings(Vec<String>),
    /// Commands, one a line.
    Commands(Vec<String>),
    /// What few people want to see, under a title that opens it.
    Folded(String, Vec<Block>),
}

/// A figure with what it is called.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    /// The name of its file, without `.svg`.
    pub(super) name: String,
    /// What its quantity is shown against.
    pub(super) against: String,
    /// What to know when looking at it, if anything.
    pub(super) caption: String,
    /// The figure.
    pub(super) figure: Figure,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(super) struct PageTable {
    /// Titles of columns, and whether they hold figures.
    pub(super) columns: Vec<(String, bool)>,
    /// Rows, as long as there are columns.
    pub(super) rows: Vec<Vec<Cell>>,
    /// What to know when reading it.
    pub(super) note: String,
}

/// A cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell {
    /// Its text.
    pub(super) text: String,
    /// What must stand beside it, such as `diverged 1/3`.
    pub(super) badge: Option<String>,
    /// Smaller, below it.
    pub(super) below: String,
    /// What it is about, as plots show it.
    pub(super) style: Option<Style>,
    /// How it is meant.
    pub(super) tone: Tone,
}

/// How a cell is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// Well.
    Good,
    /// Badly.
    Bad,
    /// As nothing to go by.
    Faint,
}

impl PageTable {
    /// A table of these columns, those that hold figures marked by `#` in front.
    pub(super) fn new(columns: &[&str]) -> Self {
        let column = |title: &&str| match title.strip_prefix('#') {
            Some(title) => (title.to_string(), true),
            None => (title.to_string(), false),
        };
        Self { columns: columns.iter().map(column).collect(), ..Self::default() }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl Cell {
    /// A dash, where there is no figure.
    pub(super) fn none() -> Self {
        Self { text: "–".into(), tone: Tone::Faint, ..Self::default() }
    }

    /// A text, or a dash in its place.
    pub(super) fn or_none(text: Option<String>) -> Self {
        text.map_or_else(Self::none, Self::from)
    }
}
