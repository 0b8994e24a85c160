//! A report as one HTML file that needs nothing beside it: no network, no scripts.

use super::document::{Block, Cell, Plot, Table, Tone};
use crate::plot::escape;

/// How pages look, in light and dark.
const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn page(title: &str, blocks: &[Block]) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{}{}</main>\n</body>\n</html>\n",
        contents(blocks),
        render(blocks)
    )
}

/// Where to find what.
fn contents(blocks: &[Block]) -> String {
    let link = |block: &Block| match block {
        Block::Heading(2, text) => {
            Some(format!("<a href=\"#{}\">{}</a>", anchor(text), escape(text)))
        }
        _ => None,
    };
    let links: Vec<String> = blocks.iter().filter_map(link).collect();
    if links.len() < 2 { String::new() } else { format!("<nav>{}</nav>\n", links.concat()) }
}

/// Blocks in order; plots that follow one another stand together.
fn render(blocks: &[Block]) -> String {
    let is_plot = |block: &Block| matches!(block, Block::Plot(_));
    let group = |blocks: &[Block]| {
        let html: String = blocks.iter().map(one).collect();
        if is_plot(&blocks[0]) { format!("<div class=\"plots\">\n{html}</div>\n") } else { html }
    };
    blocks.chunk_by(|a, b| is_plot(a) == is_plot(b)).map(group).collect()
}

fn one(block: &Block) -> String {
    match block {
        Block::Heading(level, text) => {
            let anchor =
                if *level == 2 { format!(" id=\"{}\"", anchor(text)) } else { String::new() };
            format!("<h{level}{anchor}>{}</h{level}>\n", escape(text))
        }
        Block::Text(text) => format!("<p>{}</p>\n", escape(text)),
        Block::Note(text) => format!("<p class=\"note\">{}</p>\n", escape(text)),
        Block::Facts(facts) => {
            let fact = |(name, value): &(String, String)| {
                format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value))
            };
            format!("<dl>\n{}</dl>\n", facts.iter().map(fact).collect::<String>())
        }
        Block::Table(of) => table(of),
        Block::Plot(Plot { caption, svg, .. }) => {
            format!("<figure>{svg}<figcaption>{}</figcaption></figure>\n", escape(caption))
        }
        Block::Warnings(lines) => {
            let lines = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line)));
            format!("<ul class=\"warnings\">\n{}</ul>\n", lines.collect::<String>())
        }
        Block::Commands(lines) => format!("<pre>{}</pre>\n", escape(&lines.join("\n"))),
        Block::Folded(title, blocks) => {
            let (title, inner) = (escape(title), render(blocks));
            format!("<details><summary>{title}</summary>\n{inner}</details>\n")
        }
    }
}

fn table(table: &Table) -> String {
    let title = |(title, figures): &(String, bool)| {
        let class = if *figures { " class=\"figure\"" } else { "" };
        format!("<th{class}>{}</th>", escape(title))
    };
    let titles: String = table.columns.iter().map(title).collect();
    let row = |row: &Vec<Cell>| {
        let cells = row.iter().zip(&table.columns).map(|(of, (_, figures))| cell(of, *figures));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = table.rows.iter().map(row).collect();
    let note = match table.note.as_str() {
        "" => String::new(),
        note => format!("<p class=\"note\">{}</p>\n", escape(note)),
    };
    format!(
        "<div class=\"table\"><table>\n<thead><tr>{titles}</tr></thead>\n\
         <tbody>\n{rows}</tbody></table></div>\n{note}"
    )
}

fn cell(cell: &Cell, figures: bool) -> String {
    let tone = match cell.tone {
        Tone::Plain => "",
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Faint => "faint",
    };
    let class = [if figures { "figure" } else { "" }, tone].join(" ");
    let mut text = escape(&cell.text);
    if let Some(swatch) = cell.style.map(|style| style.swatch()) {
        text = format!("<span class=\"arm\"><span class=\"swatch\">{swatch}</span>{text}</span>");
    }
    if let Some(badge) = &cell.badge {
        text += &format!(" <span class=\"badge\">{}</span>", escape(badge));
    }
    if !cell.below.is_empty() {
        text += &format!("<span class=\"below\">{}</span>", escape(&cell.below));
    }
    format!("<td class=\"{}\">{text}</td>", class.trim())
}

/// A heading's place in the page.
fn anchor(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_becomes_markup() {
        let evil = "<script>alert(\"1\") & 'x'</script>";
        let mut table = Table::new(&[evil, "#n"]);
        let badge = Some(evil.to_string());
        table.rows.push(vec![Cell { badge, below: evil.into(), ..Cell::from(evil) }, Cell::none()]);
        table.note = evil.into();
        let blocks = [
            Block::Heading(2, evil.into()),
            Block::Heading(2, "other".into()),
            Block::Text(evil.into()),
            Block::Facts(vec![(evil.into(), evil.into())]),
            Block::Table(table),
            Block::Warnings(vec![evil.into()]),
            Block::Folded(evil.into(), vec![Block::Commands(vec![evil.into()])]),
        ];
        let html = page(evil, &blocks);
        assert!(!html.contains("<script") && !html.contains("\"1\""), "{html}");
        assert_eq!(html.matches("&lt;script&gt;").count(), 15, "{html}");
        assert!(html.contains("href=\"#-script-alert"));
    }
}
