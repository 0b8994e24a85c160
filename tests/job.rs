//! Several processes train one run. Here they are threads that reach each other within one process, so
//! that no launcher is needed; `mpi.rs` has real ones.

use crate::common::{events, only_run, weights};
use gradwire::cluster::{Job, control_channel};
use gradwire::disk::Disk;
use gradwire::recipe::{Recipe, Source};
use gradwire::record::Mode;
use gradwire::train::faults::Faults;
use gradwire::train::follow;
use gradwire::train::launch::{Outcome, Start, train};
use gradwire::train::resume::Resume;
use gradwire::train::session::Session;
use gradwire_exchange::cluster::in_memory;
use std::path::Path;
use std::sync::Arc;
use std::thread;

fn recipe(out: &Path, settings: &str) -> Recipe {
    let quick = "dataset=synthetic-ag-news samples.train=400 model=fasttext name=quick workers=4 \
                 train.max_steps=8 record.every=1 optimizer.learning_rate=1 schedule=constant \
                 checkpoint.every_steps=3 exchange.timeout=30";
    let sets = quick.split_whitespace().chain(settings.split_whitespace()).map(String::from);
    Source::of(sets.chain([format!("record.out={}", out.display())])).load().unwrap()
}

/// What became of process 0, and of those that follow: whether they were let begin.
type Ended = (anyhow::Result<Outcome>, Vec<anyhow::Result<bool>>);

/// What a process does that follows, up to its end, with its own recipe.
type Follower = fn(&Job, Recipe, Arc<Faults>) -> anyhow::Result<bool>;

/// What a follower's process does, up to its end.
fn followed(job: &Job, own: Recipe, faults: Arc<Faults>) -> anyhow::Result<bool> {
    let Some((session, go)) = follow::join(job, Some(Ok(own)))? else { return Ok(false) };
    follow::train(job, Session { faults, ..session }, *go).map(|()| true)
}

/// What a follower's process does that cannot begin when it may: processes agree only once.
fn cannot_begin(job: &Job, own: Recipe, faults: Arc<Faults>) -> anyhow::Result<bool> {
    job.take_up(Vec::new(), 1)?;
    followed(job, own, faults)
}

/// Trains in as many processes; each reads the recipe of its number.
fn job(recipes: &[Recipe], start: Start, faults: &str) -> Ended {
    job_with(followed, recipes, start, faults)
}

/// As [`job`], with what the processes that follow do.
fn job_with(follower: Follower, recipes: &[Recipe], start: Start, faults: &str) -> Ended {
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = recipes.iter().map(|_| control_channel()).unzip();
    let clusters = in_memory(outboxes);
    let mut jobs =
        clusters.into_iter().zip(inboxes).map(|(cluster, inbox)| Job::over(cluster, inbox));
    let faults = Arc::new(Faults::parse(faults).unwrap());
    let leader = jobs.next().unwrap();
    thread::scope(|scope| {
        let followers: Vec<_> = jobs
            .zip(&recipes[1..])
            .map(|(job, own)| {
                let faults = faults.clone();
                scope.spawn(move || {
                    let followed = follower(&job, own.clone(), faults);
                    // One that has failed waits here to be ended by process 0, as threads cannot be.
                    if let Ok(followed) = &followed {
                        job.end(*followed);
                    }
                    followed
                })
            })
            .collect();
        let outcome = Session::lead(&leader, recipes[0].clone())
            .and_then(|session| train(&leader, Session { faults, ..session }, Mode::Quiet, start));
        leader.end(outcome.is_ok());
        (outcome, followers.into_iter().map(|follower| follower.join().unwrap()).collect())
    })
}

fn alone(recipe: &Recipe) -> Outcome {
    let job = Job::alone();
    let session = Session::lead(&job, recipe.clone()).unwrap();
    train(&job, session, Mode::Quiet, Start::Fresh).unwrap()
}

