//! What a run survives, from the command line: each fault that can be injected, each signal, has
//! the outcome that the table of `docs/faults.md` gives it.

use crate::common::{
    Outcome, Program, begun, events, number, numbers, quick, says, sets, signal, texts, until,
    weights, words,
};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Twenty-four steps of four workers, a checkpoint every five.
const STEPS: &str = "--set workers=4 --set scheme=topk --set train.max_steps=24 \
                     --set checkpoint.every_steps=5 --set exchange.timeout=20 \
                     --set samples.train=800";

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    quick(&[&words(STEPS)[..], more].concat())
}

/// Runs with a fault; the exit code, absent when a signal ended it, and standard error.
fn injected(program: &Program, fault: &str, more: &[&str]) -> (Option<i32>, String) {
    // Ranks are patient, for a slow disk stands still as well, but not with one that a test stops.
    let patience: &[&str] = match fault.contains("for=60s") {
        true => &["--set", "exchange.timeout=2"],
        false => &[],
    };
    let output = program.run(&arguments(&[&["--inject", fault], patience, more].concat()));
    (output.status.code(), texts(&output).1)
}

/// The run of those steps, as it is when nothing disturbs it.
static UNDISTURBED: LazyLock<Outcome> = LazyLock::new(|| undisturbed(&[]));

fn undisturbed(more: &[&str]) -> Outcome {
    let program = Program::new();
    program.succeed(&arguments(more));
    Outcome::of(&program.quick_run())
}

/// Fails unless the record has a warning with these words.
#[track_caller]
fn warns(run: &Path, words: &str) {
    let warnings = events(run, "warning");
    let said = warnings.iter().any(|warning| warning["message"].as_str().unwrap().contains(words));
    assert!(said, "{words}: {warnings:?}");
}

#[test]
fn each_fault_has_its_documented_outcome() {
    // Of one message a step, of two rounds, of two levels, within a round of local steps, and in rounds of one.
    let two = "scheme=topk exchange.topology={kind='two-level',group=2}";
    // Ranks next exchange at the end of a step, and a stall in step 12 is noticed there, or in the evaluation after step 13.
    let gradient = "the gradient of step 12";
    for (settings, meets, noticed) in [
        ("scheme=topk", 12, gradient),
        ("scheme=powersgd", 12, gradient),
        (two, 12, gradient),
        ("scheme=topk local.steps=5", 15, "was waiting for a sum"),
        ("scheme=topk outer={}", 12, gradient),
    ] {
        each_fault(&sets(settings), meets, noticed);
    }
}

fn each_fault(scheme: &[&str], meets: u64, noticed: &str) {
    let corrupt = format!("corrupt:worker=0,step={meets}");
    let sending = format!("worker 0, step {meets}, exchange");
    let expected = undisturbed(scheme);
    for (fault, code, parts) in [
        ("panic:worker=2,step=12", Some(1), &["worker 2, step 12", "panicked: injected"][..]),
        (
            "stall:worker=1,step=12,for=60s",
            Some(1),
            &["worker 1, step 12", "rank 1 was silent for 2s", noticed],
        ),
        (&corrupt, Some(1), &[&sending, "damaged"]),
        ("nan:worker=3,step=12", Some(1), &["worker 3, step 12", "non-finite", "rank 3"]),
        // Time for the checkpoint of step 5 or 10 to be written beside the training; within a round nobody waits for others.
        (
            "stall:worker=0,step=12,for=1s; stall:worker=1,step=12,for=1s; stall:worker=2,step=12,for=1s; \
             stall:worker=3,step=12,for=1s; kill:step=13",
            None,
            &[],
        ),
    ] {
        let program = Program::new();
        let began = Instant::now();
        let (found, error) = injected(&program, fault, scheme);
        let last = error.lines().last().unwrap_or_default();
        assert_eq!(found, code, "{fault}: {error}");
        assert!(parts.iter().all(|part| last.contains(part)), "{fault}: {error}");
        assert!(began.elapsed() < Duration::from_secs(30), "{fault}: {:?}", began.elapsed());
        let run = program.quick_run();
        assert_eq!(events(&run, "failed").len(), usize::from(code.is_some()), "{fault}");
        // The last checkpoint is kept, and leads to what would have been.
        program.resume(&run, &[]);
        expected.is_of(&run, fault);
    }
}

