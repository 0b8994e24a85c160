//! Whole runs of the binary: what they learn, what they write, that they repeat.

use crate::common::{
    Program, argument, entries, events, forged, number, numbers, only_run, quick, says, sets,
    weights, words,
};
use gradwire::record::gradient;
use serde_json::Value;
use std::fs;

#[test]
fn a_run_learns_and_leaves_a_whole_record() {
    let program = Program::new();
    let out = program.succeed(&words(
        "train --epochs 2 --workers 2 --set samples.train=640 --set samples.test=128 \
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
    let sent = numbers(&steps, "wire_bytes").iter().sum::<f64>() * 2.0;
    assert!((sent - number(&steps[39], "wire_bytes_total")).abs() < 1.0);

    let epochs = events(&run, "epoch");
    let accuracy = number(&epochs[1], "test_accuracy");
    assert!(accuracy > 0.3, "better than chance by far, not {accuracy}");
    assert_eq!(events(&run, "histograms").len(), 5);
    assert_eq!(events(&run, "finished").len(), 1);

    let evaluated = program.succeed(&["eval", "--json", argument(&run)]);
    let evaluated: Value = serde_json::from_str(&evaluated).unwrap();
    let best = numbers(&epochs, "test_accuracy").into_iter().fold(0.0, f64::max);
    assert_eq!(number(&evaluated, "test_accuracy"), best);
    let five = number(&evaluated, "test_top5_accuracy");
    assert!(
        numbers(&epochs, "test_top5_accuracy").contains(&five) && five >= best && five < 1.0 + 1e-9
    );
}

/// Parameters that go by a rule: told before the first step, counted in each, added up in the end.
#[test]
fn rules_are_told_counted_and_recorded() {
    let program = Program::new();
    let rules = "policy.rules=[{match='linear.*',scheme='dense'},{match='layer3.*',ratio=0.25}]";
    let train = words(
        "train --epochs 1 --workers 2 --set samples.train=320 --set samples.test=64 \
         --set train.batch=16 --set record.every=3",
    );
    let (out, err) = program.outputs(&[&train[..], &["--set", rules]].concat());
    for said in [
        "topk(ratio=0.01), dense for linear.*, topk(ratio=0.25) for layer3.*",
        "linear.* by dense: 650 parameters (0.2%)\n  linear.bias, linear.weight\n",
        "layer3.* by topk(ratio=0.25): ",
    ] {
        assert!(err.contains(said), "{said}: {err}");
    }
    assert!(out.contains(" of it for linear.*, 32 bits per parameter"), "{out}");
    let run = only_run(&program.path("runs/out/first-look"));
    let recipe = fs::read_to_string(run.join("recipe.toml")).unwrap();
    assert!(recipe.contains("[[policy.rules]]\nmatch = \"linear.*\""), "{recipe}");
    let last = events(&run, "step").pop().unwrap();
    let rule = |of: &Value, number: usize| of["rules"][number].clone();
    // Two ranks, ten steps, a header of 24 bytes.
    assert_eq!(rule(&last, 0)["wire_bytes"], 2 * 10 * (24 + 4 * 650));
    let end = &events(&run, "finished")[0]["summary"];
    let (dense, quarter) = (rule(end, 0), rule(end, 1));
    assert_eq!(
        (dense["match"].as_str(), number(&dense, "bits_per_parameter")),
        (Some("linear.*"), 32.0)
    );
    let bits = number(&quarter, "bits_per_parameter");
    assert!((8.0..16.0).contains(&bits), "{quarter}");
    let ruled = number(&dense, "wire_bytes") + number(&quarter, "wire_bytes");
    assert!(ruled < number(end, "wire_bytes"));
    for (rules, said) in [
        (
            "[{match='fc.*',scheme='dense'}]",
            "rule `fc.*` matches no parameter; the names begin with bn1, conv1, layer1, ",
        ),
        (
            "[{match='linear.*',ratio=0.1},{match='linear.bias',ratio=0.2}]",
            "rule `linear.bias` has no parameter left",
        ),
    ] {
        let rules = format!("policy.rules={rules}");
        program.refuses(&["train", "--set", &rules], 1, &[said]);
        only_run(&program.path("runs/out/first-look"));
    }
}

/// What lies beside the test set is no part of what a model makes of it.
#[test]
fn a_model_is_evaluated_as_it_was_trained_whatever_training_images_there_are() {
    let program = Program::new();
    program.succeed(&words("data synth cifar10 --train 80 --test 40"));
    program.succeed(&words(
        "train --quiet --epochs 2 --workers 1 --set dataset={kind=\"cifar10\",partial=true} \
         --set train.batch=16 --set checkpoint.every_steps=5",
    ));
    let run = only_run(&program.path("runs/out/resnet20-cifar10-topk"));
    // A model of an earlier version does not say what its pixels were normalised by.
    let silent = |about: &mut Value| {
        let normalisation = about.as_object_mut().unwrap().remove("normalisation");
        assert_eq!(normalisation.unwrap()["mean"].as_array().unwrap().len(), 3);
    };
    let old = forged(&fs::read(run.join("best/model.safetensors")).unwrap(), silent, |_| ());
    let old_file = program.path("old.safetensors");
    fs::write(&old_file, old).unwrap();
    let newest = entries(&run.join("checkpoints")).pop().unwrap();
    let losses = || {
        [&run, &run.join("last"), &newest, &old_file].map(|model| {
            let told = program.succeed(&["eval", "--json", argument(model)]);
            number(&serde_json::from_str(&told).unwrap(), "test_loss")
        })
    };
    let before = losses();
    assert_eq!(before[0], before[3]);
    for file in 1..=5 {
        let file = program.path(&format!("data/cifar-10-batches-bin/data_batch_{file}.bin"));
        let mut images = fs::read(&file).unwrap();
        for image in images.chunks_exact_mut(3073) {
            image[1..].iter_mut().for_each(|pixel| *pixel /= 4);
        }
        fs::write(&file, images).unwrap();
    }
    let after = losses();
    assert_eq!(before[..3], after[..3]);
    assert_ne!(before[3], after[3]);
    let (_, said) = program.outputs(&["eval", argument(&run)]);
    says(&said, &["note: the data file data_batch_1.bin is not one that the run read"]);
}

/// A server with an exact downlink, and shards, train the very same model as an allgather; a
/// compressed downlink trains too, and its bytes are recorded apart.
#[test]
fn topologies_train_the_same_model() {
    let train = |settings: &str| {
        let program = Program::new();
        let run = program.train(&[&["--workers", "3"], &sets(settings)[..]].concat());
        (events(&run, "step"), weights(&run))
    };
    let (steps, allgather) = train("");
    assert!(steps.iter().all(|step| step["downlink_bytes"].is_null()));
    let [exact, _] = ["server", "sharded"].map(|topology| {
        let (found, weights) = train(&format!("exchange.topology={topology}"));
        assert_eq!(numbers(&found, "loss"), numbers(&steps, "loss"), "{topology}");
        assert!(weights == allgather, "{topology}: the weights differ");
        for key in ["downlink_bytes", "uplink_bytes"] {
            assert!(numbers(&found, key).iter().all(|bytes| *bytes > 0.0), "{topology}: {key}");
        }
        found
    });
    let (found, _) = train("exchange.topology=server exchange.downlink=compressed");
    let down = |steps: &[Value]| numbers(steps, "downlink_bytes").iter().sum::<f64>();
    assert!(down(&found) < down(&exact), "{} {}", down(&found), down(&exact));
}

/// Ranks in groups: less travels between groups, of dense gradients half, and the model is that of the
/// allgather but for the order of additions. A replay knows the link within groups.
#[test]
fn groups_of_ranks_train_and_are_replayed() {
    let train = |settings: &str| {
        let program = Program::new();
        let run = program.train(&[&["--workers", "4"], &sets(settings)[..]].concat());
        let replayed = |link: &str| {
            let folder = argument(&run);
            program.outputs(&["network", "replay", folder, "--links", link]).0
        };
        assert_ne!(replayed("1gbit,local=1gbit"), replayed("1gbit,local=1mbit"));
        events(&run, "step")
    };
    let two = "exchange.topology={kind='two-level',group=2}";
    for scheme in ["scheme=dense", "scheme={kind='topk',chunk=256,values='2bit'}"] {
        let program = Program::new();
        let flat = program.train(&[&["--workers", "4"], &sets(scheme)[..]].concat());
        let (flat, levels) = (events(&flat, "step"), train(&format!("{scheme} {two}")));
        let [flat_loss, loss] = [&flat, &levels].map(|steps| numbers(steps, "loss"));
        assert!(loss.iter().all(|loss| loss.is_finite()), "{loss:?}");
        let sums = [&flat, &levels].map(|s| numbers(s, "wire_bytes").iter().sum::<f64>());
        assert!(sums[1] < 0.6 * sums[0], "{scheme}: {sums:?}");
        assert!(numbers(&levels, "local_bytes").iter().all(|bytes| *bytes > 0.0));
        if scheme == "scheme=dense" {
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-3 * b.abs();
            assert!(flat_loss.iter().zip(&loss).all(near), "{flat_loss:?} {loss:?}");
        }
    }
}

/// Without batch norm, N workers with batch B and one worker with batch N·B differ only in the
/// order of additions.
#[test]
fn dense_workers_together_are_one_worker_with_their_batch() {
    let head = |workers: &str, batch: &str, accumulate: &str| {
        let program = Program::new();
        let (batch, accumulate) =
            (format!("train.batch={batch}"), format!("train.accumulate={accumulate}"));
        // 1,000 samples leave a last step of uneven shares in each epoch.
        let dense = words("--scheme dense --set samples.train=1000 --set train.max_steps=20");
        let more = ["--workers", workers, "--set", &batch, "--set", &accumulate];
        let run = program.train(&[&dense[..], &more].concat());
        let (_, bytes) =
            weights(&run).into_iter().find(|(name, _)| name == "fc.weight").expect("the head");
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>()
    };
    let one = head("1", "96", "1");
    for (workers, batch, accumulate) in [("4", "24", "1"), ("3", "32", "1"), ("2", "16", "3")] {
        let several = head(workers, batch, accumulate);
        for (a, b) in one.iter().zip(&several) {
            let near = (a - b).abs() <= 64.0 * f32::EPSILON * a.abs().max(0.1);
            assert!(near, "{workers} × {batch} × {accumulate}: {a} and {b}");
        }
    }
}

#[test]
fn more_workers_than_cores_and_uneven_tails_end_well() {
    let program = Program::new();
    let line = "--workers 9 --epochs 3 --set train.batch=7 --set samples.train=70";
    let run = program.train(&words(line));
    // 70 samples, 63 a step: the second step of an epoch has 7 samples for 9 workers.
    let samples = numbers(&events(&run, "step"), "samples");
    assert_eq!(samples, [63.0, 7.0, 63.0, 7.0, 63.0, 7.0]);
}

#[test]
fn every_optimizer_schedule_and_policy_trains() {
    for settings in [
        "optimizer.kind=adamw optimizer.learning_rate=0.01",
        "optimizer={kind='muon'} model=transformer",
        "optimizer.nesterov=true optimizer.weight_decay=1e-4 optimizer.decay_norms_and_biases=false",
        "schedule={kind='step',every=1} train.clip_norm=0.5",
        "schedule={kind='multi-step',at=[1]} train.label_smoothing=0.1",
        "schedule={kind='constant'} policy.bucketing=parameter",
        "train.batch_norm=synchronised exchange.compare_replicas_every=1",
    ] {
        let program = Program::new();
        let length = ["--scheme", "dense", "--set", "train.max_steps=96"];
        let run = program.train(&[&sets(settings)[..], &length].concat());
        let losses = numbers(&events(&run, "step"), "loss");
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        assert!(mean(&losses[88..]) < 0.95 * mean(&losses[..8]), "{settings:?}: {losses:?}");
    }
}

/// A part of the recipe is a name or a table of settings, in `--scheme` as in `--set`.
#[test]
fn a_part_is_chosen_by_name_or_with_its_settings() {
    let program = Program::new();
    let told = |arguments: &[&str]| program.succeed(&quick(&[arguments, &["--dry-run"]].concat()));
    let table = "{ kind = \"threshold\", lambda = 0.02 }";
    let by_table = told(&["--scheme", table]);
    assert!(by_table.contains("kind = \"threshold\"\nlambda = 0.02\n"), "{by_table}");
    let in_two = ["--scheme", "threshold", "--set", "scheme.lambda=0.02"];
    assert_eq!(by_table, told(&in_two));
    assert_eq!(by_table, told(&["--set", &format!("scheme={table}")]));
    let wrong = "{ kind = \"topp\", ratio = 0.1 }";
    program.refuses(&quick(&["--scheme", wrong]), 2, &["did you mean `topk`"]);
}

/// Every scheme trains through the whole program, and its gauges reach the record.
#[test]
fn every_scheme_trains_and_is_recorded() {
    let listed = Program::new().succeed(&["list", "schemes"]);
    let names: Vec<&str> = listed.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert!(names.contains(&"dense") && names.contains(&"topk"), "{listed}");
    let program = Program::new();
    for name in names {
        let steps = "policy.warmup_steps=2 policy.momentum_correction=0 train.max_steps=12";
        let run = program.train_in(name, &sets(&format!("scheme={name} {steps}")));
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
    let run = program.train(&sets("record.gradients=2 train.max_steps=4"));
    let file = run.join("gradients/step-000002.safetensors");
    assert!(run.join("gradients/step-000004.safetensors").is_file());
    let file = argument(&file);
    let scheme = "{ kind = \"topk\", ratio = 0.02 }";
    let arguments = ["bench", "codecs", "--json", "--gradient", file, "--scheme", scheme];
    let row: Value = serde_json::from_str(&program.succeed(&arguments)).unwrap();
    assert_eq!(row["scheme"], "topk(ratio=0.02)");
    let error = number(&row, "error");
    assert!(error > 0.0 && error < 1.0 && number(&row, "cosine") > 0.1, "{row}");
    let table = program.succeed(&["bench", "codecs", "--gradient", file]);
    assert!(table.lines().any(|line| line.starts_with("dense")), "{table}");
    program.refuses(&["bench", "codecs", "--scheme", "topp"], 2, &["did you mean `topk`"]);
    program.refuses(&["bench", "codecs", "--gradient", "no.safetensors"], 2, &["no.safetensors"]);
}

/// Top-k sends the largest elements of what it is given, and keeps the others as the residual.
#[test]
fn a_recorded_gradient_has_the_residual_in_it() {
    let program = Program::new();
    let run = program.train(&sets(
        "workers=1 record.gradients=1 train.max_steps=3 scheme={kind='topk',ratio=0.001} \
         policy={bucketing='whole',dense_below=0,momentum_correction=0}",
    ));
    for (i, step) in events(&run, "step").iter().enumerate() {
        let file = run.join(format!("gradients/step-{:06}.safetensors", i + 1));
        let given = gradient::load(&file).unwrap().flat;
        let mut squares: Vec<f64> = given.iter().map(|value| f64::from(*value).powi(2)).collect();
        squares.sort_by(f64::total_cmp);
        let sent = number(&step["gauges"], "kept") as usize;
        let residual = squares.iter().rev().skip(sent).sum::<f64>().sqrt();
        let told = number(step, "residual_norm");
        assert!((residual - told).abs() < 1e-4 * told, "{residual}: {step}");
    }
}

#[test]
fn json_mode_prints_events_and_nothing_else() {
    let program = Program::new();
    let mut arguments = quick(&[]);
    arguments[1] = "--json";
    let rows = program.rows(&arguments);
    let kinds: Vec<&str> = rows.iter().map(|row| row["event"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"started"));
    assert_eq!(kinds.last(), Some(&"finished"));
    assert_eq!(kinds.iter().filter(|kind| **kind == "step").count(), 12);
}
