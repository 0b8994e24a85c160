//! A report's table for a paper: LaTeX, with the rules of the package booktabs.

use super::tables::{accuracy, bits};
use super::tasks::{self, Arm, Task};
use super::words;
use crate::results::Results;
use crate::statistics::SeedMean;
use gradwire::text;
use std::cmp::Ordering;

/// The arms of each task with mean ± deviation over seeds, the best in bold.
pub(super) fn latex(results: &Results) -> String {
    let head = "% Wants \\usepackage{booktabs} in the preamble.\n";
    let tables = tasks::tasks(results).iter().map(table).collect::<Vec<_>>();
    head.to_string() + &tables.join("\n")
}

/// A column: its title, where it is read, how it is written, and which of two is better.
type LatexColumn = (&'static str, fn(&Task<'_>, &Arm<'_>) -> Option<SeedMean>, Written, Better);
type Written = fn(&SeedMean) -> String;
type Better = fn(f64, f64) -> Ordering;

/// Lower is better.
fn less(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

const COLUMNS: [LatexColumn; 4] = [
    ("Accuracy (\\%)", |_, arm| arm.mean(accuracy), percent, |a, b| a.total_cmp(&b)),
    ("Bits/param.", |_, arm| arm.mean(bits), |of| figures(of.mean), less),
    (
        "Reduction",
        |_, arm| arm.mean(|m| Some(1.0 / m.summary.compression_ratio()?)),
        |of| figures(of.mean) + "×",
        |a, b| a.total_cmp(&b),
    ),
    (
        "Step (ms)",
        |task, arm| arm.on_link(task.links.first()?, |link| link.step_seconds),
        milliseconds,
        less,
    ),
];

/// A mean of fractions in percent without the sign, which stands in the title.
fn percent(of: &SeedMean) -> String {
    words::accuracy(of).trim_end_matches(" %").to_string()
}

/// Three significant digits, noughts among them: the numbers of a column are told to the same precision.
fn figures(value: f64) -> String {
    let rounded = text::three_digits(value).parse::<f64>().ok().filter(|rounded| *rounded != 0.0);
    let whole = rounded.map_or(0.0, |rounded| rounded.abs().log10().floor());
    format!("{value:.*}", (2.0 - whole).clamp(0.0, 6.0) as usize)
}

/// A mean of seconds in milliseconds, and its deviation to as many places.
fn milliseconds(of: &SeedMean) -> String {
    let mean = figures(1e3 * of.mean);
    let places = mean.split_once('.').map_or(0, |(_, places)| places.len());
    let deviation = of.deviation.map(|deviation| format!(" ± {:.places$}", 1e3 * deviation));
    mean + &deviation.unwrap_or_default()
}

fn table(task: &Task<'_>) -> String {
    let columns: Vec<&LatexColumn> = COLUMNS
        .iter()
        .filter(|(_, of, ..)| task.arms.iter().any(|arm| of(task, arm).is_some()))
        .collect();
    let titles = columns.iter().map(|(title, ..)| format!(" & {title}")).collect::<String>();
    let row = |arm: &Arm<'_>| {
        let cell = |(_, of, written, better): &&LatexColumn| {
            let means = |arm: &Arm<'_>| of(task, arm).map(|of| of.mean);
            let best = task.arms.iter().filter_map(means).max_by(|a, b| better(*a, *b));
            match of(task, arm) {
                None => " & --".to_string(),
                Some(of) if Some(of.mean) == best => {
                    format!(" & \\textbf{{{}}}", escape(&written(&of)))
                }
                Some(of) => format!(" & {}", escape(&written(&of))),
            }
        };
        format!("{}{} \\\\\n", escape(&arm.name()), columns.iter().map(cell).collect::<String>())
    };
    format!(
        "% {}{}\n\\begin{{tabular}}{{@{{}}l{}@{{}}}}\n\\toprule\nScheme{titles} \\\\\n\\midrule\n{}\\bottomrule\n\
         \\end{{tabular}}\n",
        task.label.label.replace('\n', " "),
        task.links.first().map_or_else(String::new, |link| format!("; a step on the link {link}")),
        "r".repeat(columns.len()),
        task.arms.iter().map(row).collect::<String>()
    )
}

/// A text in which nothing is taken for a command.
fn escape(text: &str) -> String {
    let escaped = |c: char| match c {
        '\\' => "\\textbackslash{}".into(),
        '&' | '%' | '$' | '#' | '_' | '{' | '}' => format!("\\{c}"),
        '~' => "\\textasciitilde{}".into(),
        '^' => "\\textasciicircum{}".into(),
        '±' => "$\\pm$".into(),
        '×' => "$\\times$".into(),
        'µ' => "$\\mu$".into(),
        '≤' => "$\\le$".into(),
        '≥' => "$\\ge$".into(),
        '–' => "--".into(),
        '\n' => " ".into(),
        c => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let written = [0.4021, 1.3, 4.491, 9.996, 32.0, 79.52, 1024.7, 0.0].map(figures);
        assert_eq!(written, ["0.402", "1.30", "4.49", "10.0", "32.0", "79.5", "1025", "0.00"]);
    }

    #[test]
    fn the_best_is_bold_and_nothing_is_a_command() {
        let mut results = results();
        results.arms[1].label = r"top_k 1 % \input{x}".into();
        let text = latex(&results);
        let rows: Vec<&str> = text.lines().filter(|line| line.ends_with("\\\\")).collect();
        assert!(rows[1].starts_with(r"dense & \textbf{90.20 $\pm$ 0.10} & 32.0 & 1.00$\times$ & "));
        let name =
            r"top\_k 1 \% \textbackslash{}input\{x\} (diverged 1/3) & 88.15 $\pm$ 0.07 & \textbf{";
        assert!(rows[2].starts_with(name), "{text}");
        assert!(rows[3].contains("SIDCo (missing 1/1) & -- & -- & -- & --"), "{text}");
        assert_eq!(text.matches("\\begin{tabular}{@{}lrrrr@{}}").count(), 2, "{text}");
        let mean = SeedMean { deviation: Some(0.000_033), ..SeedMean::new(&[0.0453]).unwrap() };
        assert_eq!(milliseconds(&mean), "45.3 ± 0.0");
    }
}
