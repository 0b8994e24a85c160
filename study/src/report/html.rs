//! A report as one HTML file that needs nothing beside it: its script is in it, and no network is asked.

use super::document::{Block, Cell, PageTable, Plot, Tone};
use crate::plot::{HUES, escape, script};

/// How pages look, in light and dark.
const STYLE: &str = include_str!("style.css");
/// What draws the figures.
const SCRIPT: &str = include_str!("page.js");

/// The whole page.
pub(super) fn page(title: &str, blocks: &[Block]) -> String {
    let title = escape(title);
    let style = |ground: usize| -> String {
        HUES.iter().enumerate().map(|(n, hue)| format!("--hue-{n}: {}; ", hue[ground])).collect()
    };
    let hues = serde_json::to_string(&HUES).expect("invariant: texts are JSON");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}:root {{ {} }}\n\
         @media (prefers-color-scheme: dark) {{ :root {{ {} }} }}\n</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{}{}</main>\n{}\n<script>\nconst HUES = {hues};\n{SCRIPT}</script>\n\
         </body>\n</html>\n",
        style(0),
        style(1),
        contents(blocks),
        render(blocks),
        script(),
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

/// Blocks in order; figures that follow one another stand together.
fn render(blocks: &[Block]) -> String {
    let is_plot = |block: &Block| matches!(block, Block::Plots(_));
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
        Block::Choice(title, parts) => {
            let options = options(parts.iter().map(|(name, _)| name.as_str()));
            let part = |(_, blocks): &(String, Vec<Block>)| {
                format!("<section>{}</section>\n", render(blocks))
            };
            let title = escape(title);
            format!(
                "<div class=\"choice\"><h3><label>{title} <select>{options}</select></label></h3>\n\
                 {}</div>\n",
                parts.iter().map(part).collect::<String>()
            )
        }
        Block::Plots(plots) => chart(plots),
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

fn options<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("<option>{}</option>", escape(name))).collect()
}

/// The figures of one quantity, of which one is shown.
fn chart(plots: &[Plot]) -> String {
    let title = escape(plots.first().map_or("", |plot| &plot.figure.title));
    let against = options(plots.iter().map(|plot| plot.against.as_str()));
    let (title, against) = match title.split_once(" against ").filter(|_| plots.len() > 1) {
        Some((quantity, _)) => (
            quantity.to_string(),
            format!("<label>against <select class=\"against\">{against}</select></label>"),
        ),
        None => (title, String::new()),
    };
    let sources = plots.iter().map(|plot| {
        let (name, data) = (escape(&plot.name), plot.figure.interactive());
        format!("<script type=\"application/json\" data-name=\"{name}\">{data}</script>\n")
    });
    let mut captions: Vec<&str> = plots.iter().map(|plot| plot.caption.as_str()).collect();
    captions.dedup();
    format!(
        "<figure class=\"chart\" aria-label=\"{title}\"><div class=\"controls\"><b>{title}</b> {against}\
         <label><input type=\"checkbox\" name=\"xaxis\"> log x</label>\
         <label><input type=\"checkbox\" name=\"yaxis\"> log y</label></div>\n\
         <div class=\"plot\"></div>\n<figcaption>{}</figcaption>\n{}</figure>\n",
        escape(&captions.join(" ")),
        sources.collect::<String>()
    )
}

fn table(table: &PageTable) -> String {
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
    if let Some(style) = cell.style {
        let (hue, mark) = (style.hue, style.letter());
        text = format!("<span style=\"color: var(--hue-{hue})\">{mark}</span> {text}");
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
    use crate::plot::{Axis, Figure, Quantity, Series, Style};

    #[test]
    fn nothing_said_becomes_markup() {
        let evil = "<script>alert(\"1\") & 'x'</script>";
        let mut table = PageTable::new(&[evil, "#n"]);
        let badge = Some(evil.to_string());
        table.rows.push(vec![Cell { badge, below: evil.into(), ..Cell::from(evil) }, Cell::none()]);
        table.note = evil.into();
        let axis = Axis::new(evil, Quantity::Number, false, [1.0]);
        let line = Series::line(evil, Style::numbered(0), vec![(1.0, 1.0)]);
        let figure = Figure::new(evil, axis.clone(), axis, vec![line]);
        let [name, against, caption] = [evil; 3].map(String::from);
        let blocks = [
            Block::Heading(2, evil.into()),
            Block::Heading(2, "other".into()),
            Block::Text(evil.into()),
            Block::Facts(vec![(evil.into(), evil.into())]),
            Block::Table(table),
            Block::Plots(vec![Plot { name, against, caption, figure }]),
            Block::Choice(evil.into(), vec![(evil.into(), vec![Block::Text(evil.into())])]),
            Block::Warnings(vec![evil.into()]),
            Block::Folded(evil.into(), vec![Block::Commands(vec![evil.into()])]),
        ];
        let html = page(evil, &blocks).replace(&script(), "");
        assert!(!html.contains("<script>alert") && !html.contains("\"1\""), "{html}");
        assert_eq!(html.matches("<script").count(), 2, "the figure's data, and what draws it");
        assert!(html.matches("&lt;script&gt;").count() > 20, "{html}");
        assert!(html.contains("href=\"#-script-alert"));
    }
}
