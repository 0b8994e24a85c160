//! `gradwire sweep`, from outside: a question is asked, answered, asked again and edited; and what
//! `gradwire new` prints to start from.

use crate::common::{Program, says, words};
use gradwire::disk::Disk;
use gradwire::record::lock;
use std::fs;
use std::path::Path;

/// A sweep that takes seconds in a debug build.
const ASKED: &str = "sweep ag-news-dense --dataset synthetic-ag-news --model fasttext --workers 2 \
                     --seeds 2 --set train.max_steps=3 --name small --over scheme=dense,topk,sidco \
                     --over scheme.ratio=0.5,0.1";

fn asked<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [words(ASKED), more.to_vec()].concat()
}

#[test]
fn a_question_is_answered_by_one_command_and_can_be_edited() {
    let program = Program::new();
    let questions = [
        "--ask",
        "bits per parameter at most 6",
        "--ask",
        "topk: step seconds at 1mbit at least 2 times as fast as dense",
    ];
    let planned = program.succeed(&asked(&[&questions[..], &["--dry-run"]].concat()));
    assert!(planned.contains("10 runs") && planned.contains("all together about"), "{planned}");
    assert_eq!(planned.matches("\n  dense, seeds 1 2: dense").count(), 1, "{planned}");
    assert!(!program.path("runs/out/small-sweep/fasttext").exists(), "no run is made");

    let told = program.succeed(&asked(&questions));
    let parts = [
        "bits per parameter at most 6?",
        "step seconds at 1mbit at least 2 times as fast as dense?",
        "sidco(ratio=0.1)",
        "report in runs/out/small-sweep/report.html",
    ];
    says(&told, &parts);
    let (bits, seconds) = told.split_once("step seconds at 1mbit at least 2").unwrap();
    for (arm, answer) in [("dense", "NO"), ("topk(ratio=0.5)", "NO"), ("topk(ratio=0.1)", "YES")] {
        let row =
            bits.lines().rev().find(|line| line.split_whitespace().next() == Some(arm)).unwrap();
        assert_eq!(row.split_whitespace().nth(1), Some(answer), "{told}");
        assert!(row.ends_with("≤ 6"), "what counts stands beside it: {told}");
    }
    assert!(seconds.contains("topk(ratio=0.1)"), "{told}");
    assert!(!seconds.contains("sidco"), "it was not asked of SIDCo\n{told}");
    let report = fs::read_to_string(program.path("runs/out/small-sweep/report.md")).unwrap();
    assert!(report.contains("Asked and measured") && !report.contains("claimed"), "{report}");

    // The same again makes no run, and says so before; neither does the experiment that it left, with
    // another claim.
    let planned = program.succeed(&asked(&[&questions[..], &["--dry-run"]].concat()));
    let made = "10 of them made already";
    says(&planned, &[&format!("10 runs in runs/out/small-sweep, {made}"), "together about 0 s"]);
    let rulings = program.rows(&asked(&[&questions[..], &["--json"]].concat()));
    assert_eq!(rulings.len(), 5 + 2);
    assert_eq!(rulings[0]["ruling"], "contradicted");
    let left = program.path("runs/out/small-sweep/experiment.toml");
    let text = fs::read_to_string(&left).unwrap().replace("at_most = 6.0", "at_most = 40.0");
    fs::write(&left, text).unwrap();
    let (out, err) = program.outputs(&["reproduce", "runs/out/small-sweep/experiment.toml"]);
    assert_eq!(err.matches("was there already").count(), 10, "{err}");
    let asked = out.split_once("bits per parameter at most 6?").unwrap().1;
    let row = asked.lines().find(|line| line.starts_with("dense")).unwrap();
    assert!(row.contains("YES") && row.ends_with("≤ 40"), "{out}");
}

