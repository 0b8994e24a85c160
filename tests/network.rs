//! The virtual network, from the command line: runs are recorded and replayed.

use crate::common::{
    Program, argument, entries, events, json_lines, number, numbers, only_run, quick, says, sets,
};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A finished run of three workers, and the program that made it.
fn trained(more: &[&str]) -> (Program, PathBuf) {
    let program = Program::new();
    let run = program.train(&[&["--workers", "3"], more].concat());
    (program, run)
}

/// The lines of `network.jsonl`.
fn recorded(run: &Path) -> Vec<Value> {
    json_lines(&fs::read_to_string(run.join("network.jsonl")).unwrap())
}

/// `network replay --json` of a run.
fn replayed(program: &Program, run: &Path, more: &[&str]) -> Vec<Value> {
    let run = argument(run);
    program.rows(&[&["network", "replay", run, "--json"], more].concat())
}

#[test]
fn every_step_is_recorded_and_any_link_can_be_replayed() {
    let (program, run) = trained(&["--scheme", "topk"]);
    let lines = recorded(&run);
    assert_eq!(lines[0]["ranks"], 3);
    assert_eq!(lines.len(), 1 + 12);
    for (row, step) in lines[1..].iter().zip(events(&run, "step")) {
        let up = row["up"].as_array().unwrap();
        let sent: f64 = up.iter().map(|of| of[0].as_f64().unwrap()).sum();
        assert!((sent / 3.0 - number(&step, "wire_bytes")).abs() < 1e-6, "{row} {step}");
        // A step's seconds are the mean over its ranks, any one of which may take longer.
        let ranks = row["compute"].as_array().unwrap().iter();
        let spans = ranks.flat_map(|rank| rank.as_array().unwrap());
        let mean = spans.map(|span| span.as_f64().unwrap()).sum::<f64>() / 3.0;
        assert!(mean > 0.0 && mean / 1e9 < number(&step, "seconds"), "{row} {step}");
    }

    let links = "10mbit,100mbit,1gbit,latency=1ms,100gbit";
    let rows = replayed(&program, &run, &["--links", links]);
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[2]["link"], "1gbit,latency=1ms");
    assert_eq!(rows[0]["pattern"], "ring allgather");
    let seconds = numbers(&rows, "total_seconds");
    assert!(seconds[0] > seconds[1] && seconds[1] > seconds[3], "{seconds:?}");
    let exposed = numbers(&rows, "exposed_seconds");
    assert!(exposed[0] > 5.0 * exposed[1] && exposed[1] > 2.0 * exposed[3], "{exposed:?}");
    assert_eq!(rows, replayed(&program, &run, &["--links", links]), "it is the same again");

    // A step of a given length, without what encoding takes: the link's cost is what it was.
    let with = ["--links", "100mbit", "--compute", "2", "--codec-speed", "1e9"];
    let [given] = &replayed(&program, &run, &with)[..] else { panic!("one link") };
    let (step, cost) = (number(given, "step_seconds"), number(given, "exposed_seconds"));
    assert!((step - 2.0 - cost).abs() < 1e-6, "{given}");
    what_cannot_be_replayed_is_refused(&program, &run);
}

#[test]
fn a_replay_prints_a_table() {
    let (program, run) = trained(&["--scheme", "dense"]);
    let path = argument(&run);
    let before = entries(&run);
    let table = program.succeed(&["network", "replay", path, "--to", "0.01,1"]);
    says(&table, &["ring allreduce", "100mbit", "1gbit", "10gbit", "to 1 %", "to 100 %", "never"]);
    assert_eq!(entries(&run), before, "it leaves the run as it is");
    for links in [&["--links", "wan,1gbit,wan"][..], &["--links", "wan", "--link", "wan "]] {
        let again = [&["network", "replay", path], links].concat();
        program.refuses(&again, 2, &["wan is given twice"]);
    }
}

/// What leaves at a step's end costs nothing where the step beside it takes longer, and all of its time where that takes
/// none; the last step waits for all.
#[test]
fn a_round_in_fragments_is_replayed_as_it_went() {
    let rounds = sets("local.steps=4 outer={fragments=2,delay=1} policy.bucketing=parameter");
    let (program, run) = trained(&[&["--scheme", "topk"], &rounds[..]].concat());
    let sent = numbers(&events(&run, "step"), "wire_bytes");
    for (step, row) in (1..).zip(&recorded(&run)[1..]) {
        let groups = row["up"][0].as_array().unwrap().len();
        assert_eq!(groups, if step == 12 { 2 } else { 1 - step % 2 }, "{row}");
        assert_eq!(row["delay"] == 1, step % 2 == 0 && step < 12, "{row}");
    }
    // Around a ring of three each message crosses twice.
    let link = "{ bandwidth = \"1mbit\", latency = \"0s\", header = 0 }";
    for (compute, bytes) in [("0", sent.iter().sum::<f64>()), ("2", sent[11])] {
        let with = ["--link", link, "--compute", compute, "--codec-speed", "1e9"];
        let [found] = &replayed(&program, &run, &with)[..] else { panic!("one link") };
        let [seconds, exposed] =
            ["total_seconds", "total_exposed_seconds"].map(|key| number(found, key));
        let expected = 2.0 * bytes * 8.0 / 1e6;
        assert!((exposed / expected - 1.0).abs() < 0.01, "{found} {expected}");
        let computed = 12.0 * compute.parse::<f64>().unwrap();
        assert!((seconds - computed - exposed).abs() < 1e-6, "{found}");
    }
}