#[test]
fn what_ends_a_run_is_named_in_its_last_words() {
    let damaged = ["worker 0, step 12, exchange", "rank 0 for the gradient of step 12", "damaged"];
    let restart = "faults.on_worker_loss=restart faults.restarts=1";
    for (fault, settings, parts) in [
        // Within a round, in which nothing is exchanged.
        (
            "nan:worker=3,step=12",
            "local.steps=5",
            &["worker 3, step 12", "rank 3", "non-finite gradient: parameter `"][..],
        ),
        // The other buckets' exchange goes on beside the backward pass.
        (
            "nan:worker=3,step=12",
            "exchange.overlap=true exchange.overlap_bytes=4096 policy.bucketing=parameter",
            &["worker 3, step 12", "non-finite gradient on rank 3 at step 12: parameter `"],
        ),
        // Defective memory: a checkpoint may have been made meanwhile, and would hide it.
        (
            "flip:worker=2,step=12",
            "exchange.compare_replicas_every=4 faults.on_worker_loss=restart",
            &["worker 2, step 12", "replicas differ after step 12: ", "on rank 2 as on rank 0"],
        ),
        // At the end of a round the weights are the outer ones, and equal.
        (
            "flip:worker=1,step=10",
            "local.steps=5 exchange.compare_replicas_every=5",
            &["worker 1, step 10", "replicas differ after step 10: ", "on rank 1 as on rank 0"],
        ),
        // A plain message.
        ("corrupt:worker=0,step=12", "scheme=dense", &damaged),
        ("corrupt:worker=0,step=12", "scheme=powersgd", &damaged),
        // A single worker has no peers that could accuse it.
        (
            "stall:worker=0,step=12,for=60s",
            "workers=1 exchange.timeout=2",
            &["worker 0, step 12", "no progress"],
        ),
        // Restarts are counted, and need a checkpoint.
        (
            "panic:worker=3,step=8; panic:worker=2,step=9",
            restart,
            &["faults.restarts = 1", "worker 2, step 9"],
        ),
        ("panic:worker=3,step=4", restart, &["no checkpoint", "worker 3, step 4"]),
    ] {
        let program = Program::new();
        let (code, error) = injected(&program, fault, &sets(settings));
        assert_eq!(code, Some(1), "{fault}: {error}");
        says(error.lines().last().unwrap_or_default(), parts);
        // What diverged is not made again, and counts for claims.
        let failed = events(&program.quick_run(), "failed").pop().unwrap();
        assert_eq!(failed["diverged"] == true, fault.starts_with("nan"), "{fault}");
    }
}

#[test]
fn a_stall_shorter_than_the_patience_changes_nothing() {
    let program = Program::new();
    let (code, error) = injected(&program, "stall:worker=1,step=12,for=300ms", &[]);
    assert_eq!(code, Some(0), "{error}");
    UNDISTURBED.is_of(&program.quick_run(), "a short stall");
}

#[test]
fn a_lost_worker_is_restarted_as_if_nothing_had_been() {
    let rounds = sets("local.steps=5");
    let in_rounds = undisturbed(&rounds);
    for (fault, more, expected) in [
        ("panic:worker=2,step=12", &[][..], &*UNDISTURBED),
        ("stall:worker=1,step=12,for=60s", &[], &*UNDISTURBED),
        (
            "panic:worker=3,step=8; corrupt:worker=0,step=18; panic:worker=0,step=19",
            &[],
            &*UNDISTURBED,
        ),
        ("panic:worker=2,step=12", &rounds, &in_rounds),
        ("stall:worker=1,step=12,for=60s", &rounds, &in_rounds),
    ] {
        let program = Program::new();
        let restart = sets("faults.on_worker_loss=restart faults.restarts=3");
        let (code, error) = injected(&program, fault, &[&restart, more].concat());
        assert_eq!(code, Some(0), "{fault}: {error}");
        let run = program.quick_run();
        expected.is_of(&run, fault);
        warns(&run, "start again from the checkpoint");
    }
}

/// Until its first own checkpoint such a run has only one of the recipe before.
#[test]
fn a_run_that_was_forced_to_go_on_restarts_too() {
    let program = Program::new();
    assert_eq!(injected(&program, "panic:worker=2,step=12", &[]).0, Some(1));
    let run = program.quick_run();
    let changed = sets("optimizer.learning_rate=0.05 faults.on_worker_loss=restart");
    let fault = ["--force", "--inject", "panic:worker=1,step=13"];
    program.resume(&run, &[&fault[..], &changed].concat());
    warns(&run, "start again from the checkpoint");
}

#[test]
fn the_others_go_on_without_a_lost_worker() {
    others_go_on(&[]);
    others_go_on(&["--set", "local.steps=5"]);
}

