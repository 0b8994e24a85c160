//! The pages that people read: every link leads somewhere, every command that a page shows exists, and
//! every recipe or experiment that a command names loads.

use crate::common::root;
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory};
use gradwire::disk::Disk;
use gradwire_cli::Cli;
use gradwire_study::experiment::Experiment;
use gradwire_study::{report, verdict};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// What these tests read of a Markdown file.
#[derive(Default)]
struct Page {
    /// The destinations of links and images.
    links: Vec<String>,
    /// The anchors of its headings, as GitHub and mdBook name them.
    anchors: BTreeSet<String>,
    /// The text of its code blocks, programs of Python apart.
    blocks: Vec<String>,
    /// The text of its code spans.
    spans: Vec<String>,
    /// HTML, whose links nobody here would see.
    html: String,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let (mut heading, mut block) = (None, None);
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap());
                    let again = (1..).map(|n| format!("{anchor}-{n}"));
                    let mut names = std::iter::once(anchor.clone()).chain(again);
                    page.anchors.insert(names.find(|name| !page.anchors.contains(name)).unwrap());
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    // A program of Python names the package, which is no command.
                    let python = matches!(&kind, CodeBlockKind::Fenced(of) if matches!(&**of, "python" | "pycon"));
                    block = (!python).then(String::new);
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Html(html) | Event::InlineHtml(html) => page.html.push_str(&html),
                Event::Text(text) | Event::Code(text) if heading.is_some() => {
                    heading.as_mut().unwrap().push_str(&text);
                }
                Event::Text(text) => {
                    if let Some(block) = &mut block {
                        block.push_str(&text);
                    }
                }
                Event::Code(text) => page.spans.push(text.into_string()),
                _ => {}
            }
        }
        page
    }
}

/// The anchor of a heading: lower case, punctuation dropped, hyphens for spaces.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// Every page by its path from the root: README, ARCHITECTURE, CHANGELOG, and all of `docs`.
fn pages() -> BTreeMap<PathBuf, Page> {
    let mut paths: Vec<_> =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(PathBuf::from).into();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                paths.push(path);
            }
        }
    }
    let read = |path: PathBuf| {
        let page = Page::read(&fs::read_to_string(root().join(&path)).unwrap());
        (path, page)
    };
    paths.into_iter().map(read).collect()
}