/// Two groups of two: what moves within a group takes the groups' link, what moves between them the other.
#[test]
fn levels_are_replayed_each_on_its_own_link() {
    let program = Program::new();
    let two = sets("scheme=topk exchange.topology={kind='two-level',group=2}");
    let run = program.train(&[&["--workers", "4"], &two[..]].concat());
    // The first of a group is its busiest, and each group waits for the other's message.
    let busiest = |row: &Value, key: &str| {
        let ranks = row[key].as_array().unwrap().iter();
        ranks.map(|of| of[0].as_f64().unwrap()).fold(0.0, f64::max)
    };
    let bits =
        |key: &str| 8.0 * recorded(&run)[1..].iter().map(|row| busiest(row, key)).sum::<f64>();
    let (within, between) = (bits("local"), bits("up"));
    assert!(within > 2.0 * between && between > 0.0, "{within} {between}");
    for (between_mbit, within_mbit) in [(1.0, 1e6), (1e6, 1.0), (1.0, 2.0)] {
        let link = format!(
            "{{ bandwidth = \"{between_mbit}mbit\", local = \"{within_mbit}mbit\", latency = \"0s\", \
             local_latency = \"0s\", header = 0 }}"
        );
        let with = ["--link", &link, "--compute", "0", "--codec-speed", "1e9"];
        let [found] = &replayed(&program, &run, &with)[..] else { panic!("one link") };
        let expected = within / within_mbit / 1e6 + between / between_mbit / 1e6;
        let seconds = number(found, "total_seconds");
        assert!((seconds / expected - 1.0).abs() < 0.01, "{found} {expected}");
    }
}

#[test]
fn runs_are_compared() {
    let program = Program::new();
    let mut runs = Vec::new();
    for scheme in ["dense", "topk"] {
        program.succeed(&quick(&["--scheme", scheme, "--set", &format!("name={scheme}")]));
        runs.push(only_run(&program.path("runs/out").join(scheme)));
    }
    let [dense, topk] = [0, 1].map(|i| runs[i].to_str().unwrap());
    let out = program.succeed(&["network", "replay", dense, topk, "--to", "0.01"]);
    assert!(out.contains("time to 1 % on the test set"), "{out}");
    let rows = program.rows(&["network", "replay", dense, topk, "--json"]);
    assert_eq!(rows.len(), 6);
    assert!(number(&rows[0], "exposed_seconds") > 3.0 * number(&rows[3], "exposed_seconds"));
}

fn what_cannot_be_replayed_is_refused(program: &Program, run: &Path) {
    let path = argument(run);
    for (arguments, part) in [
        (&["--links", "fast"][..], "such as 250mbit"),
        (&["--links", "0mbit"], "bandwidth = 0"),
        (&["--links", "-1gbit"], "bandwidth = -1"),
        (&["--links", "1gbit,latensy=1ms"], "the keys are"),
        (&["--link", "{ bandwidth = \"1gbit\", burts = 1 }"], "burts"),
        (&["--compute", "-1"], "--compute"),
        (&["--compute", "nan"], "--compute"),
        (&["--codec-speed", "0"], "--codec-speed"),
        (&["--to", "90"], "0.9 for 90 %"),
    ] {
        let all = [&["network", "replay", path], arguments].concat();
        program.refuses(&all, 2, &[part]);
    }
    let other = "{ bandwidth = \"1gbit\", ranks = [{ rank = 7, slowdown = 2.0 }] }";
    program.refuses(&["network", "replay", path, "--link", other], 1, &["rank 7", "3 ranks"]);
    let parts = ["nowhere", "the folder of a run"];
    program.refuses(&["network", "replay", "nowhere/at/all"], 1, &parts);

    for (file, line) in [("network.jsonl", 4), ("metrics.jsonl", 3)] {
        let text = fs::read_to_string(run.join(file)).unwrap();
        let bad: Vec<String> = (1..)
            .zip(text.lines())
            .map(|(n, l)| if n == line { l.replacen(':', ";", 1) } else { l.to_string() })
            .collect();
        fs::write(run.join(file), bad.join("\n") + "\n").unwrap();
        program.refuses(&["network", "replay", path], 1, &[&format!("{file}, line {line}")]);
        fs::write(run.join(file), text).unwrap();
    }
}

#[test]
fn links_with_names_are_listed() {
    let list = Program::new().succeed(&["network", "links"]);
    assert!(list.contains("datacenter") && list.contains("100mbit"), "{list}");
}

#[test]
fn a_recipe_may_leave_the_record_out() {
    let (program, run) = trained(&["--set", "record.network=false"]);
    assert!(!run.join("network.jsonl").exists());
    program.refuses(&["network", "replay", argument(&run)], 1, &["record.network=false"]);
}
