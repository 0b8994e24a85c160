//! Whole runs of the binary: what they learn, what they write, that they repeat.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Program, events, number, only_run, quick, quickly, words};
use safetensors::SafeTensors;
use serde_json::Value;
use std::fs;

#[test]
fn a_run_learns_and_leaves_a_whole_record() {
    let program = Program::new();
    let out = program.succeed(&words(
        "train --epochs 2 --workers 2 --set dataset.train=640 --set dataset.test=128 \
         --set train.batch=16 --set record.histograms_every=10",
    ));
    assert!(out.contains("tensorboard --logdir"), "{out}");
    let run = only_run(&program.path("runs/out/first-look"));
    for file in
        ["recipe.toml", "provenance.json", "best/model.safetensors", "last/model.safetensors"]
    {
        assert!(run.join(file).is_file(), "{file}");
    }

    let steps = events(&run, "step");
    assert_eq!(steps.len(), 40);
    for (i, step) in steps.iter().enumerate() {
        assert_eq!(number(step, "step"), i as f64 + 1.0);
        let phases = step["phases"].as_object().unwrap();
        let parts: f64 = phases.values().map(|v| v.as_f64().unwrap()).sum();
        assert!(parts > 0.0 && parts <= number(step, "seconds") * 1.2, "{step}");
        assert!(number(step, "residual_norm") > 0.0, "{step}");
        assert!(number(step, "bits_per_parameter") < 1.0, "{step}");
        let ratio = number(step, "wire_bytes") / number(step, "dense_bytes");
        assert!((ratio - number(step, "compression_ratio")).abs() < 1e-12);
    }
    let sent: f64 = steps.iter().map(|s| number(s, "wire_bytes") * 2.0).sum();
    assert!((sent - number(&steps[39], "wire_bytes_total")).abs() < 1.0);

    let epochs = events(&run, "epoch");
    let accuracy = number(&epochs[1], "test_accuracy");
    assert!(accuracy > 0.3, "better than chance by far, not {accuracy}");
    assert_eq!(events(&run, "histograms").len(), 5);
    assert_eq!(events(&run, "finished").len(), 1);

    let evaluated = program.succeed(&["eval", "--json", run.to_str().unwrap()]);
    let evaluated: Value = serde_json::from_str(&evaluated).unwrap();
    let best = epochs.iter().map(|e| number(e, "test_accuracy")).fold(0.0, f64::max);
    assert_eq!(number(&evaluated, "test_accuracy"), best);
}

#[test]
fn the_same_seed_repeats_every_bit_and_another_does_not() {
    let run = |seed: &str| {
        let program = Program::new();
        program.succeed(&quick(&["--workers", "3", "--seed", seed]));
        let run = only_run(&program.path("runs/out/quick"));
        let losses: Vec<f64> = events(&run, "step").iter().map(|s| number(s, "loss")).collect();
        (losses, fs::read(run.join("last/model.safetensors")).unwrap())
    };
    let (losses, model) = run("5");
    assert_eq!(losses.len(), 12);
    let (again, model_again) = run("5");
    assert_eq!(losses, again);
    assert!(model == model_again, "the model files differ");
    assert_ne!(losses, run("6").0);
}

/// A server with an exact downlink, and shards, train the very same model as an allgather; a
/// compressed downlink trains too, and its bytes are recorded apart.
#[test]
fn topologies_train_the_same_model() {
    let train = |settings: &[&str]| {
        let program = Program::new();
        let sets = settings.iter().flat_map(|set| ["--set", set]);
        program.succeed(&quick(&["--workers", "3"].into_iter().chain(sets).collect::<Vec<_>>()));
        let run = only_run(&program.path("runs/out/quick"));
        (events(&run, "step"), fs::read(run.join("last/model.safetensors")).unwrap())
    };
    let (steps, allgather) = train(&[]);
    assert!(steps.iter().all(|step| step["downlink_bytes"].is_null()));
    let losses = |steps: &[Value]| steps.iter().map(|s| number(s, "loss")).collect::<Vec<_>>();
    for topology in ["server", "sharded"] {
        let (found, model) = train(&[&format!("exchange.topology={topology}")]);
        assert_eq!(losses(&found), losses(&steps), "{topology}");
        // The file's first part holds the recipe.
        let tensors = |file: &[u8]| {
            let tensors = SafeTensors::deserialize(file).unwrap();
            tensors.tensor("fc.weight").unwrap().data().to_vec()
        };
        assert!(tensors(&model) == tensors(&allgather), "{topology}: the weights differ");
        assert!(found.iter().all(|step| number(step, "downlink_bytes") > 0.0));
        assert!(found.iter().all(|step| number(step, "uplink_bytes") > 0.0));
    }
    let (exact, _) = train(&["exchange.topology=server"]);
    let (found, _) = train(&["exchange.topology=server", "exchange.downlink=compressed"]);
    let down = |steps: &[Value]| steps.iter().map(|s| number(s, "downlink_bytes")).sum::<f64>();
    assert!(down(&found) < down(&exact), "{} {}", down(&found), down(&exact));
}

