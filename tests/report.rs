//! People's own runs put together, from the command line: `gradwire compare` and `gradwire report`.

use crate::common::{Program, entries, quick, says};
use std::fs;
use std::path::Path;

/// Two schemes with two seeds each, a third that diverges and one that was stopped.
fn trained() -> (Program, Vec<String>) {
    let program = Program::new();
    for (scheme, seed) in [("dense", "1"), ("dense", "2"), ("topk", "1"), ("topk", "2")] {
        let name = format!("name={scheme}");
        program.succeed(&quick(&["--scheme", scheme, "--seed", seed, "--set", &name]));
    }
    let fault = ["--scheme", "signsgd", "--set", "name=signsgd", "--inject", "nan:worker=1,step=5"];
    program.refuse(&quick(&fault), 1);
    let mut runs = Vec::new();
    for recipe in ["dense", "topk", "signsgd"] {
        let these = entries(&program.path("runs/out").join(recipe)).into_iter();
        let relative = |path: &Path| path.strip_prefix(program.folder.path()).unwrap().to_owned();
        runs.extend(these.map(|path| relative(&path).display().to_string()));
    }
    assert_eq!(runs.len(), 5);
    (program, runs)
}

fn with<'a>(command: &'a str, runs: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    let runs = runs.iter().map(String::as_str);
    [command].into_iter().chain(runs).chain(more.iter().copied()).collect()
}

#[test]
fn runs_are_compared_and_reported() {
    let (program, runs) = trained();
    let text = program.succeed(&with("compare", &runs, &["--links", "100mbit,10mbit"]));
    let parts = [
        "fasttext on synthetic-ag-news, 4 workers: 4 of 5 finished, 1 diverged",
        "step 10mbit  step 100mbit",
        "(diverged 1/1)",
        "non-finite gradient",
        "over 2 pairs of runs with the same seed",
        "scheme.ratio: 0.01 (topk)",
        r#"scheme.kind: "dense" (dense) · "topk" (topk) · "signsgd" (signsgd)"#,
    ];
    says(&text, &parts);
    let rows = program.rows(&with("compare", &runs, &["--json", "--baseline", "topk"]));
    let dense = rows.iter().find(|row| row["arm"] == "dense").unwrap();
    assert_eq!(dense["accuracy"]["seeds"], 2);
    assert_eq!(dense["links"].as_array().unwrap().len(), 3);
    assert_eq!(dense["against_baseline"]["arm"], "topk");
    assert!(dense["against_baseline"]["p"].is_number());
    let diverged = rows.iter().find(|row| row["arm"] == "signsgd").unwrap();
    assert_eq!(diverged["outcomes"][0][0], "diverged");
    assert!(diverged["accuracy"].is_null());
    assert!(rows.iter().any(|row| row["key"] == "scheme.kind"));

    let text = program.succeed(&with("report", &runs, &[]));
    assert!(text.contains("report in runs/out/dense/report/report.html"), "{text}");
    let folder = program.path("runs/out/dense/report");
    let html = fs::read_to_string(folder.join("report.html")).unwrap();
    let parts = ["4 of 5 finished, 1 diverged", "diverged 1/1", "non-finite gradient"];
    let ours = html.replace(&gradwire_study::plot::script(), "");
    says(&ours, &parts);
    let settings = ["sgd, learning rate 1.0, momentum 0.9", "log y", "gradwire train --quiet"];
    says(&ours, &settings);
    assert!(!ours.contains("http") && !ours.contains("src=") && !ours.contains("NaN"));
    assert!(ours.len() + 1_000_000 < html.len(), "what draws the figures is in the page");
    let markdown = fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(markdown.contains("| dense | 2 |"), "{markdown}");
    let plots = markdown.lines().filter_map(|line| line.strip_prefix("![")?.split_once("]("));
    let plots: Vec<&str> = plots.map(|(_, path)| path.trim_end_matches(')')).collect();
    assert!(plots.len() >= 6, "{plots:?}");
    assert!(plots.iter().all(|path| folder.join(path).exists()), "{plots:?}");
    let table = fs::read_to_string(folder.join("runs.csv")).unwrap();
    assert_eq!(table.lines().count(), 6, "{table}");
    // For a paper.
    let column = ["--out", "paper", "--figures", "svg,pdf", "--width", "84mm", "--table", "latex"];
    let text = program.succeed(&with("report", &runs, &column));
    says(&text, &["figures in paper/figures", "table in paper/table.tex"]);
    let figures = entries(&program.path("paper/figures"));
    assert!(figures.len() >= 12 && figures.len().is_multiple_of(2), "{figures:?}");
    for figure in &figures {
        let bytes = fs::read(figure).unwrap();
        match figure.extension().unwrap().to_str().unwrap() {
            "svg" => assert!(bytes.starts_with(b"<svg width=\"238.1\""), "{}", figure.display()),
            _ => assert!(bytes.starts_with(b"%PDF-"), "{}", figure.display()),
        }
    }
    let table = fs::read_to_string(program.path("paper/table.tex")).unwrap();
    says(&table, &["\\toprule", "\\textbf{", "$\\pm$", "signsgd (diverged 1/1) & --"]);
    for (width, part) in [("84", "such as 84mm"), ("3mm", "40 to 400 mm")] {
        program.refuses(&["report", "dense", "--figures", "svg", "--width", width], 2, &[part]);
    }
    program.refuses(&["report", "dense", "--figures", "eps"], 2, &["pdf, svg, png"]);
    // A folder of runs means all of them; that of a report, what it holds.
    let folder_of_runs = program.succeed(&["compare", "runs/out/dense"]);
    assert!(folder_of_runs.contains("2 of 2 finished"), "{folder_of_runs}");
    let again = program.succeed(&["compare", "paper", "--baseline", "topk"]);
    says(&again, &["4 of 5 finished", " topk; over 2 pairs"]);
    let page = fs::read(program.path("paper/report.html")).unwrap();
    let text = program.succeed(&["report", "paper"]);
    assert!(text.contains("report in paper/report.html"), "{text}");
    assert!(fs::read(program.path("paper/report.html")).unwrap() == page, "made anew, the same");
    // Once more over everything in the folder, the report among it.
    let all = [runs.clone(), vec!["runs/out/dense/report".into()]].concat();
    program.succeed(&with("report", &all, &["--out", "elsewhere"]));
    assert!(program.path("elsewhere/results.json").exists());
    // Again in its place, and never in that of an experiment's results.
    program.succeed(&with("report", &runs, &["--out", "elsewhere"]));
    let kept = r#"{"experiment":"dqsgd","runs":[]}"#;
    fs::write(program.path("elsewhere/results.json"), kept).unwrap();
    let refused = ["elsewhere is left as it is", "--out", "results.json is damaged"];
    program.refuses(&with("report", &runs, &["--out", "elsewhere"]), 1, &refused);
    assert_eq!(fs::read_to_string(program.path("elsewhere/results.json")).unwrap(), kept);
    fs::create_dir(program.path("begun")).unwrap();
    fs::write(program.path("begun/experiment.toml"), "").unwrap();
    program.refuses(&with("report", &runs, &["--out", "begun"]), 1, &["an experiment or a sweep"]);
}

