//! `gradwire reproduce`, from outside: grids that are run once, stopped and gone on with, and what
//! goes wrong in them.

use crate::common::{Program, number, says, signal, texts, until};
use gradwire_study::decision::looks;
use serde_json::Value;
use std::fs;
use std::process::Stdio;

const EXPERIMENT: &str = r#"
title = "A small experiment"
paper = "Nobody 2026"
baseline = "dense"
links = ["1gbit"]

[recipe]
workers = 2
dataset = "synthetic-cifar10"
samples = { train = 64, test = 32 }
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

/// The command that runs the small experiment, with more arguments.
fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["reproduce", "small.toml", "--out", "out"], more].concat()
}

/// The same at the scale `smoke`.
fn smoke<'a>(more: &[&'a str]) -> Vec<&'a str> {
    small(&[&["--scale", "smoke"], more].concat())
}

/// The program beside the experiment, and beside another claim of the scale `smoke` if there is one.
fn beside(epochs: u32, claim: &str) -> Program {
    let program = Program::new();
    let text = EXPERIMENT.replace("STEPS", &epochs.to_string()) + claim;
    fs::write(program.path("small.toml"), text).unwrap();
    program
}

fn results(program: &Program, scale: &str) -> Value {
    let path = program.path(&format!("out/small-{scale}/results.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Another machine, to which only the `results.json` of the scale `smoke` was copied.
fn elsewhere(place: &Program) -> Program {
    let elsewhere = beside(1, "");
    fs::create_dir_all(elsewhere.path("out/small-smoke")).unwrap();
    fs::copy(place.path(RESULTS), elsewhere.path(RESULTS)).unwrap();
    elsewhere
}

/// The results of the scale `smoke`.
const RESULTS: &str = "out/small-smoke/results.json";

/// How many runs were not made again.
fn there_already(said: &str) -> usize {
    said.matches("was there already").count()
}

fn states(results: &Value) -> Vec<(String, String)> {
    let runs = results["runs"].as_array().unwrap();
    let word = |value: &Value| value.as_str().unwrap().to_string();
    runs.iter().map(|run| (word(&run["arm"]), word(&run["outcome"]["state"]))).collect()
}

#[test]
fn a_grid_is_run_once_and_judged() {
    let place = beside(1, "");
    let (told, _) = place.outputs(&smoke(&[]));
    let row = told.lines().find(|line| line.starts_with("Top-k sends at most")).unwrap();
    assert!(row.contains("REPRODUCED") && row.contains("≤ 0.34×"), "{told}");
    let found = results(&place, "smoke");
    assert_eq!(found["runs"].as_array().unwrap().len(), 4);
    assert!(states(&found).iter().all(|(_, state)| state == "finished"));
    let verdict = &found["verdicts"][0];
    assert_eq!(verdict["ruling"], "reproduced");
    assert_eq!(verdict["measured"]["seeds"], 2);
    let run = place.path("out/small-smoke/task/topk-0.1/seed-2");
    assert!(run.join("metrics.jsonl").is_file() && !run.join("checkpoints").exists());
    let measured = &found["runs"][3]["measured"];
    assert_eq!(measured["losses"].as_array().unwrap().len(), 3);
    assert_eq!(measured["links"][0]["at_losses"].as_array().unwrap().len(), 3);

    // Nothing is made again, and nothing changes.
    let record = fs::read(run.join("metrics.jsonl")).unwrap();
    let (_, said) = place.outputs(&smoke(&[]));
    assert_eq!(there_already(&said), 4, "{said}");
    assert_eq!(fs::read(run.join("metrics.jsonl")).unwrap(), record);
    assert_eq!(results(&place, "smoke"), found);

    // Where `results.json` is, the runs have been made, whatever lies in the place of one.
    let elsewhere = elsewhere(&place);
    fs::create_dir_all(elsewhere.path("out/small-smoke/task/dense/seed-1")).unwrap();
    let (_, said) = elsewhere.outputs(&smoke(&["--seeds", "3"]));
    assert_eq!(there_already(&said), 4, "{said}");
    let of_three = results(&elsewhere, "smoke");
    assert_eq!(of_three["verdicts"][0]["measured"]["seeds"], 3);
    assert_eq!(of_three["runs"][0], found["runs"][0]);
    let shorter = ["--set", "train.max_steps=2"];
    let (_, said) = texts(&elsewhere.run(&smoke(&shorter)));
    assert_eq!(there_already(&said), 0, "another recipe: {said}");

    // Another recipe is another run; what was there is kept.
    let (_, said) = place.outputs(&smoke(&shorter));
    assert_eq!(said.matches("moved what was there").count(), 4, "{said}");
    let aside = place.path("out/superseded/small-smoke/task/topk-0.1/seed-2-1");
    assert_eq!(fs::read(aside.join("metrics.jsonl")).unwrap(), record);

    // What was not asked for, but is there, still counts.
    let alone = ["--json", "--only", "topk"];
    let [line] = &place.rows(&smoke(&[&shorter[..], &alone].concat()))[..] else { panic!("one") };
    assert_eq!((&line["ruling"], &line["measured"]["seeds"]), (&"reproduced".into(), &2.into()));
    let [line] = &place.rows(&smoke(&alone))[..] else { panic!("one") };
    assert_eq!(line["ruling"], "not-testable", "its baseline is of another recipe");

    // A record that is damaged is said, and not passed over.
    let shown = place.path("out/small-smoke/task/topk-0.1/seed-1/network.jsonl");
    let whole = fs::read_to_string(&shown).unwrap();
    fs::write(&shown, whole.replacen("\"step\":2", "\"step\":7", 1)).unwrap();
    place.refuses(&smoke(&alone), 1, &["network.jsonl"]);
}

/// The folders of the runs are on the machine that made them: what only `results.json` holds is neither
/// lost nor made again, whatever is asked for in between.
#[test]
fn what_was_copied_outlives_other_questions() {
    let place = beside(1, "");
    let three = ["--seeds", "3"];
    place.succeed(&smoke(&three));
    let elsewhere = elsewhere(&place);
    let planned = elsewhere.succeed(&smoke(&[&three[..], &["--dry-run"]].concat()));
    says(&planned, &["6 runs in out/small-smoke, 6 of them made already", "together about 0 s"]);
    let (runs, file) = (results(&place, "smoke")["runs"].clone(), elsewhere.path(RESULTS));
    assert_eq!(fs::read(&file).unwrap(), fs::read(place.path(RESULTS)).unwrap());

    // Fewer seeds: the third is in no table, and there when it is asked for again.
    elsewhere.succeed(&smoke(&["--seeds", "2"]));
    let fewer = results(&elsewhere, "smoke");
    let count = |key: &str| fewer[key].as_array().unwrap().len();
    assert_eq!((count("runs"), count("others")), (4, 2));
    assert_eq!(fewer["verdicts"][0]["measured"]["seeds"], 2);
    let table = fs::read_to_string(elsewhere.path("out/small-smoke/runs.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 4, "{table}");
    let (_, said) = elsewhere.outputs(&smoke(&three));
    assert_eq!(there_already(&said), 6, "{said}");
    let found = results(&elsewhere, "smoke");
    assert_eq!((&found["runs"], &found["others"]), (&runs, &Value::Null));

    // Other links: a replay takes the record.
    let before = fs::read(&file).unwrap();
    let other_links = [&three[..], &["--links", "wan"]].concat();
    let parts = ["replayed on 1gbit", "cannot be replayed on wan", "another --out"];
    elsewhere.refuses(&smoke(&other_links), 1, &parts);
    elsewhere.refuses(&smoke(&[&other_links[..], &["--dry-run"]].concat()), 1, &parts);
    assert_eq!(fs::read(&file).unwrap(), before);

    // Another recipe: the file is kept where superseded runs are.
    let shorter = ["--only", "dense", "--set", "train.max_steps=2"];
    let (_, said) = elsewhere.outputs(&smoke(&shorter));
    says(&said, &["kept what results.json held in out/superseded", "train.max_steps was 3, is 2"]);
    let copy = elsewhere.path("out/superseded/small-smoke/results-1.json");
    assert_eq!(fs::read(&copy).unwrap(), before);
    let (_, said) = elsewhere.outputs(&smoke(&shorter));
    assert!(!said.contains("kept what"), "{said}");
    assert_eq!(results(&elsewhere, "smoke")["others"].as_array().unwrap().len(), 2);
}

/// Accuracies after three steps differ much from seed to seed: whether they are a fifth cannot be told. Arms
/// of other claims get no more seeds.
#[test]
fn what_is_undecided_gets_more_seeds() {
    let chance = r#"
[[tasks]]
name = "elsewhere"
label = "A task that this scale does not train"

[[claims]]
claim = "Dense is right in at least one of five"
source = "this test"
best_of = ["task", "elsewhere"]
arm = "dense"
measure = "accuracy"
at_least = 0.2
scales = ["smoke"]
otherwise = "not here"
"#;
    let place = beside(1, chance);
    let path = place.path("small.toml");
    let text = fs::read_to_string(&path).unwrap();
    let arms = r#"arms = ["dense", "topk"]"#;
    fs::write(&path, text.replace(arms, &format!("tasks = [\"task\"]\n{arms}"))).unwrap();
    let planned = place.succeed(&smoke(&["--until-decided", "--dry-run"]));
    let later = "then, of arms whose claims are undecided, seeds 4 to 6, and 7 to 10";
    assert!(planned.contains("6 runs") && planned.contains(later), "{planned}");
    let (told, _) = place.outputs(&smoke(&["--until-decided"]));
    let found = results(&place, "smoke");
    let count = |arm| states(&found).iter().filter(|(of, _)| of == arm).count();
    let verdict = &found["verdicts"][1];
    let seeds = verdict["measured"]["seeds"].as_u64().unwrap();
    assert!(seeds > 3, "three seeds decided: {verdict}");
    assert_eq!((count("dense") as u64, count("topk-0.1")), (seeds, 3));
    assert_eq!(found["looks"], 3);
    let look = looks(3).into_iter().find(|look| look.seeds as u64 == seeds).unwrap();
    assert!((number(verdict, "confidence") - (1.0 - 2.0 * look.side)).abs() < 1e-12, "{verdict}");
    assert!(told.contains("all 3 looks together"), "{told}");

    // Later commands judge by the same looks and seeds.
    for more in [&[][..], &["--until-decided", "--only", "topk-0.1"]] {
        place.outputs(&smoke(more));
        let again = results(&place, "smoke");
        assert_eq!((&again["looks"], &again["verdicts"]), (&found["looks"], &found["verdicts"]));
    }
}

/// A claim about speed is measured on a gradient that the run recorded; without one it is refused before
/// anything is trained.
#[test]
fn speed_is_timed_on_recorded_gradients() {
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
    let place = beside(1, fast);
    place.refuses(&smoke(&[]), 2, &["record.gradients"]);
    let path = place.path("small.toml");
    let records = fs::read_to_string(&path)
        .unwrap()
        .replace("record.every = 1", "record = { every = 1, gradients = \"{steps}\" }");
    fs::write(&path, records).unwrap();
    place.succeed(&smoke(&[]));
    let found = results(&place, "smoke");
    let timings = found["timings"].as_array().unwrap();
    assert_eq!(timings.len(), 2, "one for each seed");
    assert!(timings.iter().all(|timing| number(&timing["encode"], "median") > 0.0));
    assert_eq!(found["verdicts"][1]["ruling"], "reproduced", "{}", found["verdicts"][1]);
    place.succeed(&smoke(&[]));
    assert_eq!(results(&place, "smoke")["timings"], found["timings"], "timed once");

    // What is compared is timed in the same turns: one more arm, and the first is timed anew.
    let more = r#"
[[arms]]
name = "qsgd"
label = "QSGD"
recipe.scheme = "qsgd"

[[claims]]
claim = "Top-k encodes in less time than QSGD, or in more"
source = "this test"
task = "task"
arm = "topk-0.1"
against = "qsgd"
measure = "encode-seconds"
compare = "ratio"
unit = "factor"
at_least = 1e-9
scales = ["smoke"]
otherwise = "not here"
"#;
    let two = r#"arms = ["dense", "topk"]"#;
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace(two, r#"arms = ["dense", "topk", "qsgd"]"#) + more;
    fs::write(&path, text).unwrap();
    place.succeed(&smoke(&[]));
    let turns = results(&place, "smoke")["timings"].as_array().unwrap().clone();
    assert_eq!(turns.len(), 4, "two arms with two seeds");
    assert!(!turns.iter().any(|timing| timings.contains(timing)), "{turns:?}, {timings:?}");
    let (table, _) = texts(&place.run(&["report", "--claims", "out/small-smoke"]));
    let line = "| small | Top-k sends at most a third of dense | 0.2× |";
    assert!(table.contains(line), "{table}");
    // A report elsewhere is made anew, but not over runs that the results do not have.
    let shown = ["report", "out/small-smoke", "--out", "shown"];
    place.succeed(&shown);
    place.succeed(&shown);
    let held = place.path("shown/results.json");
    let mut more: Value = serde_json::from_slice(&fs::read(&held).unwrap()).unwrap();
    more["runs"][0]["seed"] = 9.into();
    let more = more.to_string();
    fs::write(&held, &more).unwrap();
    place.refuses(&shown, 1, &["shown holds the results of an experiment", "--out"]);
    assert_eq!(fs::read_to_string(&held).unwrap(), more);

    // A gradient on which nothing can be timed leaves its claim open, and the others judged.
    let folder = place.path("out/small-smoke");
    fs::remove_file(folder.join("results.json")).unwrap();
    let gradients = folder.join("task/topk-0.1/seed-1/gradients");
    for file in fs::read_dir(gradients).unwrap() {
        fs::write(file.unwrap().path(), b"nothing").unwrap();
    }
    let (_, said) = place.outputs(&smoke(&[]));
    assert!(said.contains("not timed: timing schemes on"), "{said}");
    let verdicts = &results(&place, "smoke")["verdicts"];
    assert_eq!(verdicts[0]["ruling"], "reproduced", "{verdicts}");
    assert_eq!(verdicts[1]["ruling"], "not-testable", "{verdicts}");
}

#[test]
fn a_run_that_diverges_is_shown_and_the_others_are_made() {
    let place = beside(1, "");
    let quick = small(&["--scale", "quick"]);
    let (_, said) = place.outputs(&quick);
    let expected = [("dense", "finished"), ("topk-0.1", "finished"), ("wild", "diverged")];
    let expected = expected.map(|(arm, state)| (arm.to_string(), state.to_string()));
    assert_eq!(states(&results(&place, "quick")), expected);
    assert!(said.contains("diverged"), "{said}");
    let (_, said) = place.outputs(&quick);
    assert_eq!(there_already(&said), 3, "{said}");
}

#[test]
#[cfg(unix)]
fn a_grid_that_was_stopped_goes_on_where_it_was() {
    let (whole, place) = (beside(12, ""), beside(12, ""));
    let arguments = small(&["--scale", "quick", "--only", "topk"]);
    whole.succeed(&arguments);
    let mut command = place.command(&arguments);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let record = place.path("out/small-quick/task/topk-0.1/seed-1/metrics.jsonl");
    until("no third step", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be stopped");
        let lines = fs::read_to_string(&record).ok()?;
        lines.contains(r#""event":"step","step":3"#).then_some(())
    });
    signal(child.id(), "-INT");
    let stopped = child.wait_with_output().unwrap();
    let (_, said) = texts(&stopped);
    assert_eq!(stopped.status.code(), Some(130), "{said}");
    assert!(said.contains("--resume"), "{said}");
    assert_eq!(states(&results(&place, "quick"))[0].1, "stopped");

    place.succeed(&[&arguments[..], &["--resume"]].concat());
    assert!(!place.path("out/superseded").exists(), "it was begun again");
    let figures = |place: &Program| {
        let found = results(place, "quick");
        let measured = found["runs"][0]["measured"].clone();
        (measured["losses"].clone(), measured["summary"]["test_accuracy"].clone())
    };
    assert_eq!(figures(&place), figures(&whole));
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let place = beside(1, "");
    for (arguments, part) in [
        (small(&["--scale", "full"]), "no scale full, but smoke, quick"),
        (smoke(&["--only", "tpok"]), "topk-0.1"),
        (smoke(&["--set", "train.bach=3"]), "did you mean `batch`"),
        (smoke(&["--links", "1gbat"]), "1gbat"),
    ] {
        place.refuses(&arguments, 2, &[part]);
        assert!(!place.path("out/small-smoke/task").exists());
    }
    let (_, error) = texts(&place.run(&["reproduce", "sidcoo"]));
    assert!(error.contains("did you mean `sidco`?"), "{error}");
}

#[test]
fn the_list_and_the_dry_run_say_what_there_is() {
    let place = beside(1, "");
    let list = place.succeed(&["reproduce", "--list"]);
    for name in ["aggregation", "casq", "dqsgd", "grace", "optquant", "sidco"] {
        assert!(list.contains(&format!("{name}: ")), "{name}");
    }
    let one = place.succeed(&["reproduce", "sidco", "--list"]);
    assert!(one.starts_with("sidco: ") && !one.contains("casq: "), "{one}");
    place.refuses(&["reproduce", "sidcoo", "--list"], 2, &["did you mean `sidco`?"]);
    let said = place.succeed(&smoke(&["--dry-run"]));
    assert!(said.contains("3 steps of 16 samples, 4 runs, about"), "{said}");
    assert!(said.contains("all together about"), "{said}");
    assert!(!place.path("out/small-smoke/task").exists());

    place.succeed(&smoke(&["--only", "dense"]));
    let said = place.succeed(&smoke(&["--dry-run"]));
    let made = "2 of them made already";
    says(
        &said,
        &[&format!("4 runs in out/small-smoke, {made}\n"), &format!("4 runs, {made}, about")],
    );
    assert!(!said.contains("together about 0 s"), "{said}");
}

/// One of the paper's experiments as it is built in.
#[test]
fn a_built_in_experiment_runs_at_its_smallest() {
    let program = Program::new();
    let smallest = ["reproduce", "casq", "--scale", "smoke", "--seeds", "1", "--out", "out"];
    program.succeed(&smallest);
    assert!(program.path("out/casq-smoke/results.json").is_file());
}
