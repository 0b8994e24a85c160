//! What a run survives, from the command line: each fault that can be injected, each signal, has
//! the outcome that the table of `docs/faults.md` gives it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Program, begun, events, number, only_run, quick, told, weights, words};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Twenty-four steps of four workers, a checkpoint every five.
const STEPS: &str = "--workers 4 --scheme topk --set train.max_steps=24 \
                     --set checkpoint.every_steps=5 --set exchange.timeout=2 \
                     --set dataset.train=800";

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    quick(&[&words(STEPS)[..], more].concat())
}

/// Runs with a fault; the exit code, absent when a signal ended it, and standard error.
fn injected(program: &Program, fault: &str, more: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } =
        program.run(&arguments(&[&["--inject", fault], more].concat()));
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

fn run_of(program: &Program) -> PathBuf {
    only_run(&program.path("runs/out/quick"))
}

fn undisturbed(more: &[&str]) -> (Vec<(String, Vec<u8>)>, Vec<Value>) {
    let program = Program::new();
    program.succeed(&arguments(more));
    let run = run_of(&program);
    (weights(&run), told(&run))
}

fn resume(program: &Program, run: &Path) {
    program.succeed(&["train", "--quiet", "--resume", run.to_str().unwrap()]);
}

#[test]
fn each_fault_has_its_documented_outcome() {
    // Of one message a step, and of two rounds.
    for scheme in [&["--set", "scheme=topk"], &["--set", "scheme=powersgd"]] {
        each_fault(scheme);
    }
}

fn each_fault(scheme: &[&str]) {
    let (weights_before, told_before) = undisturbed(scheme);
    for (fault, code, parts) in [
        ("panic:worker=2,step=12", Some(1), &["worker 2, step 12", "panicked: injected"][..]),
        (
            "stall:worker=1,step=12,for=60s",
            Some(1),
            &["worker 1, step 12", "rank 1 was silent for 2s", "the gradient of step 12"],
        ),
        ("corrupt:worker=0,step=12", Some(1), &["worker 0, step 12, exchange", "damaged"]),
        ("nan:worker=3,step=12", Some(1), &["worker 3, step 12", "non-finite", "rank 3"]),
        // Time for the checkpoint of step 5 or 10 to be written beside the training.
        ("stall:worker=1,step=12,for=1s; kill:step=13", None, &[]),
    ] {
        let program = Program::new();
        let began = Instant::now();
        let (found, error) = injected(&program, fault, scheme);
        let last = error.lines().last().unwrap_or_default();
        assert_eq!(found, code, "{fault}: {error}");
        assert!(parts.iter().all(|part| last.contains(part)), "{fault}: {error}");
        assert!(began.elapsed() < Duration::from_secs(30), "{fault}: {:?}", began.elapsed());
        let run = run_of(&program);
        assert_eq!(events(&run, "failed").len(), usize::from(code.is_some()), "{fault}");
        // The last checkpoint is kept, and leads to what would have been.
        resume(&program, &run);
        assert!(weights(&run) == weights_before, "{fault}: the weights");
        assert_eq!(told(&run), told_before, "{fault}: the record");
    }
}

#[test]
fn a_damaged_plain_message_is_its_senders() {
    for scheme in ["scheme=dense", "scheme=powersgd"] {
        let program = Program::new();
        let (code, error) = injected(&program, "corrupt:worker=0,step=12", &["--set", scheme]);
        assert_eq!(code, Some(1), "{error}");
        let last = error.lines().last().unwrap_or_default();
        for part in ["worker 0, step 12, exchange", "rank 0 for the gradient of step 12", "damaged"]
        {
            assert!(last.contains(part), "{error}");
        }
    }
}

#[test]
fn a_stall_shorter_than_the_patience_changes_nothing() {
    let (weights_before, told_before) = undisturbed(&[]);
    let program = Program::new();
    let (code, error) = injected(&program, "stall:worker=1,step=12,for=300ms", &[]);
    assert_eq!(code, Some(0), "{error}");
    let run = run_of(&program);
    assert!(weights(&run) == weights_before);
    assert_eq!(told(&run), told_before);
}

/// A single worker has no peers that could accuse it.
#[test]
fn a_single_worker_that_stalls_is_given_up() {
    let program = Program::new();
    let (code, error) = injected(
        &program,
        "stall:worker=0,step=12,for=60s",
        &["--set", "workers=1", "--set", "exchange.timeout=0.4"],
    );
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("worker 0, step 12") && error.contains("no progress"), "{error}");
}

#[test]
fn a_lost_worker_is_restarted_as_if_nothing_had_been() {
    let (weights_before, told_before) = undisturbed(&[]);
    for fault in [
        "panic:worker=2,step=12",
        "stall:worker=1,step=12,for=60s",
        "panic:worker=3,step=8; corrupt:worker=0,step=18; panic:worker=0,step=19",
    ] {
        let program = Program::new();
        let restart = ["--set", "faults.on_worker_loss=restart", "--set", "faults.restarts=3"];
        let (code, error) = injected(&program, fault, &restart);
        assert_eq!(code, Some(0), "{fault}: {error}");
        let run = run_of(&program);
        assert!(weights(&run) == weights_before, "{fault}: the weights");
        assert_eq!(told(&run), told_before, "{fault}: the record");
        let warnings = events(&run, "warning");
        let said = |w: &Value| w["message"].to_string().contains("start again from the checkpoint");
        assert!(warnings.iter().any(said), "{fault}: {warnings:?}");
    }
}

