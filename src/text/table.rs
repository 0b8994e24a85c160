//! Rows under titles, for the terminal.

use console::{measure_text_width, truncate_str};
use std::fmt::{self, Display};

/// Spaces between two columns.
const GAP: usize = 2;

/// A column of a [`Table`].
#[derive(Clone, Debug)]
pub struct Column {
    title: String,
    right: bool,
    width: usize,
    shrinks_to: Option<usize>,
    keeps_end: bool,
}

impl Column {
    /// Words, set to the left under this title, which may have several lines.
    pub fn left(title: impl Into<String>) -> Self {
        let title = title.into();
        let width = title.lines().map(measure_text_width).max().unwrap_or(0);
        Self { title, right: false, width, shrinks_to: None, keeps_end: false }
    }

    /// Figures, set to the right.
    pub fn right(title: impl Into<String>) -> Self {
        Self { right: true, ..Self::left(title) }
    }

    /// At least this wide, whatever is in it: for lines that are printed one by one.
    #[must_use]
    pub fn at_least(self, width: usize) -> Self {
        Self { width: self.width.max(width), ..self }
    }

    /// Cells may be cut to this width where the table would be too wide.
    #[must_use]
    pub fn shrinks_to(self, width: usize) -> Self {
        Self { shrinks_to: Some(width), ..self }
    }

    /// A cell that is cut loses its beginning: of a path the end tells more.
    #[must_use]
    pub fn keeps_end(self) -> Self {
        Self { keeps_end: true, ..self }
    }

    fn cell(&self, text: &str, width: usize) -> String {
        let text = match measure_text_width(text) > width {
            true if self.keeps_end => {
                let letters: Vec<char> = text.chars().collect();
                let kept = letters.len().saturating_sub(width.saturating_sub(1));
                format!("…{}", String::from_iter(&letters[kept.min(letters.len())..]))
            }
            true => truncate_str(text, width, "…").into_owned(),
            false => text.to_string(),
        };
        let space = " ".repeat(width.saturating_sub(measure_text_width(&text)));
        if self.right { space + &text } else { text + &space }
    }
}

