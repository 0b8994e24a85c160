//! A report as one HTML file that needs nothing beside it: no network, no scripts.

use super::document::{Block, Cell, Plot, Table, Tone};
use std::fmt::Write;

/// How pages look, in light and dark.
const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn page(title: &str, blocks: &[Block]) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n",
        escape(title),
        escape(title)
    );
    contents(&mut html, blocks);
    render(&mut html, blocks);
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

/// Where to find what.
fn contents(html: &mut String, blocks: &[Block]) {
    let headings: Vec<&str> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Heading(2, text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    if headings.len() < 2 {
        return;
    }
    html.push_str("<nav>");
    for heading in headings {
        let _ = write!(html, "<a href=\"#{}\">{}</a>", anchor(heading), escape(heading));
    }
    html.push_str("</nav>\n");
}

fn render(html: &mut String, blocks: &[Block]) {
    let mut plots = false;
    for block in blocks {
        let plot = matches!(block, Block::Plot(_));
        if plot != plots {
            html.push_str(if plot { "<div class=\"plots\">\n" } else { "</div>\n" });
            plots = plot;
        }
        one(html, block);
    }
    if plots {
        html.push_str("</div>\n");
    }
}

fn one(html: &mut String, block: &Block) {
    let _ = match block {
        Block::Heading(level, text) => {
            let anchor =
                if *level == 2 { format!(" id=\"{}\"", anchor(text)) } else { String::new() };
            writeln!(html, "<h{level}{anchor}>{}</h{level}>", escape(text))
        }
        Block::Text(text) => writeln!(html, "<p>{}</p>", escape(text)),
        Block::Note(text) => writeln!(html, "<p class=\"note\">{}</p>", escape(text)),
        Block::Facts(facts) => {
            html.push_str("<dl>\n");
            for (name, value) in facts {
                let _ = writeln!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
            }
            writeln!(html, "</dl>")
        }
        Block::Table(of) => {
            table(html, of);
            Ok(())
        }
        Block::Plot(Plot { caption, svg, .. }) => {
            writeln!(html, "<figure>{svg}<figcaption>{}</figcaption></figure>", escape(caption))
        }
        Block::Warnings(lines) => {
            html.push_str("<ul class=\"warnings\">\n");
            for line in lines {
                let _ = writeln!(html, "<li>{}</li>", escape(line));
            }
            writeln!(html, "</ul>")
        }
        Block::Commands(lines) => writeln!(html, "<pre>{}</pre>", escape(&lines.join("\n"))),
        Block::Folded(title, blocks) => {
            let _ = writeln!(html, "<details><summary>{}</summary>", escape(title));
            render(html, blocks);
            writeln!(html, "</details>")
        }
    };
}

fn table(html: &mut String, table: &Table) {
    html.push_str("<div class=\"table\"><table>\n<thead><tr>");
    for (title, figures) in &table.columns {
        let class = if *figures { " class=\"figure\"" } else { "" };
        let _ = write!(html, "<th{class}>{}</th>", escape(title));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        html.push_str("<tr>");
        for (cell, (_, figures)) in row.iter().zip(&table.columns) {
            self::cell(html, cell, *figures);
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    if !table.note.is_empty() {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(&table.note));
    }
}

fn cell(html: &mut String, cell: &Cell, figures: bool) {
    let tone = match cell.tone {
        Tone::Plain => "",
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Faint => "faint",
    };
    let class = [if figures { "figure" } else { "" }, tone].join(" ");
    let _ = write!(html, "<td class=\"{}\">", class.trim());
    let text = escape(&cell.text);
    match cell.style.map(|style| style.swatch().unwrap_or_default()) {
        Some(swatch) => {
            let swatch = format!("<span class=\"swatch\">{swatch}</span>");
            let _ = write!(html, "<span class=\"arm\">{swatch}{text}</span>");
        }
        None => html.push_str(&text),
    }
    if let Some(badge) = &cell.badge {
        let _ = write!(html, " <span class=\"badge\">{}</span>", escape(badge));
    }
    if !cell.below.is_empty() {
        let _ = write!(html, "<span class=\"below\">{}</span>", escape(&cell.below));
    }
    html.push_str("</td>");
}

/// A heading's place in the page.
fn anchor(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect()
}

/// A text in which nothing is taken for a tag, or for the end of an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
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
