//! A report as Markdown, for pages that show it beside code. Plots are files beside it.

use super::document::{Block, Cell, PageTable, Plot, Tone};

/// The whole page; plots are in the folder `plots`.
pub(super) fn page(title: &str, blocks: &[Block]) -> String {
    format!("# {}\n\n{}", escape(title), render(blocks))
}

fn render(blocks: &[Block]) -> String {
    blocks.iter().map(one).collect()
}

fn one(block: &Block) -> String {
    match block {
        Block::Heading(level, title) => {
            format!("{} {}\n\n", "#".repeat((*level).into()), escape(title))
        }
        Block::Text(text) | Block::Note(text) => format!("{}\n\n", escape(text)),
        Block::Facts(facts) => {
            let fact = |(name, value): &(String, String)| {
                format!("- **{}**: {}\n", escape(name), escape(value))
            };
            facts.iter().map(fact).collect::<String>() + "\n"
        }
        Block::Table(of) => table(of),
        Block::Choice(title, parts) => {
            let part = |(name, blocks): &(String, Vec<Block>)| {
                format!("### {} {}\n\n{}", escape(title), escape(name), render(blocks))
            };
            parts.iter().map(part).collect()
        }
        Block::Plots(plots) => {
            let plot = |Plot { name, figure, caption, .. }: &Plot| {
                let picture = format!("![{}](plots/{name}.svg)\n\n", escape(&figure.title));
                let caption = escape(caption);
                if caption.is_empty() { picture } else { format!("{picture}{caption}\n\n") }
            };
            plots.iter().map(plot).collect()
        }
        Block::Warnings(lines) => {
            let lines = lines.iter().map(|line| format!("- {}\n", escape(line)));
            lines.collect::<String>() + "\n"
        }
        Block::Commands(lines) => {
            // No line may end the fence around it.
            format!("```sh\n{}\n```\n\n", lines.join("\n").replace("```", "'''"))
        }
        Block::Folded(title, blocks) => {
            let (title, inner) = (crate::plot::escape(title), render(blocks));
            format!("<details><summary>{title}</summary>\n\n{inner}</details>\n\n")
        }
    }
}

fn table(table: &PageTable) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let titles = line(table.columns.iter().map(|(title, _)| escape(title)).collect());
    let sides = table.columns.iter().map(|(_, figures)| if *figures { "---:|" } else { "---|" });
    let sides: String = sides.collect();
    let rows: String = table.rows.iter().map(|row| line(row.iter().map(words).collect())).collect();
    let note = match table.note.as_str() {
        "" => String::new(),
        note => format!("{}\n\n", escape(note)),
    };
    format!("{titles}|{sides}\n{rows}\n{note}")
}

fn words(cell: &Cell) -> String {
    let mut words = escape(&cell.text);
    if matches!(cell.tone, Tone::Good | Tone::Bad) {
        words = format!("**{words}**");
    }
    if let Some(badge) = &cell.badge {
        words += &format!(" **({})**", escape(badge));
    }
    if !cell.below.is_empty() {
        words += &format!("<br>{}", escape(&cell.below));
    }
    words
}

/// A text on one line in which nothing is taken for markup.
fn escape(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let escaped = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // The backslash comes first: the others bring some.
    let marks = ['\\', '`', '*', '_', '|', '[', ']', '#', '$', '~'];
    marks.iter().fold(escaped, |text, mark| text.replace(*mark, &format!("\\{mark}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_becomes_markup() {
        let evil = "a|b\n# *c* _d_ `e` [f](g) <b> ``` &amp;";
        let mut table = PageTable::new(&["arm", "#n"]);
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