/// `folder/target` without `.` and `..`.
fn resolved(folder: &Path, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(target).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{target} leaves the repository"),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// What is wrong with a link of the page at `from`, if anything is.
fn broken(pages: &BTreeMap<PathBuf, Page>, from: &Path, link: &str) -> Option<String> {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
        return None;
    }
    let (target, anchor) = link.split_once('#').map_or((link, None), |(t, a)| (t, Some(a)));
    let path = match target {
        "" => from.to_path_buf(),
        target => resolved(from.parent().unwrap(), target),
    };
    if !root().join(&path).exists() {
        return Some(format!("there is no {}", path.display()));
    }
    if from.starts_with("docs") && !path.starts_with("docs") {
        return Some("the book holds docs alone: name the file without a link".into());
    }
    let anchor = anchor?;
    let known = pages.get(&path).is_some_and(|page| page.anchors.contains(anchor));
    (!known).then(|| format!("{} has no heading for #{anchor}", path.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut wrong = Vec::new();
    for (path, page) in &pages {
        for link in &page.links {
            let fault = broken(&pages, path, link);
            wrong.extend(fault.map(|fault| format!("{}: {link}: {fault}", path.display())));
        }
        if page.html.contains("href") || page.html.contains("src=") {
            wrong.push(format!("{}: a link or an image written in HTML", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(pages.len() > 20, "{}", pages.len());
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = Page::read("# `a` b, c!\n## Same\n## Same\n[x](gone.md) ![y](plots/p.svg#z)");
    assert_eq!(page.links, ["gone.md", "plots/p.svg#z"]);
    assert_eq!(page.anchors, ["a-b-c", "same", "same-1"].map(String::from).into());
    let here = PathBuf::from("docs/README.md");
    let pages = BTreeMap::from([(here.clone(), page)]);
    for (link, fault) in [
        ("gone.md", Some("there is no docs/gone.md")),
        ("#b", Some("docs/README.md has no heading for #b")),
        ("../README.md", Some("the book holds docs alone: name the file without a link")),
        ("#same-1", None),
        ("SUMMARY.md", None),
        ("https://example.org", None),
    ] {
        assert_eq!(broken(&pages, &here, link).as_deref(), fault, "{link}");
    }
}

/// Pages that the summary does not name are not in the book.
#[test]
fn the_book_has_every_page() {
    let pages = pages();
    let summary = PathBuf::from("docs/SUMMARY.md");
    let named: BTreeSet<_> =
        pages[&summary].links.iter().map(|link| Path::new("docs").join(link)).collect();
    let there: BTreeSet<_> = pages
        .keys()
        .filter(|path| path.starts_with("docs") && **path != summary)
        .cloned()
        .collect();
    assert_eq!(named, there);
}

/// ARCHITECTURE says of every direct dependency what it is for.
#[test]
fn every_dependency_has_a_reason() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("## Why each dependency").nth(1).unwrap();
    let first_cells = table.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let explained: BTreeSet<_> =
        first_cells.flat_map(|cell| cell.split(',').map(str::trim)).collect();
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = toml::from_str(&manifest).unwrap();
    let dependencies = manifest["workspace"]["dependencies"].as_table().unwrap();
    assert!(dependencies.len() > 30, "{}", dependencies.len());
    for name in dependencies.keys().filter(|name| !name.starts_with("gradwire")) {
        assert!(explained.contains(name.as_str()), "ARCHITECTURE.md gives no reason for {name}");
    }
}

/// The arguments of every `gradwire …` and `cargo run …` in lines of a shell.
fn commands(lines: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for line in without_expansions(lines).replace("\\\n", " ").lines() {
        let words: Vec<String> = shlex::Shlex::new(line).collect();
        let ours = |word: &String| word == "gradwire" || word.ends_with("/gradwire");
        let begins = match &words[..] {
            [cargo, run, ..] if cargo == "cargo" && run == "run" => {
                if let Some(at) = words.iter().position(|word| word == "--example") {
                    let file = format!("exchange/examples/{}.rs", words[at + 1]);
                    assert!(root().join(&file).is_file(), "{line}: there is no {file}");
                    continue;
                }
                words.iter().position(|word| word == "--")
            }
            _ => words.iter().position(ours),
        };
        let Some(begins) = begins else { continue };
        let ends = |word: &&String| !matches!(word.as_str(), "|" | "||" | "&&" | ";" | ">" | "&");
        let arguments = words[begins + 1..].iter().take_while(ends);
        // An ellipsis stands for more of the same, or for the rest of a path.
        found.push(arguments.filter(|word| *word != "…").cloned().collect());
    }
    found
}

/// The lines with nothing for the shell's `${…}`, and with 1 for `$name`.
fn without_expansions(lines: &str) -> String {
    let mut parts = lines.split('$');
    let mut kept = parts.next().unwrap_or_default().to_string();
    for part in parts {
        if let Some(braced) = part.strip_prefix('{') {
            kept.push_str(braced.split_once('}').map_or("", |(_, after)| after));
        } else {
            kept.push('1');
            kept.push_str(part.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'));
        }
    }
    kept
}

/// A word in capitals stands for something that the reader chooses.
fn is_placeholder(word: &str) -> bool {
    let letters = word.trim_matches(|c: char| !c.is_alphabetic());
    letters.len() > 2 && letters.chars().all(|c| c.is_uppercase() || c == '-' || c == '_')
}

/// What is wrong with a command, if anything is. What a page names in passing (`in_passing`) may leave
/// out what the command cannot do without.
fn refused(arguments: &[String], in_passing: bool) -> Option<String> {
    let whole = std::iter::once("gradwire").chain(arguments.iter().map(String::as_str));
    let matches = match Cli::command().try_get_matches_from(whole) {
        Ok(matches) => matches,
        Err(error) => {
            let unfinished = matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument
                    | ErrorKind::MissingSubcommand
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            );
            let shown = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let passes = shown || (unfinished && in_passing);
            return (!passes).then(|| error.to_string());
        }
    };
    if arguments.iter().flat_map(|word| word.split('=')).any(is_placeholder) {
        return None;
    }
    match matches.subcommand() {
        Some(("train", train)) if train.get_raw("resume").is_none() => unloadable(train),
        Some(("advise", advise)) => unloadable(advise),
        Some(("reproduce", reproduce)) => {
            let name = reproduce.get_one::<String>("name")?;
            let own = name.ends_with(".toml");
            (!own).then(|| Experiment::load(name).err().map(|error| format!("{error:#}"))).flatten()
        }
        _ => None,
    }
}

/// What the program says against the recipe of a command, and the changes that it makes to it.
fn unloadable(command: &ArgMatches) -> Option<String> {
    let mut program = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    program.args(["train", "--dry-run"]).current_dir(root());
    let flags = ["dataset", "model", "scheme", "workers", "epochs", "seed", "out", "dir"];
    let renamed =
        flags.iter().map(|flag| (*flag, *flag)).chain([("sets", "set"), ("inject", "inject")]);
    for (id, flag) in renamed {
        // `advise` injects no faults.
        let values = command.try_get_raw(id).ok().flatten();
        for value in values.into_iter().flatten() {
            program.arg(format!("--{flag}")).arg(value);
        }
    }
    program.args(command.get_one::<String>("recipe"));
    let output = program.output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn every_command_exists_and_what_it_names_loads() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, page) in &pages() {
        let blocks = page.blocks.iter().map(|block| (block, false));
        let spans = page.spans.iter().filter(|span| span.starts_with("gradwire "));
        for (text, in_passing) in blocks.chain(spans.map(|span| (span, true))) {
            for command in commands(text) {
                if !seen.insert((command.clone(), in_passing)) {
                    continue;
                }
                let fault = refused(&command, in_passing);
                let shown = command.join(" ");
                wrong.extend(
                    fault.map(|why| format!("{}: gradwire {shown}: {why}", path.display())),
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen.len() > 40, "{}", seen.len());
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let lines = "mpirun -n 2 target/release/gradwire train \\\n  --seed $seed ${x:+--resume \"$x\"} # one\n\
                 cargo run --release -- list schemes | head\n";
    let expected: [&[&str]; 2] = [&["train", "--seed", "1"], &["list", "schemes"]];
    assert_eq!(commands(lines), expected);
    for (line, fault) in [
        ("gradwire tarin", "unrecognized subcommand"),
        ("gradwire train --worker 4", "unexpected argument"),
        ("gradwire train cifar10-dens", "cifar10-dense"),
        ("gradwire train --set train.epoch=4", "did you mean `epochs`"),
        ("gradwire train --inject \"panic:worker=9,step=1\"", "worker"),
        ("gradwire reproduce sidko", "sidco"),
        ("gradwire network replay", "required"),
    ] {
        let command = &commands(line)[0];
        let said = refused(command, false).unwrap_or_else(|| panic!("{line} was accepted"));
        assert!(said.contains(fault), "{line}: {said}");
    }
    for line in ["gradwire train RECIPE --set scheme.ratio=0.1", "gradwire list topologies"] {
        assert_eq!(refused(&commands(line)[0], false), None, "{line}");
    }
}

/// Claims and sentences of abstracts as the stored runs of scale `standard` are judged now, and how many got
/// which verdict: the tables that pages show are these.
#[test]
fn pages_show_the_verdicts_of_the_reports() {
    let read = |page: &str| fs::read_to_string(root().join(page)).unwrap();
    let names = ["dqsgd", "casq", "optquant", "aggregation", "sidco", "grace", "local"];
    let folders = names.map(|name| root().join(format!("docs/results/{name}-standard")));
    let said = report::claims(&Disk::default(), &folders).unwrap();
    let reproduce = read("docs/reproduce.md");
    for name in names {
        let start = format!("| {name} | ");
        let rows = |text: &str| -> Vec<String> {
            text.lines().filter(|line| line.starts_with(&start)).map(String::from).collect()
        };
        assert!(rows(&said).len() > 10, "{name}");
        assert_eq!(rows(&reproduce), rows(&said), "docs/reproduce.md");
    }
    let table = |head: &str| {
        let found = said.split("\n\n").find(|part| part.starts_with(head));
        found.unwrap_or_else(|| panic!("no {head} in {said}")).trim_end().to_string()
    };
    let (by_kind, by_experiment) = (table("| claims |"), table("| experiment | reproduced |"));
    let (readme, results) = (read("README.md"), read("docs/results/README.md"));
    for (page, text) in [("README.md", &readme), ("docs/results/README.md", &results)] {
        assert!(text.contains(&by_kind), "{page} does not show {by_kind}");
    }
    assert!(results.contains(&by_experiment), "docs/results/README.md: {by_experiment}");
    // README has words in place of the last cell: their figures are those of the claims, or of the page about them.
    for (line, name) in by_experiment.lines().skip(2).zip(names) {
        let (counts, _) = line.rsplit_once(" | ").unwrap();
        let row = readme.lines().find_map(|row| row.strip_prefix(&format!("{counts} | ")));
        let words = row.unwrap_or_else(|| panic!("README.md has no row that begins with {counts}"));
        let page = &format!("docs/results/{name}.md");
        let of_it = said.lines().filter(|line| line.starts_with(&format!("| {name} | ")));
        let there = read(page) + &of_it.collect::<Vec<_>>().join("\n");
        let missing = missing_figures(words, &there);
        assert!(
            missing.is_empty(),
            "README.md, {name}: neither in {page} nor in a claim: {missing:?}"
        );
    }
    let all: Vec<&str> = by_kind.lines().last().unwrap().split(" | ").collect();
    let row = format!("\n| all | **{}** | | |", all[1..all.len() - 1].join("** | **"));
    assert!(readme.contains(&row), "README.md has no row {row}");
}

/// A number in a text.
#[derive(Debug)]
struct Figure {
    /// Without its sign.
    value: f64,
    /// How many places it has after the point.
    places: usize,
    /// The nearest words before and after it: past the other numbers of a list, within its sentence or cell.
    beside: [Option<String>; 2],
}

/// The words, numbers and marks of a text; `CIFAR-10` is a word.
fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let goes_on = |c: char| match first {
            '0'..='9' => c.is_ascii_digit() || c == '.' || c == ',',
            _ => first.is_alphabetic() && (c.is_alphanumeric() || c == '-'),
        };
        let length = rest.find(|c| !goes_on(c)).unwrap_or(rest.len()).max(first.len_utf8());
        // What ends a sentence or begins an aside is no part of a word.
        let token = rest[..length].trim_end_matches(['.', ',', '-']);
        let token = if token.is_empty() { &rest[..length] } else { token };
        tokens.push(token);
        rest = &rest[token.len()..];
    }
    tokens
}

fn figures(text: &str) -> Vec<Figure> {
    let small = "a about and as at by for from has in is least most of on or than the to with";
    let small: BTreeSet<_> = small.split(' ').collect();
    let text = text.replace('×', " times");
    let tokens = tokens(&text);
    let is_word = |token: &str| {
        token == "%" || token.starts_with(char::is_alphabetic) && !small.contains(token)
    };
    let goes_on = |token: &&str| !matches!(*token, "." | ";" | ":" | "(" | ")" | "|");
    let figure = |(at, token): (usize, &&str)| {
        let number = token.starts_with(|c: char| c.is_ascii_digit());
        let value = token.replace(',', "").parse().ok().filter(|_| number)?;
        let mut before = tokens[..at].iter().copied().rev().take_while(goes_on);
        let mut after = tokens[at + 1..].iter().copied().take_while(goes_on);
        let beside = [before.find(|token| is_word(token)), after.find(|token| is_word(token))];
        let places = token.split_once('.').map_or(0, |(_, after)| after.len());
        Some(Figure { value, places, beside: beside.map(|word| word.map(str::to_lowercase)) })
    };
    tokens.iter().enumerate().filter_map(figure).collect()
}

/// The figures of a text that a page has not, rounded as the text does. A long page has every small whole number
/// somewhere: a whole number must have the same word before or after it.
fn missing_figures(text: &str, page: &str) -> Vec<Figure> {
    let there = figures(page);
    let is_missing = |figure: &Figure| {
        let rounded = |value: f64| format!("{value:.0$}", figure.places);
        !there.iter().any(|other| {
            let mut words = figure.beside.iter().zip(&other.beside);
            rounded(other.value) == rounded(figure.value)
                && (figure.places > 0 || words.any(|(one, other)| one.is_some() && one == other))
        })
    };
    figures(text).into_iter().filter(is_missing).collect()
}

#[test]
fn a_figure_that_a_page_does_not_have_is_found() {
    let page = "1,200 times fewer bytes, 15 to 17.6 % more (n = 1). On CIFAR-10 H = 16: 45.2×\n\
                | 4.31 points | 7 |\n";
    for (text, missing) in [
        ("1,200 times, 15 and 18 %; 45 times on CIFAR-10", &[][..]),
        ("4.3 points with H = 16 (n = 1), four", &[]),
        ("15 times, 45 points", &[15.0, 45.0]),
        ("17 % at H = 15; n = 2", &[17.0, 15.0, 2.0]),
        ("4.4 points. 7 of 4", &[4.4, 7.0, 4.0]),
    ] {
        let found = missing_figures(text, page);
        let values: Vec<_> = found.iter().map(|figure| figure.value).collect();
        assert_eq!(values, missing, "{text}: {found:?}");
    }
}

/// What is stored of a report is what the program would write today: no claim has changed since.
#[test]
fn stored_reports_are_of_today() {
    for name in ["dqsgd", "casq", "optquant", "aggregation", "sidco", "grace", "local"] {
        let (disk, folder) =
            (Disk::default(), root().join(format!("docs/results/{name}-standard")));
        let out = tempfile::tempdir().unwrap();
        let mut results = report::read(&disk, &folder).unwrap().unwrap();
        verdict::judge_again(&folder, &mut results).unwrap();
        report::write(&disk, out.path(), &results).unwrap();
        for file in [report::MARKDOWN, report::RUNS, report::ARMS] {
            let of = |folder: &Path| fs::read_to_string(folder.join(file)).unwrap();
            let same = of(&folder) == of(out.path());
            assert!(same, "{name}: gradwire report {} writes another {file}", folder.display());
        }
    }
}
