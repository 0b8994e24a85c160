//! What `data verify` tells of data of one's own.

use std::fmt;
use std::path::PathBuf;

use crate::files::FileSum;

/// What a data set holds, every sample read. Its [`Display`](fmt::Display) is a table for people.
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// Where it lies.
    pub path: PathBuf,
    /// What a sample is.
    pub sample: String,
    /// Each class, and how many samples there are of it: to train on, and to test on.
    pub classes: Vec<(String, u64, u64)>,
    /// The test samples that are also training samples, value by value: the name of each, and that of the training
    /// sample.
    pub doubles: Vec<(String, String)>,
    /// The files that were read.
    pub files: Vec<FileSum>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// How many doubles are named.
const SHOWN: usize = 8;

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.path.display(), self.sample)?;
        for file in &self.files {
            let (bytes, sum) = (grouped(file.bytes), &file.sha256[..12]);
            writeln!(f, "  {:<28}{bytes:>14} bytes  sha256 {sum}…", file.name)?;
        }
        writeln!(f, "  {:<28}{:>10}{:>10}", "class", "train", "test")?;
        for (name, train, test) in &self.classes {
            writeln!(f, "  {name:<28}{:>10}{:>10}", grouped(*train), grouped(*test))?;
        }
        let [train, test] = [0, 1].map(|part| {
            let count = |class: &(String, u64, u64)| if part == 0 { class.1 } else { class.2 };
            grouped(self.classes.iter().map(count).sum())
        });
        writeln!(f, "  {:<28}{train:>10}{test:>10}", "all")?;
        let doubles = self.doubles.len();
        write!(f, "  {} test samples are also training samples", grouped(doubles as u64))?;
        for (test, train) in self.doubles.iter().take(SHOWN) {
            write!(f, "\n    {test} is {train}")?;
        }
        if doubles > SHOWN {
            write!(f, "\n    and {} more", grouped((doubles - SHOWN) as u64))?;
        }
        for warning in &self.warnings {
            write!(f, "\n  note: {warning}")?;
        }
        Ok(())
    }
}

/// `12345` as `12,345`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        let pairs = [(0, "0"), (999, "999"), (1000, "1,000"), (30_730_000, "30,730,000")];
        for (number, text) in pairs {
            assert_eq!(grouped(number), text);
        }
    }
}