fn others_go_on(more: &[&str]) {
    let program = Program::new();
    let shrink = [&["--set", "faults.on_worker_loss=shrink"], more].concat();
    let (code, error) = injected(&program, "panic:worker=1,step=12", &shrink);
    assert_eq!(code, Some(0), "{error}");
    let run = program.quick_run();
    let warnings = events(&run, "warning");
    let said = |part: &str| warnings.iter().any(|w| w["message"].as_str().unwrap().contains(part));
    let from = (5..12).find(|step| {
        // Whichever had been written beside the training by then; one that is due while the writer
        // is busy comes a step later.
        said(&format!("the other 3 go on from the checkpoint of step {step} (1 of at most 3)"))
    });
    let from: usize = from.unwrap_or_else(|| panic!("{warnings:?}"));
    warns(&run, "the mean over ranks stays as it was");
    warns(&run, "samples, and 64 up to this checkpoint; the learning rate stays");
    let samples = numbers(&events(&run, "step"), "samples");
    assert_eq!(samples.len(), 24);
    assert_eq!(samples[from - 1] / samples[from], 4.0 / 3.0, "{samples:?}");
}

/// As by Ctrl-Z and `fg`: the clock goes on, and nobody has been silent. Three workers wait for a fourth meanwhile.
#[test]
fn a_process_that_was_stopped_goes_on() {
    let program = Program::new();
    let stall = "stall:worker=1,step=12,for=2s";
    let more = ["--set", "exchange.timeout=4", "--inject", stall];
    let mut command = program.command(&arguments(&more));
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    begun(&program.path("runs/out/quick"));
    std::thread::sleep(Duration::from_millis(300));
    signal(child.id(), "-STOP");
    std::thread::sleep(Duration::from_secs(7));
    signal(child.id(), "-CONT");
    assert!(child.wait().unwrap().success());
    UNDISTURBED.is_of(&program.quick_run(), "stopped and continued");
}

#[test]
fn faults_that_mean_nothing_are_refused() {
    let program = Program::new();
    for (fault, part) in [
        ("panik:worker=1,step=2", "did you mean `panic`"),
        ("panic:worker=4,step=2", "no worker 4 of 4"),
        ("kill:step=25", "none of those to come, 1 to 24"),
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
    let (code, error) = injected(&Program::new(), "disk-full:write=3", &[]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("storage") && error.contains("--out"), "{error}");

    let program = Program::new();
    // Which file is the second depends on how fast the run is: a checkpoint, or the best model.
    let (code, error) = injected(&program, "disk-full:sync-file=2", &[]);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains("no storage space") && error.contains("training goes on"), "{error}");
    UNDISTURBED.is_of(&program.quick_run(), "a full disk");
}

/// A run of so many steps, which nothing but its end makes write a checkpoint.
fn long<'a>(steps: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let rare = "checkpoint.every_steps=0 train.evaluate_every=100000 train.epochs=100000 \
                schedule={kind='constant'}";
    arguments(&[&sets(rare)[..], &sets(steps), more].concat())
}

/// A run long enough to be signalled.
fn long_run(program: &Program, more: &[&str]) -> Child {
    let mut command = program.command(&long("train.max_steps=200000", more));
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_run_after_a_whole_step_with_a_checkpoint() {
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let program = Program::new();
        let child = long_run(&program, &[]);
        let run = begun(&program.path("runs/out/quick"));
        signal(child.id(), name);
        let output = child.wait_with_output().unwrap();
        let (_, error) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains("train --resume"), "{error}");
        let steps = events(&run, "step");
        let last = number(&steps[steps.len() - 1], "step");
        let checkpoint = format!("checkpoints/step-{last:08}");
        assert!(run.join(&checkpoint).is_dir(), "{checkpoint}");

        // Two more steps from there are those of a run that nobody stopped.
        let steps = format!("train.max_steps={}", last + 2.0);
        program.resume(&run, &["--set", &steps]);
        let other = Program::new();
        other.succeed(&long(&steps, &[]));
        assert!(weights(&run) == weights(&other.quick_run()), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_the_process_at_once() {
    use std::os::unix::process::ExitStatusExt;
    let program = Program::new();
    let stall = ["--inject", "stall:worker=1,step=9,for=60s"];
    let stall = [&stall[..], &sets("exchange.timeout=60 record.every=1")].concat();
    let child = long_run(&program, &stall);
    let run = begun(&program.path("runs/out/quick"));
    // The step before the one that stands still.
    until("no eighth step", || {
        let lines = std::fs::read_to_string(run.join("metrics.jsonl")).ok()?;
        lines.contains("\"step\":8,").then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    signal(child.id(), "-TERM");
    std::thread::sleep(Duration::from_millis(300));
    signal(child.id(), "-TERM");
    let status = child.wait_with_output().unwrap().status;
    assert_eq!(status.signal(), Some(15));
    assert!(began.elapsed() < Duration::from_secs(10));
}
