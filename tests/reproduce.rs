//! `gradwire reproduce`, from outside: grids that are run once, stopped and gone on with, and what
//! goes wrong in them.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const EXPERIMENT: &str = r#"
title = "A small experiment"
paper = "Nobody 2026"
baseline = "dense"
links = ["1gbit"]

[recipe]
workers = 2
dataset = { kind = "synthetic-cifar10", train = 64, test = 32 }
model = "resnet20"
record.every = 1
threads = 1

[[tasks]]
name = "task"
label = "ResNet-20 on made-up images"

[[arms]]
name = "dense"
label = "dense"
recipe.scheme = "dense"

[[arms]]
name = "topk"
label = "top-k {ratio}"
over = { ratio = [0.1] }
recipe.scheme = { kind = "topk", ratio = "{ratio}" }

[[arms]]
name = "wild"
label = "a rate far too high"
recipe.scheme = "dense"
recipe.optimizer = { kind = "sgd", learning_rate = 1e30 }

[scales.smoke]
about = "Small."
seeds = [1, 2]
arms = ["dense", "topk"]
recipe.train = { epochs = 1, max_steps = 3, batch = 8 }

[scales.quick]
about = "Longer."
seeds = [1]
recipe.train = { epochs = STEPS, batch = 16 }

[[claims]]
claim = "Top-k sends at most a third of dense"
source = "this test"
task = "task"
arm = "topk-0.1"
against = "dense"
measure = "bits-per-parameter"
compare = "ratio"
unit = "factor"
claimed = 0.2
at_most = 0.34
scales = ["smoke"]
otherwise = "not here"
"#;

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    command.current_dir(folder).args(["reproduce", "small.toml", "--out", "out"]).args(arguments);
    command
}

