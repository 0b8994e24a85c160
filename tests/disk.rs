//! Every file operation of a short run fails in turn: nothing is ever corrupt.

use crate::common::{Outcome, words};
use gradwire::cluster::Job;
use gradwire::disk::{Disk, Fault};
use gradwire::recipe::{Recipe, Source};
use gradwire::record::{Kind, Mode, RunLog, network};
use gradwire::train::launch::{Start, train};
use gradwire::train::resume::Resume;
use gradwire::train::session::Session;
use std::fs;
use std::path::{Path, PathBuf};

/// Six steps, a checkpoint every two, of which two are kept; an evaluation and the best model.
fn recipe(out: &Path) -> Recipe {
    let sets = words(
        "dataset=synthetic-ag-news samples={train=48,test=16} model=fasttext scheme=topk workers=2 \
         train.batch=8 train.epochs=2 record.every=1 checkpoint.every_steps=2 checkpoint.keep_last=2 \
         exchange.timeout=20",
    );
    let out = toml::Value::String(out.display().to_string());
    let flags = vec![("record.out", out)];
    Source { flags, ..Source::of(sets) }.load().unwrap()
}

fn attempt(recipe: &Recipe, disk: Disk, start: Start) -> Result<PathBuf, String> {
    let job = Job::alone();
    Session::lead(&job, recipe.clone())
        .and_then(|session| train(&job, Session { disk, ..session }, Mode::Quiet, start))
        .map(|outcome| outcome.folder)
        .map_err(|error| format!("{error:#}"))
}

/// The run that was begun in `out`, if there is one.
fn begun(out: &Path) -> Option<PathBuf> {
    let mut runs = fs::read_dir(out.join("fasttext-synthetic-ag-news-topk")).ok()?;
    Some(runs.next()?.unwrap().path())
}

/// What was being written under `folder` and never came to its name, but for folders of checkpoints:
/// those are cleared away when the next is written.
fn half_written(folder: &Path) -> Vec<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    let inside = entries.iter().filter(|path| path.is_dir()).flat_map(|path| half_written(path));
    let here = entries.iter().filter(|path| {
        path.is_file() && path.extension().is_some_and(|extension| extension == "partial")
    });
    here.cloned().chain(inside).collect()
}

/// Fails unless the records of a run, as far as it came, can be read.
fn can_be_read(run: &Path, what: &str) {
    if !run.join("metrics.jsonl").exists() {
        return;
    }
    let disk = Disk::default();
    let log = RunLog::read(&disk, run).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    if log.events().iter().any(|event| matches!(event.kind, Kind::Step(_))) {
        network::read(&disk, run).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }
}

fn every_operation_fails(count: u64, stride: usize) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let recipe = recipe(&out);
    let whole = Outcome::of(&attempt(&recipe, Disk::default(), Start::Fresh).unwrap());
    let (mut stopped, mut warned, mut resumed) = (0, 0, 0);
    for first in (1..).step_by(stride) {
        fs::remove_dir_all(out.join("fasttext-synthetic-ag-news-topk")).unwrap();
        let kind = std::io::ErrorKind::StorageFull;
        let disk = Disk::failing(Fault { operation: None, first, count, kind });
        let ended = attempt(&recipe, disk.clone(), Start::Fresh);
        if disk.failed() == 0 {
            whole.is_of(&ended.unwrap(), "no operation");
            assert!(stopped > 10 && resumed > 10, "{stopped} {resumed}");
            assert!(count > 1 || warned > 10, "{warned}");
            return;
        }
        match &ended {
            // It went on without what could not be written, and is what it would have been.
            Ok(run) => {
                warned += 1;
                let lines = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
                assert!(lines.contains("injected"), "operation {first} failed in silence");
                whole.is_of(run, &format!("operation {first}"));
            }
            Err(error) => {
                stopped += 1;
                assert!(error.contains("injected"), "operation {first}: {error}");
                // A run is worth more than its best model so far.
                assert!(!error.contains("best model"), "operation {first}: {error}");
            }
        }
        let left = half_written(&out);
        assert!(left.is_empty(), "operation {first} left {left:?}");
        // Whatever it was: the run goes on from a whole checkpoint, or there is none and it says so.
        let Some(run) = begun(&out) else {
            fs::create_dir_all(out.join("fasttext-synthetic-ag-news-topk")).unwrap();
            continue;
        };
        can_be_read(&run, &format!("operation {first}"));
        match Resume::find(&Disk::default(), &run, false) {
            Ok(resume) => {
                resumed += 1;
                let start = Start::Resume(Box::new(resume));
                let run = attempt(&recipe, Disk::default(), start)
                    .unwrap_or_else(|error| panic!("operation {first}, going on: {error}"));
                whole.is_of(&run, &format!("operation {first}, going on"));
            }
            Err(error) => {
                let error = format!("{error:#}");
                assert!(error.contains("no checkpoint"), "operation {first}: {error}");
            }
        }
    }
}

#[test]
fn one_operation_fails() {
    every_operation_fails(1, 1);
}

/// As when a disk is full for good, or a power cut ends everything.
#[test]
fn all_operations_from_one_on_fail() {
    every_operation_fails(u64::MAX, 2);
}