/// The best of a rate at which nothing is learned and of one that learns; where no value trains, the recipe's.
#[test]
fn each_arm_chooses_a_value_on_what_is_held_out() {
    let program = Program::new();
    let rates = ["--tune", "optimizer.learning_rate=0.000001,0.5", "--set", "train.max_steps=30"];
    let tune = asked(&rates);
    let planned = program.succeed(&[&tune[..], &["--dry-run"]].concat());
    says(
        &planned,
        &["first 10 runs in which each arm chooses optimizer.learning_rate", "10 runs in"],
    );
    let (_, told) = program.outputs(&tune);
    assert_eq!(told.matches("seed 0:").count(), 10, "{told}");
    let folder = program.path("runs/out/small-sweep");
    let of = |name: &str| {
        let recipe = fs::read_to_string(folder.join(name).join("recipe.toml")).unwrap();
        let has = |line: &str| recipe.lines().any(|there| there == line);
        (has("learning_rate = 0.5"), has("validation = 0.1"))
    };
    assert_eq!(of("tuning/optimizer.learning_rate=0.5/fasttext/dense/seed-0"), (true, true));
    for arm in ["dense", "topk-0.5", "sidco-0.1"] {
        assert_eq!(of(&format!("fasttext/{arm}/seed-1")), (true, false), "{arm}");
    }
    let report = fs::read_to_string(folder.join("report.md")).unwrap();
    says(&report, &["Chosen on held-out samples", "0.5 **(edge)**"]);
    // Nothing is made again, and the plan knows it.
    let (_, again) = program.outputs(&tune);
    assert_eq!(again.matches("was there already").count(), 20, "{again}");
    let planned = program.succeed(&[&tune[..], &["--dry-run"]].concat());
    assert_eq!(planned.matches(", 10 of them made already").count(), 3, "{planned}");
}

#[test]
fn what_cannot_be_asked_is_refused_before_anything_is_made() {
    let program = Program::new();
    for (more, part) in [
        (vec!["--ask", "accuracy within 1 % of dense"], "points"),
        (vec!["--ask", "accuracy within 1 point of dnse"], "arms: dense, topk-0.5"),
        (vec!["--ask", "seconds to loss at 100mbit at most 60 s"], "at least 30 % less than dense"),
        (vec!["--over", "scheme.ratoi=1,2"], "ratoi"),
        (vec!["--over", "train.batch"], "no '='"),
        (vec!["--baseline", "casq"], "casq"),
        (vec!["--seed", "3"], "--seeds"),
        (vec!["--set", "seed = 3"], "--seeds"),
        (vec!["--over", "seed=1,2"], "--seeds"),
        (vec!["--ask", "bits per parameter at most 1 byte"], "is not measured in byte"),
        (vec!["--links", "1gbat"], "1gbat"),
        (vec!["--tune", "optimizer.learning_rate=0.1"], "nothing to choose"),
        (vec!["--tune", "optimizer.learning_rat=0.1,0.2"], "did you mean `learning_rate`"),
        (vec!["--set", "train.bach=3"], "did you mean `batch`"),
    ] {
        program.refuses(&asked(&more), 2, &[part]);
    }
    let line = ASKED.replace("--seeds 2", "--until-decided");
    program.refuses(&words(&line), 2, &["nothing is asked that could be undecided"]);
    let line = ASKED.replace("--name small", "--name ../up");
    program.refuses(&line.split_whitespace().collect::<Vec<_>>(), 2, &["folder"]);
    assert!(!program.path("runs").exists());
    // That takes a plan, and so the made-up data.
    let alike = ["--over", "train.batch=4,8", "--tune", "train.batch=4,8"];
    program.refuses(&asked(&alike), 2, &["differ in nothing else"]);
}

#[test]
fn a_setting_that_only_some_arms_have_is_noted() {
    let over =
        ["sweep", "first-look", "--over", "optimizer=sgd,adamw", "--steps", "1", "--dry-run"];
    let notes = |more: &[&str]| Program::new().outputs(&[&over[..], more].concat()).1;
    let told = notes(&["--lr", "0.003"]);
    assert!(
        told.contains("note: optimizer.learning_rate counts where an arm's optimizer"),
        "{told}"
    );
    assert!(!notes(&["--epochs", "1"]).contains("counts where"), "{told}");
}

