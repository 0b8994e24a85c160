//! A report as Markdown, for pages that show it beside code. Plots are files beside it.

use super::document::{Block, Cell, Plot, Table, Tone};
use std::fmt::Write;

/// The whole page; plots are in the folder `plots`.
pub(super) fn page(title: &str, blocks: &[Block]) -> String {
    let mut text = format!("# {}\n\n", escape(title));
    render(&mut text, blocks);
    text
}

fn render(text: &mut String, blocks: &[Block]) {
    for block in blocks {
        let _ = match block {
            Block::Heading(level, title) => {
                writeln!(text, "{} {}\n", "#".repeat((*level).into()), escape(title))
            }
            Block::Text(paragraph) | Block::Note(paragraph) => {
                writeln!(text, "{}\n", escape(paragraph))
            }
            Block::Facts(facts) => {
                for (name, value) in facts {
                    let _ = writeln!(text, "- **{}**: {}", escape(name), escape(value));
                }
                writeln!(text)
            }
            Block::Table(of) => {
                table(text, of);
                Ok(())
            }
            Block::Plot(Plot { name, title, caption, .. }) => {
                let (title, caption) = (escape(title), escape(caption));
                writeln!(text, "![{title}](plots/{name}.svg)\n\n{caption}\n")
            }
            Block::Warnings(lines) => {
                for line in lines {
                    let _ = writeln!(text, "- {}", escape(line));
                }
                writeln!(text)
            }
            Block::Commands(lines) => writeln!(text, "```sh\n{}\n```\n", fenced(lines)),
            Block::Folded(title, blocks) => {
                let title = super::html::escape(title);
                let _ = writeln!(text, "<details><summary>{title}</summary>\n");
                render(text, blocks);
                writeln!(text, "</details>\n")
            }
        };
    }
}

/// Lines that cannot end the fence around them.
fn fenced(lines: &[String]) -> String {
    lines.join("\n").replace("```", "'''")
}

fn table(text: &mut String, table: &Table) {
    text.push('|');
    for (title, _) in &table.columns {
        let _ = write!(text, " {} |", escape(title));
    }
    text.push_str("\n|");
    for (_, figures) in &table.columns {
        text.push_str(if *figures { "---:|" } else { "---|" });
    }
    text.push('\n');
    for row in &table.rows {
        text.push('|');
        for cell in row {
            let _ = write!(text, " {} |", words(cell));
        }
        text.push('\n');
    }
    text.push('\n');
    if !table.note.is_empty() {
        let _ = writeln!(text, "{}\n", escape(&table.note));
    }
}

fn words(cell: &Cell) -> String {
    let mut words = escape(&cell.text);
    if matches!(cell.tone, Tone::Good | Tone::Bad) {
        words = format!("**{words}**");
    }
    if let Some(badge) = &cell.badge {
        let _ = write!(words, " **({})**", escape(badge));
    }
    if !cell.below.is_empty() {
        let _ = write!(words, "<br>{}", escape(&cell.below));
    }
    words
}

/// A text on one line in which nothing is taken for markup.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '|' | '[' | ']' | '#' | '$' | '~' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_becomes_markup() {
        let evil = "a|b\n# *c* _d_ `e` [f](g) <b> ``` &amp;";
        let mut table = Table::new(&["arm", "#n"]);
        table.rows.push(vec![
            Cell { tone: Tone::Bad, badge: Some("1|2".into()), below: "<i>".into(), ..evil.into() },
            Cell::none(),
        ]);
        let blocks = [Block::Table(table), Block::Commands(vec!["echo ```".into()])];
        let text = page(evil, &blocks);
        assert_eq!(text.lines().next().unwrap().matches('#').count(), 2);
        let row = text.lines().find(|line| line.starts_with("| **a\\|b")).unwrap();
        assert_eq!(row.replace("\\|", "").matches('|').count(), 3, "{row}");
        assert!(row.contains("\\*c\\* \\_d\\_ \\`e\\` \\[f\\](g) &lt;b&gt;"), "{row}");
        assert!(row.contains("**(1\\|2)**<br>&lt;i&gt;"), "{row}");
        assert!(text.contains("|---|---:|"));
        assert_eq!(text.matches("```").count(), 2, "{text}");
    }
}