/// Rows under titles.
///
/// ```
/// use gradwire::text::{Column, Table};
/// let mut table = Table::new([Column::left("scheme"), Column::right("bits per\nparameter")]);
/// table.row(["dense", "32"]);
/// table.row(["topk 1 %", "0.404"]);
/// assert_eq!(table.to_string(), "\
/// scheme     bits per
///           parameter
/// dense            32
/// topk 1 %      0.404
/// ");
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row: a cell for each column; those that are not given stay empty.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines of the titles, for a table that is printed line by line.
    pub fn head(&self) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        self.titles(&all, &self.columns.iter().map(|column| column.width).collect::<Vec<_>>())
    }

    /// One row as a line, without its end, in columns as wide as their titles and
    /// [`Column::at_least`] ask for.
    pub fn line<T: AsRef<str>>(&self, cells: impl IntoIterator<Item = T>) -> String {
        let cells: Vec<String> = cells
            .into_iter()
            .zip(&self.columns)
            .map(|(cell, column)| {
                let wide = column.width.max(measure_text_width(cell.as_ref()));
                column.cell(cell.as_ref(), wide)
            })
            .collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_string()
    }

    /// All lines, each ended, none wider than `width`: columns that may shrink do so, the first one last.
    /// What still does not fit beside the others stands below, beside the first column again.
    pub fn fit(&self, width: usize) -> String {
        let widths = self.shrunk(width);
        let mut text = String::new();
        let mut next = 1;
        loop {
            let mut shown = vec![0];
            let mut taken = widths.first().copied().unwrap_or(0);
            while next < widths.len() && (shown.len() == 1 || taken + GAP + widths[next] <= width) {
                taken += GAP + widths[next];
                shown.push(next);
                next += 1;
            }
            shown.retain(|column| *column < widths.len());
            text += &self.titles(&shown, &widths);
            for row in &self.rows {
                let cell = |column: usize| row.get(column).map_or("", String::as_str);
                text += &self.aligned(&shown, &widths, cell);
            }
            if next >= widths.len() {
                return text;
            }
            text.push('\n');
        }
    }

    /// How wide each column is in a table of at most `width`, as far as they may shrink.
    fn shrunk(&self, width: usize) -> Vec<usize> {
        let widest = |(place, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(place));
            cells.map(|cell| measure_text_width(cell)).fold(column.width, usize::max)
        };
        let mut widths: Vec<usize> = self.columns.iter().enumerate().map(widest).collect();
        let gaps = GAP * widths.len().saturating_sub(1);
        for place in (1..widths.len()).chain([0]) {
            let over = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
            if let Some(least) = self.columns.get(place).and_then(|column| column.shrinks_to) {
                let least = least.max(self.columns[place].width).min(widths[place]);
                widths[place] = widths[place].saturating_sub(over).max(least);
            }
        }
        widths
    }

    fn titles(&self, shown: &[usize], widths: &[usize]) -> String {
        let lines = |column: &usize| self.columns[*column].title.lines().count();
        let height = shown.iter().map(lines).max().unwrap_or(0);
        let line = |line: usize| {
            let title = |column: usize| self.columns[column].title.lines().nth(line).unwrap_or("");
            self.aligned(shown, widths, title)
        };
        (0..height).map(line).collect()
    }

    fn aligned<'a>(
        &self,
        shown: &[usize],
        widths: &[usize],
        cell: impl Fn(usize) -> &'a str,
    ) -> String {
        let cells: Vec<String> = shown
            .iter()
            .map(|&column| self.columns[column].cell(cell(column), widths[column]))
            .collect();
        format!("{}\n", cells.join(&" ".repeat(GAP)).trim_end())
    }
}

impl Display for Table {
    /// All lines, each ended, as wide as they are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fit(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> Table {
        let mut table = Table::new([
            Column::left("run").shrinks_to(10).keeps_end(),
            Column::left("recipe").shrinks_to(8),
            Column::right("steps"),
            Column::right("test"),
        ]);
        table.row(["grace-quick/resnet20/seed-3", "cifar10-topk", "1480/1500", "91.3%"]);
        table.row(["größe", "new", "7"]);
        table
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        assert_eq!(
            runs().to_string(),
            "run                          recipe            steps   test\n\
             grace-quick/resnet20/seed-3  cifar10-topk  1480/1500  91.3%\n\
             größe                        new                   7\n"
        );
        assert_eq!(Table::new([]).to_string(), "");
    }

    #[test]
    fn what_may_shrink_does_the_first_column_last() {
        let text = runs().fit(56);
        assert!(text.contains("grace-quick/resnet20/seed-3  cifar10-…"), "{text}");
        let text = runs().fit(44);
        assert!(text.contains("…resnet20/seed-3  cifar10…  1480/1500  91.3%\n"), "{text}");
        assert!(text.lines().all(|line| measure_text_width(line) <= 44), "{text}");
    }

    #[test]
    fn what_does_not_fit_stands_below_beside_the_first_column() {
        assert_eq!(
            runs().fit(32),
            "run         recipe        steps\n\
             …20/seed-3  cifar10…  1480/1500\n\
             größe       new               7\n\
             \n\
             run          test\n\
             …20/seed-3  91.3%\n\
             größe\n"
        );
    }

    #[test]
    fn lines_come_one_by_one_in_columns_of_a_known_width() {
        let table =
            Table::new([Column::right("epoch").at_least(7), Column::right("loss").at_least(8)]);
        assert_eq!(table.head(), "  epoch      loss\n");
        assert_eq!(table.line(["1/6", "1.6965"]), "    1/6    1.6965");
        assert_eq!(table.line(["100000/100000", "–"]), "100000/100000         –");
    }
}
