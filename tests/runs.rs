//! Runs by name, by tag and as `last`: what is listed, and what a word means.

use crate::common::{Program, quick, words};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

fn listed(program: &Program, more: &[&str]) -> Vec<Value> {
    program.rows(&[&["runs", "--json"][..], more].concat())
}

/// The folder of the run with this name.
fn folder(program: &Program, name: &str) -> PathBuf {
    let runs = listed(program, &[]);
    let run = runs.iter().find(|run| run["name"] == name).unwrap();
    program.path(run["folder"].as_str().unwrap())
}

#[test]
fn a_name_stands_for_a_folder_everywhere() {
    let program = Program::new();
    assert!(program.succeed(&["runs", "."]).contains("no run"));
    program.succeed(&quick(&words("--name one --tag paper --tag draft --scheme dense")));
    program.succeed(&quick(&words("--name two --tag paper --scheme topk --set train.max_steps=3")));
    let [one, two] = ["one", "two"].map(|name| folder(&program, name));
    assert!(one.to_string_lossy().ends_with("Z-one"), "TensorBoard shows it: {}", one.display());

    assert_eq!(listed(&program, &["--tag", "paper"]).len(), 2);
    let [run] = &listed(&program, &["--tag", "paper", "--tag", "draft"])[..] else { panic!("one") };
    for (key, value) in [
        ("scheme", Value::from("dense")),
        ("recipe", "quick".into()),
        ("state", "finished".into()),
        ("step", 12.into()),
        ("workers", 4.into()),
    ] {
        assert_eq!(run[key], value, "{run}");
    }
    assert!(listed(&program, &["--scheme", "qsgd"]).is_empty());
    assert!(listed(&program, &["--state", "failed,running"]).is_empty());
    let table = program.succeed(&["runs"]);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.lines().nth(1).unwrap().starts_with("two"), "the newest comes first: {table}");

    for word in ["fasttext", "synthe", "topk", "dense"] {
        assert!(table.contains(word), "{word} in\n{table}");
    }
    // A run's folder is called after what ran.
    program.succeed(&words(
        "train --quiet --model fasttext --dataset synthetic-ag-news --scheme dense --steps 1",
    ));
    assert!(program.path("runs/out/fasttext-synthetic-ag-news-dense").is_dir());
    fs::remove_dir_all(program.path("runs/out/fasttext-synthetic-ag-news-dense")).unwrap();
    let told = program.succeed(&["eval", "last", "--json"]);
    assert!(told.contains("Z-two"), "{told}");
    let told = program.succeed(&["compare", "last", "one", "--baseline", "two"]);
    assert!(told.contains("dense is one") && told.contains("topk is two"), "{told}");
    let told = program.succeed(&["compare", "last", "two", "one"]);
    assert!(!told.contains("left out"), "{told}");
    program.succeed(&["report", "one", "two", "--out", "report"]);
    let table = fs::read_to_string(program.path("report/runs.csv")).unwrap();
    assert!(table.lines().next().unwrap().contains(",name,") && table.contains(",one,"), "{table}");
    let told = program.succeed(&["network", "replay", "two", "--links", "1gbit"]);
    assert!(told.contains("Z-two"), "{told}");

    let lock = fs::File::open(one.join(".lock")).unwrap();
    lock.lock().unwrap();
    let [run] = &listed(&program, &["--state", "running"])[..] else { panic!("one") };
    assert_eq!(run["name"], "one");
    drop(lock);

    // Going on, by a name and under another.
    program.succeed(&["train", "--quiet", "--resume", "last", "--name", "renamed"]);
    assert_eq!(folder(&program, "renamed"), two);
    program.refuses(&["train", "--resume", "none"], 2, &["there is no run none", "gradwire runs"]);
    for bad in ["last", "a/b", ".x", ""] {
        program.refuses(&quick(&["--name", bad]), 2, &["name"]);
    }

    program.succeed(&quick(&words("--name one --seed 2 --set train.max_steps=1")));
    program.refuses(&["eval", "one"], 2, &["2 runs are called one", "Z-one"]);
}