/// Without batch norm, N workers with batch B and one worker with batch N·B differ only in the
/// order of additions.
#[test]
fn dense_workers_together_are_one_worker_with_their_batch() {
    let weights = |workers: &str, batch: &str, accumulate: &str| {
        let program = Program::new();
        let (batch, accumulate) =
            (format!("train.batch={batch}"), format!("train.accumulate={accumulate}"));
        // 1,000 samples leave a last step of uneven shares in each epoch.
        let dense = quickly("--scheme dense --set dataset.train=1000 --set train.max_steps=20");
        let more = ["--workers", workers, "--set", &batch, "--set", &accumulate];
        program.succeed(&[&dense[..], &more].concat());
        let run = only_run(&program.path("runs/out/quick"));
        let bytes = fs::read(run.join("last/model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let weights = tensors.tensor("fc.weight").unwrap().data().to_vec();
        weights.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    let one = weights("1", "96", "1");
    for (workers, batch, accumulate) in [("4", "24", "1"), ("3", "32", "1"), ("2", "16", "3")] {
        let several = weights(workers, batch, accumulate);
        for (a, b) in one.iter().zip(&several) {
            let near = (a - b).abs() <= 64.0 * f32::EPSILON * a.abs().max(0.1);
            assert!(near, "{workers} × {batch} × {accumulate}: {a} and {b}");
        }
    }
}

#[test]
fn more_workers_than_cores_and_uneven_tails_end_well() {
    let program = Program::new();
    program.succeed(&quickly("--workers 9 --epochs 3 --set train.batch=7 --set dataset.train=70"));
    let run = only_run(&program.path("runs/out/quick"));
    // 70 samples, 63 a step: the second step of an epoch has 7 samples for 9 workers.
    let samples: Vec<f64> = events(&run, "step").iter().map(|s| number(s, "samples")).collect();
    assert_eq!(samples, [63.0, 7.0, 63.0, 7.0, 63.0, 7.0]);
}

#[test]
fn every_optimizer_schedule_and_policy_trains() {
    for sets in [
        &["optimizer.kind=adamw", "optimizer.learning_rate=0.01"][..],
        &[
            "optimizer.nesterov=true",
            "optimizer.weight_decay=1e-4",
            "optimizer.decay_norms_and_biases=false",
        ],
        &["schedule={kind=\"step\", every=1}", "train.clip_norm=0.5"],
        &["schedule={kind=\"multi-step\", at=[1]}", "train.label_smoothing=0.1"],
        &["schedule={kind=\"constant\"}", "policy.bucketing=parameter"],
        &["train.batch_norm=synchronised", "exchange.compare_replicas_every=1"],
    ] {
        let program = Program::new();
        let length = ["--scheme", "dense", "--set", "train.max_steps=96"];
        let sets: Vec<&str> = sets.iter().flat_map(|s| ["--set", s]).chain(length).collect();
        program.succeed(&quick(&sets));
        let run = only_run(&program.path("runs/out/quick"));
        let losses: Vec<f64> = events(&run, "step").iter().map(|s| number(s, "loss")).collect();
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        assert!(mean(&losses[88..]) < 0.95 * mean(&losses[..8]), "{sets:?}: {losses:?}");
    }
}

/// Every scheme trains through the whole program, and its gauges reach the record.
#[test]
fn every_scheme_trains_and_is_recorded() {
    let listed = Program::new().succeed(&["list", "schemes"]);
    let names: Vec<&str> = listed.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert!(names.contains(&"dense") && names.contains(&"topk"), "{listed}");
    let program = Program::new();
    for name in names {
        let out = format!("record.out={name}");
        let sets = ["--scheme", name, "--set", "policy.warmup_steps=2", "--set", &out];
        let momentum = ["--set", "policy.momentum_correction=0", "--set", "train.max_steps=12"];
        program.succeed(&quick(&[&sets[..], &momentum[..]].concat()));
        let run = only_run(&program.path(name).join("quick"));
        let steps = events(&run, "step");
        let (first, last) = (&steps[0], &steps[steps.len() - 1]);
        let bits = |step: &Value| number(step, "bits_per_parameter");
        if name == "dense" {
            continue;
        }
        assert!(bits(last) < bits(first), "{name}: {last}");
        let error = last["gauges"]["compression_error"].as_f64();
        assert!(error.is_some_and(|error| error.is_finite() && error >= 0.0), "{name}: {last}");
    }
}

#[test]
fn recorded_gradients_are_what_bench_codecs_reads() {
    let program = Program::new();
    program.succeed(&quick(&["--set", "record.gradients=2", "--set", "train.max_steps=4"]));
    let run = only_run(&program.path("runs/out/quick"));
    let file = run.join("gradients/step-000002.safetensors");
    assert!(run.join("gradients/step-000004.safetensors").is_file());
    let file = file.to_str().unwrap();
    let scheme = "{ kind = \"topk\", ratio = 0.02 }";
    let arguments = ["bench", "codecs", "--json", "--gradient", file, "--scheme", scheme];
    let row: Value = serde_json::from_str(&program.succeed(&arguments)).unwrap();
    assert_eq!(row["scheme"], "topk(ratio=0.02)");
    let error = number(&row, "error");
    assert!(error > 0.0 && error < 1.0 && number(&row, "cosine") > 0.1, "{row}");
    let table = program.succeed(&["bench", "codecs", "--gradient", file]);
    assert!(table.lines().any(|line| line.starts_with("dense")), "{table}");
    let error = program.refuse(&["bench", "codecs", "--scheme", "topp"], 2);
    assert!(error.contains("did you mean `topk`"), "{error}");
    let error = program.refuse(&["bench", "codecs", "--gradient", "no.safetensors"], 2);
    assert!(error.contains("no.safetensors"), "{error}");
}

#[test]
fn json_mode_prints_events_and_nothing_else() {
    let program = Program::new();
    let mut arguments = quick(&[]);
    arguments[1] = "--json";
    let out = program.succeed(&arguments);
    let kinds: Vec<String> = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().into())
        .collect();
    assert_eq!(kinds.first().map(String::as_str), Some("started"));
    assert_eq!(kinds.last().map(String::as_str), Some("finished"));
    assert_eq!(kinds.iter().filter(|kind| *kind == "step").count(), 12);
}