#[test]
fn what_is_no_run_is_refused() {
    let program = Program::new();
    fs::create_dir(program.path("empty")).unwrap();
    for command in ["compare", "report"] {
        let parts = ["empty is not a run's folder: it has no recipe.toml"];
        program.refuses(&[command, "empty"], 1, &parts);
        program.refuses(&[command, "empty", "--links", "7foo"], 2, &["--links 7foo"]);
        program.refuse(&[command], 2);
    }
    assert!(!program.path("report").exists(), "nothing was written");
    fs::write(program.path("empty/experiment.toml"), "").unwrap();
    program.refuses(&["report", "empty"], 1, &["an experiment's folder", "empty/*/*"]);
}

/// What a glob over everything finds beside the runs is named, and hinders nothing; what the arms
/// differ in beside their schemes comes first.
#[test]
fn all_of_a_folder_can_be_compared() {
    let program = Program::new();
    program.succeed(&quick(&["--scheme", "dense"]));
    program.succeed(&quick(&["--scheme", "topk", "--set", "train.max_steps=6"]));
    let runs = entries(&program.path("runs/out/quick")).into_iter();
    let runs = runs.map(|path| path.display().to_string());
    let folder = program.path("runs/out/quick").display().to_string();
    let all: Vec<String> = runs.chain([folder]).collect();
    let text = program.succeed(&with("compare", &all, &[]));
    assert!(!text.contains("not a run's folder") && !text.contains("left out"), "{text}");
    let careful = text.find("careful: the runs differ in more than the scheme").unwrap();
    let schemes = text.find("settings of the schemes").unwrap();
    assert!(text.contains("12 (dense)") && text.contains("6 (topk)"), "{text}");
    let steps = text.find("train.max_steps: ").unwrap();
    assert!(careful < steps && steps < schemes, "{text}");
    let mut shown = entries(&program.path("runs/out"));
    shown.retain(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.'));
    assert_eq!(shown, [program.path("runs/out/quick")]);
}