#[test]
fn processes_train_the_run_of_one_and_go_on_with_it() {
    for settings in [
        "scheme=sidco",
        "scheme=dense exchange.topology=server",
        "scheme=topk exchange.topology={kind='two-level',group=2}",
        "scheme=topk exchange.topology=sharded exchange.downlink=compressed \
         policy.bucketing=parameter",
    ] {
        let out = tempfile::tempdir().unwrap();
        let whole = recipe(out.path(), settings);
        let expected = alone(&whole);
        let half = recipe(out.path(), &format!("{settings} train.max_steps=5"));
        let (outcome, followed) = job(&vec![half; 4], Start::Fresh, "");
        let outcome = outcome.unwrap();
        assert!(followed.iter().all(|ended| matches!(ended, Ok(true))));
        assert_eq!(outcome.summary.step, 5);

        let resume = Resume::find(&Disk::default(), &outcome.folder, false).unwrap();
        let start = Start::Resume(Box::new(resume));
        let (outcome, _) = job(&vec![whole.clone(); 4], start, "");
        let outcome = outcome.unwrap();
        assert!(weights(&outcome.folder) == weights(&expected.folder), "{settings:?}");
        let (found, wanted) = (&outcome.summary, &expected.summary);
        assert_eq!((found.step, found.steps), (wanted.step, wanted.steps));
        assert_eq!(found.wire_bytes, wanted.wire_bytes);
    }
}

#[test]
fn a_failure_elsewhere_is_named_and_a_difference_refused() {
    let out = tempfile::tempdir().unwrap();
    let same = recipe(out.path(), "");
    let (outcome, followed) = job(&vec![same.clone(); 4], Start::Fresh, "panic:worker=3,step=4");
    let told = format!("{:#}", outcome.unwrap_err());
    assert!(told.contains("worker 3 (process 3 on ") && told.contains("step 4"), "{told}");
    assert!(told.contains("panicked: injected at step 4"), "{told}");
    assert!(followed[0].is_err());

    let other = recipe(out.path(), "train.batch=5");
    let (outcome, followed) =
        job(&[same.clone(), same.clone(), same.clone(), other], Start::Fresh, "");
    let told = format!("{:#}", outcome.unwrap_err());
    assert!(told.contains("process 3") && told.contains("train.batch = 5"), "{told}");
    assert!(followed.iter().all(|ended| matches!(ended, Ok(false))));

    let three = recipe(out.path(), "");
    let (outcome, _) = job(&[three.clone(), three.clone(), three], Start::Fresh, "");
    let told = format!("{:#}", outcome.unwrap_err());
    let parts = ["workers = 4", "has started 3 processes", "leave `workers` out"];
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");

    let sharded = recipe(out.path(), "scheme=topk exchange.topology=sharded");
    let (outcome, _) = job(&vec![sharded; 4], Start::Fresh, "");
    let told = format!("{:#}", outcome.unwrap_err());
    assert!(told.contains("write exchange.topology = \"allgather\""), "{told}");
}

#[test]
fn a_process_that_cannot_begin_is_named_with_the_reason() {
    let out = tempfile::tempdir().unwrap();
    let same = recipe(out.path(), "workers=2 exchange.timeout=5");
    let both = [same.clone(), same];
    let (outcome, followed) = job_with(cannot_begin, &both, Start::Fresh, "");
    let run = only_run(&out.path().join("quick"));
    let recorded = events(&run, "failed")[0]["error"].to_string();
    for told in [format!("{:#}", outcome.unwrap_err()), recorded] {
        let named = told.contains("worker 1 (process 1 on ") && told.contains("agree once");
        assert!(named && told.contains("before the first step"), "{told}");
    }
    let own = followed[0].as_ref().unwrap_err();
    assert!(own.to_string().contains("agree once"), "{own}");
}

#[test]
fn a_process_without_the_memory_is_named_before_anything_is_made() {
    let out = tempfile::tempdir().unwrap();
    let large = recipe(out.path(), "workers=2 model.dim=100000000000");
    let (outcome, followed) = job(&[large.clone(), large], Start::Fresh, "");
    let told = format!("{:#}", outcome.unwrap_err());
    assert!(told.contains("process 1 (on "), "{told}");
    assert!(told.contains("1 workers with") && told.contains("fewer workers"), "{told}");
    assert!(matches!(followed[0], Ok(false)));
    assert!(!out.path().join("quick").exists());
}