fn reproduce(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder(epochs: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = EXPERIMENT.replace("STEPS", &epochs.to_string());
    fs::write(folder.path().join("small.toml"), text).unwrap();
    folder
}

fn results(folder: &Path, scale: &str) -> Value {
    let path = folder.join("out").join(format!("small-{scale}")).join("results.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn states(results: &Value) -> Vec<(String, String)> {
    let runs = results["runs"].as_array().unwrap();
    let word = |value: &Value| value.as_str().unwrap().to_string();
    runs.iter().map(|run| (word(&run["arm"]), word(&run["outcome"]["state"]))).collect()
}

#[test]
fn a_grid_is_run_once_and_judged() {
    let place = folder(1);
    let first = reproduce(place.path(), &["--scale", "smoke"]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(text(&first.stdout).contains("REPRODUCED: Top-k sends"), "{}", text(&first.stdout));
    let found = results(place.path(), "smoke");
    assert_eq!(found["runs"].as_array().unwrap().len(), 4);
    assert!(states(&found).iter().all(|(_, state)| state == "finished"));
    let verdict = &found["verdicts"][0];
    assert_eq!(verdict["ruling"], "reproduced");
    assert_eq!(verdict["measured"]["seeds"], 2);
    let run = place.path().join("out/small-smoke/task/topk-0.1/seed-2");
    assert!(run.join("metrics.jsonl").is_file() && !run.join("checkpoints").exists());
    let measured = &found["runs"][3]["measured"];
    assert_eq!(measured["losses"].as_array().unwrap().len(), 3);
    assert_eq!(measured["links"][0]["at_losses"].as_array().unwrap().len(), 3);

    // Nothing is made again, and nothing changes.
    let record = fs::read(run.join("metrics.jsonl")).unwrap();
    let second = reproduce(place.path(), &["--scale", "smoke"]);
    assert_eq!(text(&second.stderr).matches("was there already").count(), 4);
    assert_eq!(fs::read(run.join("metrics.jsonl")).unwrap(), record);
    assert_eq!(results(place.path(), "smoke"), found);

    // Where `results.json` is, the runs have been made.
    let elsewhere = folder(1);
    let there = elsewhere.path().join("out/small-smoke");
    fs::create_dir_all(&there).unwrap();
    fs::copy(place.path().join("out/small-smoke/results.json"), there.join("results.json"))
        .unwrap();
    let more = reproduce(elsewhere.path(), &["--scale", "smoke", "--seeds", "3"]);
    assert_eq!(
        text(&more.stderr).matches("was there already").count(),
        4,
        "{}",
        text(&more.stderr)
    );
    let of_three = results(elsewhere.path(), "smoke");
    assert_eq!(of_three["verdicts"][0]["measured"]["seeds"], 3);
    assert_eq!(of_three["runs"][0], found["runs"][0]);
    let other = reproduce(elsewhere.path(), &["--scale", "smoke", "--set", "train.max_steps=2"]);
    assert_eq!(text(&other.stderr).matches("was there already").count(), 0, "another recipe");

    // Another recipe is another run; what was there is kept.
    let other = reproduce(place.path(), &["--scale", "smoke", "--set", "train.max_steps=2"]);
    assert!(other.status.success(), "{}", text(&other.stderr));
    assert_eq!(text(&other.stderr).matches("moved what was there").count(), 4);
    let aside = place.path().join("out/superseded/small-smoke/task/topk-0.1/seed-2-1");
    assert_eq!(fs::read(aside.join("metrics.jsonl")).unwrap(), record);

    // What was not asked for, but is there, still counts.
    let only = ["--scale", "smoke", "--set", "train.max_steps=2", "--json", "--only", "topk"];
    let silent = reproduce(place.path(), &only);
    let line: Value = serde_json::from_slice(&silent.stdout).unwrap();
    assert_eq!((&line["ruling"], &line["measured"]["seeds"]), (&"reproduced".into(), &2.into()));
    let alone = ["--scale", "smoke", "--json", "--only", "topk"];
    let line: Value = serde_json::from_slice(&reproduce(place.path(), &alone).stdout).unwrap();
    assert_eq!(line["ruling"], "not-testable", "its baseline is of another recipe");

    // A record that is damaged is said, and not passed over.
    let shown = place.path().join("out/small-smoke/task/topk-0.1/seed-1/network.jsonl");
    let whole = fs::read_to_string(&shown).unwrap();
    fs::write(&shown, whole.replacen("\"step\":2", "\"step\":7", 1)).unwrap();
    let refused = reproduce(place.path(), &alone);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("network.jsonl"), "{}", text(&refused.stderr));
}

/// Accuracies after three steps differ much from seed to seed: whether they are a fifth cannot be told. Arms
/// of other claims get no more seeds.
#[test]
fn what_is_undecided_gets_more_seeds() {
    let place = folder(1);
    let path = place.path().join("small.toml");
    let experiment = fs::read_to_string(&path).unwrap();
    let chance = r#"
[[claims]]
claim = "Dense is right in at least one of five"
source = "this test"
task = "task"
arm = "dense"
measure = "accuracy"
at_least = 0.2
scales = ["smoke"]
otherwise = "not here"
"#;
    fs::write(&path, experiment + chance).unwrap();
    let done = reproduce(place.path(), &["--scale", "smoke", "--until-decided"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let found = results(place.path(), "smoke");
    let count = |arm| states(&found).iter().filter(|(of, _)| of == arm).count();
    let verdict = &found["verdicts"][1];
    let seeds = verdict["measured"]["seeds"].as_u64().unwrap();
    assert!(seeds > 3, "three seeds decided: {verdict}");
    assert_eq!((count("dense") as u64, count("topk-0.1")), (seeds, 3));
    assert_eq!(found["looks"], 3);
    assert!((verdict["confidence"].as_f64().unwrap() - 29.0 / 30.0).abs() < 1e-12);
    assert!(text(&done.stdout).contains("all 3 looks together"), "{}", text(&done.stdout));
}

/// A claim about speed is measured on a gradient that the run recorded; without one it is refused before
/// anything is trained.
#[test]
fn speed_is_timed_on_recorded_gradients() {
    let place = folder(1);
    let path = place.path().join("small.toml");
    let fast = r#"
[[claims]]
claim = "Top-k takes time to encode"
source = "this test"
task = "task"
arm = "topk-0.1"
measure = "encode-seconds"
at_least = 1e-9
scales = ["smoke"]
otherwise = "not here"
"#;
    let experiment = fs::read_to_string(&path).unwrap() + fast;
    fs::write(&path, &experiment).unwrap();
    let refused = reproduce(place.path(), &["--scale", "smoke"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("record.gradients"), "{}", text(&refused.stderr));
    let records =
        experiment.replace("record.every = 1", "record = { every = 1, gradients = \"{steps}\" }");
    fs::write(&path, records).unwrap();
    let done = reproduce(place.path(), &["--scale", "smoke"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let found = results(place.path(), "smoke");
    let timings = found["timings"].as_array().unwrap();
    assert_eq!(timings.len(), 2, "one for each seed");
    assert!(timings.iter().all(|timing| timing["encode"]["median"].as_f64().unwrap() > 0.0));
    assert_eq!(found["verdicts"][1]["ruling"], "reproduced", "{}", found["verdicts"][1]);
    let again = reproduce(place.path(), &["--scale", "smoke"]);
    assert!(again.status.success());
    assert_eq!(results(place.path(), "smoke")["timings"], found["timings"], "timed once");
    let table = Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .current_dir(place.path())
        .args(["report", "--claims", "out/small-smoke"])
        .output()
        .unwrap();
    let line = "| small | Top-k sends at most a third of dense | 0.2× |";
    assert!(text(&table.stdout).contains(line), "{}", text(&table.stdout));

    // A gradient on which nothing can be timed leaves its claim open, and the others judged.
    let folder = place.path().join("out/small-smoke");
    fs::remove_file(folder.join("results.json")).unwrap();
    let gradients = folder.join("task/topk-0.1/seed-1/gradients");
    for file in fs::read_dir(gradients).unwrap() {
        fs::write(file.unwrap().path(), b"nothing").unwrap();
    }
    let done = reproduce(place.path(), &["--scale", "smoke"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("not timed: claim"), "{}", text(&done.stderr));
    let verdicts = &results(place.path(), "smoke")["verdicts"];
    assert_eq!(verdicts[0]["ruling"], "reproduced", "{verdicts}");
    assert_eq!(verdicts[1]["ruling"], "not-testable", "{verdicts}");
}

#[test]
fn a_run_that_diverges_is_shown_and_the_others_are_made() {
    let place = folder(1);
    let done = reproduce(place.path(), &["--scale", "quick"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let found = results(place.path(), "quick");
    let expected = [("dense", "finished"), ("topk-0.1", "finished"), ("wild", "diverged")];
    let expected = expected.map(|(arm, state)| (arm.to_string(), state.to_string()));
    assert_eq!(states(&found), expected);
    assert!(text(&done.stderr).contains("diverged"), "{}", text(&done.stderr));
    let again = reproduce(place.path(), &["--scale", "quick"]);
    assert_eq!(text(&again.stderr).matches("was there already").count(), 3);
}

#[test]
#[cfg(unix)]
fn a_grid_that_was_stopped_goes_on_where_it_was() {
    let whole = folder(12);
    assert!(reproduce(whole.path(), &["--scale", "quick", "--only", "topk"]).status.success());
    let place = folder(12);
    let arguments = ["--scale", "quick", "--only", "topk"];
    let mut child = command(place.path(), &arguments)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let record = place.path().join("out/small-quick/task/topk-0.1/seed-1/metrics.jsonl");
    let patience = Instant::now() + Duration::from_secs(120);
    while !fs::read_to_string(&record).is_ok_and(|text| text.contains(r#""event":"step","step":3"#))
    {
        assert!(Instant::now() < patience, "no third step");
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be stopped");
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let stopped = child.wait_with_output().unwrap();
    assert_eq!(stopped.status.code(), Some(130), "{}", text(&stopped.stderr));
    assert!(text(&stopped.stderr).contains("--resume"), "{}", text(&stopped.stderr));
    assert_eq!(states(&results(place.path(), "quick"))[0].1, "unfinished");

    let done = reproduce(place.path(), &["--scale", "quick", "--only", "topk", "--resume"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(!place.path().join("out/superseded").exists(), "it was begun again");
    let figures = |place: &Path| {
        let found = results(place, "quick");
        let measured = found["runs"][0]["measured"].clone();
        (measured["losses"].clone(), measured["summary"]["test_accuracy"].clone())
    };
    assert_eq!(figures(place.path()), figures(whole.path()));
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let place = folder(1);
    for (arguments, part) in [
        (vec!["--scale", "full"], "no scale full, but smoke, quick"),
        (vec!["--scale", "smoke", "--only", "tpok"], "topk-0.1"),
        (vec!["--scale", "smoke", "--set", "train.bach=3"], "did you mean `batch`"),
        (vec!["--scale", "smoke", "--links", "1gbat"], "1gbat"),
    ] {
        let refused = reproduce(place.path(), &arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        let error = text(&refused.stderr);
        assert!(error.contains(part), "{arguments:?}: {error}");
        assert!(
            !place.path().join("out").exists()
                || !place.path().join("out/small-smoke/task").exists()
        );
    }
    let unknown = Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .args(["reproduce", "sidcoo"])
        .output()
        .unwrap();
    assert!(text(&unknown.stderr).contains("did you mean `sidco`?"), "{}", text(&unknown.stderr));
}

#[test]
fn the_list_and_the_dry_run_say_what_there_is() {
    let list = Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .args(["reproduce", "--list"])
        .output()
        .unwrap();
    for name in ["aggregation", "casq", "dqsgd", "grace", "optquant", "sidco"] {
        assert!(text(&list.stdout).contains(&format!("{name}: ")), "{name}");
    }
    let place = folder(1);
    let dry = reproduce(place.path(), &["--scale", "smoke", "--dry-run"]);
    let said = text(&dry.stdout);
    assert!(said.contains("3 steps of 16 samples, 4 runs, about"), "{said}");
    assert!(said.contains("all together about"), "{said}");
    assert!(!place.path().join("out/small-smoke/task").exists());
}

/// One of the paper's experiments as it is built in.
#[test]
fn a_built_in_experiment_runs_at_its_smallest() {
    let place = tempfile::tempdir().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .current_dir(place.path())
        .args(["reproduce", "casq", "--scale", "smoke", "--seeds", "1", "--out", "out"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(place.path().join("out/casq-smoke/results.json").is_file());
}