#[test]
fn what_is_printed_to_start_from_can_be_run() {
    let program = Program::new();
    let save = |what: &str, more: &[&str]| {
        let text = program.succeed(&[&["new", what], more].concat());
        fs::write(program.path("mine.toml"), text).unwrap();
    };
    save("recipe", &[]);
    let dry = program.succeed(&["train", "mine.toml", "--dry-run"]);
    assert!(dry.contains("name = \"mine\"") && dry.contains("ratio = 0.01"), "{dry}");
    save("recipe", &["--from", "cifar10-dgc"]);
    let dry = program.succeed(&["train", "mine.toml", "--dry-run"]);
    assert!(dry.contains("kind = \"dgc\""), "{dry}");
    save("experiment", &[]);
    let dry = program.succeed(&["reproduce", "mine.toml", "--scale", "small", "--dry-run"]);
    assert!(dry.contains("mine, small: 9 runs") && dry.contains("topk-0.01"), "{dry}");
    let parts = ["large, small: name one with --scale"];
    program.refuses(&["reproduce", "mine.toml", "--dry-run"], 2, &parts);
    program.refuses(&["new", "recipe", "--from", "nothing"], 2, &["cifar10-topk"]);
}

#[test]
fn another_question_of_the_same_name_keeps_the_report_of_the_first() {
    let program = Program::new();
    let line = ASKED.replace("--seeds 2", "--seeds 1").replace(",sidco", "").replace("0.5,", "");
    let ask = |question: &str| {
        let line = line.split_whitespace();
        program.outputs(&line.chain(["--ask", question]).collect::<Vec<_>>()).1
    };
    let folder = program.path("runs/out/small-sweep");
    let aside = program.path("runs/out/superseded/small-sweep/report-1");
    let of = |folder: &Path| {
        ["experiment.toml", "report.md", "results.json"]
            .map(|name| fs::read(folder.join(name)).unwrap())
    };
    ask("bits per parameter at most 6");
    let first = of(&folder);
    let again = ask("bits per parameter at most 6");
    assert!(!aside.exists() && of(&folder)[0] == first[0], "{again}");
    let first = of(&folder);
    let second = ask("bits per parameter at most 7");
    says(&second, &["moved what was there to runs/out/superseded/small-sweep/report-1", "--name"]);
    assert!(of(&aside) == first && of(&folder) != first);
    assert!(second.matches("was there already").count() == 2, "{second}");
}

/// A run that another process is at work in is neither moved away nor begun again.
#[test]
fn a_run_that_is_being_written_stays_where_it_is() {
    let program = Program::new();
    let line = ASKED.replace("--seeds 2", "--seeds 1").replace(",sidco", "").replace("0.5,", "");
    let longer = line.replace("max_steps=3", "max_steps=4");
    let same: Vec<&str> = line.split_whitespace().collect();
    let other: Vec<&str> = longer.split_whitespace().collect();
    let on = [&same[..], &["--resume"]].concat();
    program.succeed(&same);
    let run = program.path("runs/out/small-sweep/fasttext/dense/seed-1");
    let metrics = run.join("metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    let is_end = |line: &&str| line.contains("\"event\":\"finished\"");
    let open: String = whole.split_inclusive('\n').filter(|line| !is_end(line)).collect();
    assert_ne!(open, whole);
    fs::write(&metrics, &open).unwrap();
    // What the results have need not be made again.
    fs::remove_file(program.path("runs/out/small-sweep/results.json")).unwrap();

    let held = lock(&Disk::default(), &run).unwrap();
    for sweep in [&on, &same, &other] {
        program.refuses(sweep, 1, &["another process is training in", "dense/seed-1"]);
        assert_eq!(fs::read_to_string(&metrics).unwrap(), open, "{sweep:?}");
    }
    let aside = program.path("runs/out/superseded/small-sweep/fasttext/dense/seed-1-1");
    assert!(!aside.exists());
    drop(held);
    program.succeed(&on);
    assert_eq!(fs::read_to_string(aside.join("metrics.jsonl")).unwrap(), open);
    assert!(fs::read_to_string(&metrics).unwrap().contains("\"event\":\"finished\""));
}