#[test]
fn restarts_are_counted_and_need_a_checkpoint() {
    let restart = ["--set", "faults.on_worker_loss=restart", "--set", "faults.restarts=1"];
    let program = Program::new();
    let fault = "panic:worker=3,step=8; panic:worker=2,step=9";
    let (code, error) = injected(&program, fault, &restart);
    assert_eq!(code, Some(1), "{error}");
    let last = error.lines().last().unwrap();
    assert!(last.contains("faults.restarts = 1") && last.contains("worker 2, step 9"), "{error}");

    let program = Program::new();
    let (code, error) = injected(&program, "panic:worker=3,step=4", &restart);
    assert_eq!(code, Some(1), "{error}");
    let last = error.lines().last().unwrap();
    assert!(last.contains("no checkpoint") && last.contains("worker 3, step 4"), "{error}");
}

#[test]
fn the_others_go_on_without_a_lost_worker() {
    let program = Program::new();
    let shrink = ["--set", "faults.on_worker_loss=shrink"];
    let (code, error) = injected(&program, "panic:worker=1,step=12", &shrink);
    assert_eq!(code, Some(0), "{error}");
    let run = run_of(&program);
    let warnings = events(&run, "warning");
    let said = |part: &str| warnings.iter().any(|w| w["message"].as_str().unwrap().contains(part));
    let from = (5..12).find(|step| {
        // Whichever had been written beside the training by then; one that is due while the writer
        // is busy comes a step later.
        said(&format!("the other 3 go on from the checkpoint of step {step} (1 of at most 3)"))
    });
    let from: usize = from.unwrap_or_else(|| panic!("{warnings:?}"));
    assert!(said("the mean over ranks stays as it was"), "{warnings:?}");
    let samples: Vec<f64> = events(&run, "step").iter().map(|s| number(s, "samples")).collect();
    assert_eq!(samples.len(), 24);
    assert_eq!(samples[from - 1] / samples[from], 4.0 / 3.0, "{samples:?}");
}

#[test]
fn faults_that_mean_nothing_are_refused() {
    let program = Program::new();
    for (fault, part) in [
        ("panik:worker=1,step=2", "did you mean `panic`"),
        ("panic:worker=4,step=2", "no worker 4 of 4"),
        ("kill:step=25", "beyond the run's last, 24"),
        ("stall:worker=1,step=2", "write `stall:worker=R,step=S,for=5s`"),
    ] {
        let (code, error) = injected(&program, fault, &[]);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(part), "{fault}: {error}");
    }
    assert!(!program.path("runs").exists(), "nothing was started");
}

/// A full disk costs a curve, a checkpoint or the run, and says so; what is on it stays usable.
#[test]
fn a_full_disk_is_told() {
    let (weights_before, told_before) = undisturbed(&[]);
    let program = Program::new();
    let (code, error) = injected(&program, "disk-full:write=3", &[]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("storage") && error.contains("--out"), "{error}");

    let program = Program::new();
    let (code, error) = injected(&program, "disk-full:sync-file=2", &[]);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains("could not be") && error.contains("training goes on"), "{error}");
    let run = run_of(&program);
    assert!(weights(&run) == weights_before);
    assert_eq!(told(&run), told_before);
}

/// A run long enough to be signalled.
fn long_run(program: &Program, more: &[&str]) -> Child {
    let long = ["--set", "train.max_steps=200000", "--epochs", "100000"];
    let rare = ["--set", "checkpoint.every_steps=0", "--set", "train.evaluate_every=100000"];
    let constant = ["--set", "schedule={kind=\"constant\"}"];
    Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .args(arguments(&[&long[..], &rare, &constant, more].concat()))
        .current_dir(program.folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    let kill = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_run_after_a_whole_step_with_a_checkpoint() {
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let program = Program::new();
        let child = long_run(&program, &[]);
        let run = begun(&program.path("runs/out/quick"));
        signal(&child, name);
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(code), "{error}");
        assert!(error.contains("train --resume"), "{error}");
        let steps = events(&run, "step");
        let last = number(&steps[steps.len() - 1], "step");
        let checkpoint = format!("checkpoints/step-{last:08}");
        assert!(run.join(&checkpoint).is_dir(), "{checkpoint}");

        // Two more steps from there are those of a run that nobody stopped.
        let sets = [format!("train.max_steps={}", last + 2.0), "train.epochs=100000".into()];
        let resume = ["train", "--quiet", "--resume", run.to_str().unwrap()];
        program.succeed(&[&resume[..], &["--set", &sets[0]]].concat());
        let other = Program::new();
        let rare = ["--set", "checkpoint.every_steps=0", "--set", "train.evaluate_every=100000"];
        let constant = ["--set", "schedule={kind=\"constant\"}"];
        let whole = [&["--set", &sets[0], "--set", &sets[1]][..], &rare, &constant].concat();
        other.succeed(&arguments(&whole));
        assert!(weights(&run) == weights(&run_of(&other)), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_the_process_at_once() {
    use std::os::unix::process::ExitStatusExt;
    let program = Program::new();
    let stall = ["--inject", "stall:worker=1,step=9,for=60s", "--set", "exchange.timeout=60"];
    let child = long_run(&program, &stall);
    begun(&program.path("runs/out/quick"));
    std::thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    signal(&child, "-TERM");
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, "-TERM");
    let status = child.wait_with_output().unwrap().status;
    assert_eq!(status.signal(), Some(15));
    assert!(began.elapsed() < Duration::from_secs(10));
}
