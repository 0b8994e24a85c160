//! The examples as they stand: a model, data, an optimizer, a scheme of a program's own, and all at once.

#[expect(dead_code, reason = "an example's `main`")]
#[path = "../examples/own_data.rs"]
mod own_data;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../examples/own_everything.rs"]
mod own_everything;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../examples/own_model.rs"]
mod own_model;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../examples/own_optimizer.rs"]
mod own_optimizer;
#[path = "../exchange/examples/own_scheme.rs"]
mod own_scheme;

use crate::common::{events, root, weights};
use gradwire::prelude::*;
use std::fs;

fn out() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out").to_str().unwrap().to_string();
    (folder, out)
}

#[test]
fn a_model_data_and_an_optimizer_of_ones_own_learn() {
    type Example = fn(&str) -> Result<Outcome>;
    let examples: [(Example, f64); 3] =
        [(own_model::train, 0.9), (own_data::train, 0.9), (own_optimizer::train, 0.3)];
    for (example, at_least) in examples {
        let (_folder, out) = out();
        let outcome = example(&out).unwrap();
        let accuracy = outcome.summary.test_accuracy.unwrap();
        assert!(accuracy > at_least, "{accuracy} in {}", outcome.folder.display());
    }
}

#[test]
fn a_scheme_of_ones_own_keeps_the_laws_and_four_threads_agree_with_it() {
    own_scheme::main();
}

#[test]
fn a_run_of_ones_own_parts_is_recorded_and_resumed_bit_for_bit() {
    exchange::contract::check(&own_everything::UpperHalves).unwrap();
    let (_folder, out) = out();
    let train = |steps| own_everything::training(&out, steps).unwrap().display(Mode::Silent);
    let whole = train(100).run().unwrap();
    let half = train(60).run().unwrap();
    assert_eq!(half.summary.step, 60);

    // Another program, such as one without parts of its own, cannot go on with it.
    let settings = ["name=own", "workers=4", "train.batch=8", "schedule=constant"];
    let same = Training::with(settings).unwrap().max_steps(100);
    let refused = same.out(&out).display(Mode::Silent).resume(&half.folder).run();
    assert!(format!("{:#}", refused.unwrap_err()).contains("scheme upper-halves"));

    let resumed = train(100).resume(&half.folder).run().unwrap();
    assert_eq!(resumed.folder, half.folder);
    assert!(weights(&resumed.folder) == weights(&whole.folder));
    assert!(resumed.summary.test_accuracy.unwrap() > 0.9, "{:?}", resumed.summary);
    let started = &events(&resumed.folder, "started")[0];
    assert_eq!((&started["model"], &started["scheme"]), (&"linear".into(), &"upper-halves".into()));
    let files: Vec<_> =
        fs::read_dir(&resumed.folder).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(files.iter().any(|file| file.to_string_lossy().contains("tfevents")), "{files:?}");
    let provenance = fs::read_to_string(resumed.folder.join("provenance.json")).unwrap();
    assert!(provenance.contains("\"optimizer\": \"signs\""), "{provenance}");
}

#[test]
fn examples_fit_on_a_page() {
    let ours = ["own_model", "own_data", "own_optimizer", "own_everything"];
    let ours = ours.map(|example| format!("examples/{example}.rs"));
    for file in ours.iter().map(String::as_str).chain(["exchange/examples/own_scheme.rs"]) {
        let text = fs::read_to_string(root().join(file)).unwrap();
        assert!(text.lines().count() <= 60, "{file}");
    }
}
