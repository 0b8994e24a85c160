//! Runs that are interrupted and go on: what they lead to, and what they refuse.

use crate::common::{
    Program, argument, entries, events, number, numbers, only_run, quick, says, sets, told,
    weights, words,
};
use gradwire_exchange::Scheme;
use gradwire_exchange::SchemeConfig;
use gradwire_models::kernels::{Kernels, Precision};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A run of two and a half epochs of 10 steps with checkpoints in the middle of them.
const STEPS: &str = "--set samples.train=480 --set samples.test=60 --set train.batch=16 \
                     --set train.max_steps=24 --set checkpoint.every_steps=7 \
                     --set checkpoint.keep_last=9";

/// A run that nothing disturbed, and its checkpoints in order.
fn undisturbed(program: &Program, out: &str, more: &[&str]) -> (PathBuf, Vec<PathBuf>) {
    let run = program.train_in(out, &[&words(STEPS)[..], &["--workers", "3"], more].concat());
    let checkpoints = checkpoints(&run);
    assert!(checkpoints.len() >= 2, "{checkpoints:?}");
    (run, checkpoints)
}

fn checkpoints(run: &Path) -> Vec<PathBuf> {
    entries(&run.join("checkpoints"))
}

fn model(run: &Path, which: &str) -> Vec<u8> {
    fs::read(run.join(which).join("model.safetensors")).unwrap()
}

/// What a run's record tells, and its best and its last model.
struct Outcome {
    told: Vec<Value>,
    models: [Vec<u8>; 2],
}

impl Outcome {
    fn of(run: &Path) -> Self {
        Self { told: told(run), models: ["best", "last"].map(|which| model(run, which)) }
    }

    /// Fails unless the run has come to the same.
    fn is_of(&self, run: &Path, what: &str) {
        let found = Self::of(run);
        assert_eq!(found.told, self.told, "{what}: the record");
        assert!(found.models == self.models, "{what}: the models");
    }
}

/// Every scheme, with its default policy, after local steps, and with momentum correction where it keeps a
/// residual, and an optimizer that owns its exchange, before and after its first steps, goes on from the middle of an epoch as if nothing had been.
#[test]
fn every_scheme_goes_on_bit_for_bit() {
    let program = Program::new();
    for scheme in SchemeConfig::all() {
        let name = scheme.about().name;
        let mut variants = vec![vec!["--scheme", name]];
        variants.push(vec!["--scheme", name, "--set", "local.steps=4"]);
        if name == "dgc" || name == "topk" {
            variants.push(vec!["--scheme", name, "--set", "policy.momentum_correction=0.9"]);
        }
        if name == "topk" {
            variants.push(sets("policy.bucketing=parameter exchange.overlap=true"));
            let rules =
                "policy.rules=[{match='*.bias',scheme='qsgd'},{match='fc.*',scheme='powersgd'}]";
            variants.push(sets(rules));
        }
        if name == "onebit" {
            variants.push(sets("scheme=onebit optimizer={kind='onebit-adam',warmup_steps=5}"));
            variants.push(sets("scheme=onebit optimizer={kind='onebit-adam',warmup_steps=9}"));
        }
        for (number, variant) in variants.iter().enumerate() {
            let adam = variant.iter().any(|word| word.contains("onebit-adam"));
            let still = if adam { &[][..] } else { &["--set", "optimizer.momentum=0"] };
            let more = [&variant[..], still, &["--set", "record.histograms_every=6"]].concat();
            let (run, checkpoints) = undisturbed(&program, &format!("{name}-{number}"), &more);
            let before = Outcome::of(&run);
            let from = &checkpoints[0];
            assert!(!from.ends_with("step-00000010"), "in the middle of an epoch");
            program.resume(from, &[]);
            before.is_of(&run, name);
            assert_eq!(events(&run, "finished").len(), 1);
        }
    }
}

/// Batch norm's statistics, AdamW's and Muon's state and images; interrupted twice.
#[test]
fn batch_norm_and_running_means_go_on_bit_for_bit() {
    for (batch_norm, kind) in [("averaged", "adamw"), ("rank0", "muon"), ("synchronised", "adamw")]
    {
        let program = Program::new();
        let batch_norm = format!("train.batch_norm={batch_norm}");
        let optimizer = format!("optimizer={{kind=\"{kind}\",learning_rate=0.01}}");
        let train = words(
            "train --quiet --workers 2 --epochs 3 --set name=quick --set samples.train=48 \
             --set samples.test=16 --set train.batch=4 --set train.accumulate=2 \
             --set train.clip_norm=0.5 --set policy.force=true \
             --set record.every=1 --set checkpoint.every_steps=2 --set checkpoint.keep_last=9",
        );
        program.succeed(&[&train[..], &["--set", &batch_norm, "--set", &optimizer]].concat());
        let run = program.quick_run();
        let before = Outcome::of(&run);
        for _ in 0..2 {
            let from = checkpoints(&run).into_iter().rev().nth(1).unwrap();
            program.resume(&from, &[]);
            before.is_of(&run, &batch_norm);
        }
    }
}

/// A run in bf16, emulated and by the processor's instruction where it has one, of Winograd's convolutions, of LSTMs and
/// of attention, is the same each time and on any number of threads, goes on exactly, and goes on in f32 only by force.
#[test]
fn a_run_in_bf16_goes_on_bit_for_bit_and_in_f32_only_by_force() {
    let instruction = Kernels::parse("auto").unwrap().in_precision(Precision::Bf16).is_ok();
    let by_cpu = if instruction { "bf16" } else { "bf16-emulated" };
    for (precision, model, dataset) in [
        ("bf16-emulated", "resnet8", "synthetic-cifar10"),
        (by_cpu, "resnet8", "synthetic-cifar10"),
        (by_cpu, "bilstm", "synthetic-ag-news"),
        ("bf16-emulated", "transformer", "synthetic-ag-news"),
    ] {
        let program = Program::new();
        let train = words(
            "train --quiet --workers 2 --epochs 2 --set name=quick \
             --set samples.train=48 --set samples.test=16 --set train.batch=4 \
             --set record.every=1 --set checkpoint.every_steps=4 --set checkpoint.keep_last=9",
        );
        let asked = ["--precision", precision, "--model", model, "--dataset", dataset];
        let train = [&train[..], &asked].concat();
        program.succeed(&train);
        let run = program.quick_run();
        let (before, trained) = (Outcome::of(&run), weights(&run));
        program.succeed(&[&train[..], &["--set", "threads=2", "--out", "again"]].concat());
        let again = weights(&only_run(&program.path("again").join("quick")));
        assert!(again == trained, "{model} on two threads");
        let from = checkpoints(&run)[0].clone();
        program.resume(&from, &[]);
        before.is_of(&run, model);
        let line = ["train", "--quiet", "--resume", argument(&from), "--set", "precision=f32"];
        program.refuses(&line, 2, &[&format!("precision was \"{precision}\""), "--force"]);
        program.resume(&from, &["--set", "precision=f32", "--force"]);
        assert!(weights(&run) != trained, "{model} in f32");
    }
}

/// Averages of the weights, flips that alternate and views of the test set; an average also goes on with
/// another number of workers, and at another pace.
#[test]
fn averages_go_on_bit_for_bit() {
    for average in ["{kind=\"ema\",decay=0.9,every=2}", "{kind=\"lookahead\",ramp=1,every=3}"] {
        let program = Program::new();
        let average = format!("average={average}");
        let train = words(
            "train --quiet --workers 2 --epochs 3 --set name=quick --set samples.train=48 \
             --set samples.test=16 --set train.batch=4 --set train.test_views=mirror-translate \
             --set augment={flip=\"alternating\",translate=2,border=\"reflect\"} \
             --set optimizer={kind=\"sgd\",decoupled=true,weight_decay=0.01,norm_bias_rate=4} \
             --set schedule={kind=\"triangular\"} \
             --set record.every=1 --set checkpoint.every_steps=4 --set checkpoint.keep_last=9",
        );
        program.succeed(&[&train[..], &["--set", &average]].concat());
        let run = program.quick_run();
        let before = Outcome::of(&run);
        let from = checkpoints(&run);
        // Those between the first and the last one may be left out while another is written.
        let second = &from[1.min(from.len() - 2)];
        program.resume(second, &[]);
        before.is_of(&run, &average);

        program.resume(second, &["--workers", "3"]);
        assert!(model(&run, "last") != before.models[1], "{average}");
        program.resume(&from[0], &["--force", "--set", "average.decay=0.8"]);
    }
}

/// Rounds of local steps: a checkpoint between two exchanges has every rank's own weights, and the mean of what
/// ranks have come to survives another number of workers.
#[test]
fn a_round_of_local_steps_goes_on_bit_for_bit() {
    for (round, outer, scheme) in [
        ("local={steps=7,after=5,state=\"averaged\"}", "outer={}", "topk"),
        ("local.steps=4", "outer={}", "dense"),
        ("local.steps=1", "outer={learning_rate=0.7,momentum=0.9,nesterov=true}", "qsgd"),
        ("local={steps=5,after=3,state=\"averaged\"}", "outer={fragments=3,momentum=0.9}", "topk"),
        // What left at step 9 arrives at step 11, and at step 7 nothing is on its way.
        ("local.steps=6", "outer={fragments=2,delay=2,momentum=0.9}", "topk"),
        ("local={steps=5,after=4}", "outer={delay=3}", "powersgd"),
    ] {
        let program = Program::new();
        let settings = format!(
            "{round} {outer} scheme={scheme} policy.bucketing=parameter optimizer.momentum=0.9 \
             average={{kind='ema',every=3}} checkpoint.keep_best=true"
        );
        let (run, checkpoints) = undisturbed(&program, "out", &sets(&settings));
        let before = Outcome::of(&run);
        // The end of an epoch, whose model is the best so far, lies within a round unless that is one step.
        let within = checkpoints.iter().find(|path| path.ends_with("step-00000010"));
        let within = within.unwrap_or_else(|| panic!("{checkpoints:?}"));
        let rank = fs::read(within.join("rank-0001.safetensors")).unwrap();
        let own = rank.windows(13).any(|name| name == b"local/weights");
        assert_eq!(own, round != "local.steps=1", "{round}");
        let shared = fs::read(within.join("optimizer.safetensors")).unwrap();
        let on_its_way = shared.windows(14).any(|name| name == b"outer/received");
        assert_eq!(on_its_way, outer.contains("delay"), "{round} {outer}");
        program.resume(within, &[]);
        before.is_of(&run, round);
        program.resume(&checkpoints[0], &[]);
        before.is_of(&run, round);

        let (_, said) = program.outputs(&["train", "--resume", argument(within), "--workers", "2"]);
        says(&said, &["weights within a round, are the mean over the ranks"]);
        let note =
            ["a step takes 32 samples, and 48 up to this checkpoint", "The usual rule for SGD"];
        says(&said, &note);
    }
}

/// What a checkpoint does not hold cannot be gone on with, and a schedule that spans the run has no more
/// of the same.
#[test]
fn an_average_that_was_not_kept_and_a_longer_schedule_are_refused() {
    let program = Program::new();
    let (run, checkpoints) = undisturbed(&program, "out", &[]);
    let before = told(&run);
    let change = ["--force", "--set", "average={kind=\"ema\"}"];
    let begin = ["train", "--quiet", "--resume", argument(&checkpoints[0])];
    let parts = ["average.kind must be what the run was begun with"];
    program.refuses(&[&begin[..], &change[..]].concat(), 1, &parts);
    let longer = ["train", "--resume", argument(&run), "--set", "train.max_steps=30"];
    program.refuses(&longer, 2, &["train.max_steps was 24, is 30: the schedule spans"]);
    assert_eq!(told(&run), before);
}

/// Rows of an embedding table that wait for somebody to read them wait on; and who reads them, for
/// an evaluation, a comparison of replicas or a checkpoint, changes no bit.
#[test]
fn rows_that_wait_go_on_bit_for_bit() {
    for (scheme, nesterov) in [("dense", "false"), ("nonzero", "true")] {
        let program = Program::new();
        let settings =
            format!("scheme={scheme} optimizer.momentum=0.9 optimizer.nesterov={nesterov}");
        let settings = sets(&settings);
        let (run, checkpoints) = undisturbed(&program, "out", &settings);
        let before = Outcome::of(&run);
        let optimizer = fs::read(checkpoints[0].join("optimizer.safetensors")).unwrap();
        assert!(optimizer.windows(13).any(|name| name == b"waiting/since"), "no row waits");
        program.resume(&checkpoints[0], &[]);
        before.is_of(&run, scheme);

        let often = sets("exchange.compare_replicas_every=1 checkpoint.every_steps=2");
        let (other, _) = undisturbed(&program, "often", &[settings, often].concat());
        let [other, run] = [&other, &run].map(|run| weights(run));
        assert!(other == run, "{scheme}: read more often");
    }
}

/// A process that is killed at any moment leaves a run that goes on to the same end.
#[test]
fn a_killed_run_goes_on_bit_for_bit() {
    let program = Program::new();
    let often = sets("checkpoint.every_steps=1 checkpoint.keep_last=2");
    let (run, _) = undisturbed(&program, "out", &often);
    let (expected, model_expected) = (told(&run), model(&run, "last"));

    let program = Program::new();
    let begin = [&words(STEPS)[..], &["--workers", "3", "--out", "out"], &often].concat();
    let mut arguments: Vec<String> = quick(&begin).iter().map(ToString::to_string).collect();
    let mut kills = 0;
    let model_found = loop {
        let mut command = program.command(&[]);
        let command = command.args(&arguments).stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let patience = Duration::from_millis(120 + 70 * (kills % 5));
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if kills < 6 && began.elapsed() > patience {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let runs = program.path("out").join("quick");
        let holds_one = fs::read_dir(&runs).is_ok_and(|mut runs| runs.next().is_some());
        let run = holds_one.then(|| only_run(&runs));
        let begun = run.as_ref().is_some_and(|run| {
            run.join("checkpoints").is_dir()
                && checkpoints(run).iter().any(|path| argument(path).contains("/step-"))
        });
        match (status, run) {
            (Some(status), Some(run)) => {
                assert!(status.success(), "{arguments:?}");
                assert_eq!(told(&run), expected);
                break model(&run, "last");
            }
            (_, Some(run)) if begun => {
                arguments = ["train", "--quiet", "--resume", argument(&run)]
                    .map(ToString::to_string)
                    .into();
            }
            (_, Some(run)) => fs::remove_dir_all(run.parent().unwrap()).unwrap(),
            (status, None) => assert!(status.is_none(), "{status:?}"),
        }
        kills += 1;
    };
    assert!(model_found == model_expected, "the models differ");
}

#[test]
fn other_numbers_of_workers_go_on_with_every_sample() {
    let program = Program::new();
    let schedule = ["--set", "schedule={kind=\"constant\"}", "--epochs", "3"];
    let (run, checkpoints) = undisturbed(&program, "out", &schedule);
    // After seven steps of 48 samples, 144 of the epoch's 480 are left.
    for (workers, steps) in [("4", 3), ("2", 5), ("6", 2), ("1", 9)] {
        let from = &checkpoints[0];
        assert!(from.ends_with("step-00000007"));
        let copy = program.path(&format!("copy-{workers}"));
        copy_folder(&run, &copy);
        let from = copy.join("checkpoints").join(from.file_name().unwrap());
        let (_, said) =
            program.outputs(&["train", "--resume", argument(&from), "--workers", workers]);
        assert!(said.contains(&format!("{workers} workers go on with the state of 3")), "{said}");
        assert!(said.contains("after 336 of its 480 samples"), "{said}");
        let steps_told = events(&copy, "step");
        let of_epoch = |epoch: f64| steps_told.iter().filter(move |s| number(s, "epoch") == epoch);
        let samples: f64 = of_epoch(1.0).map(|s| number(s, "samples")).sum();
        assert_eq!(samples, 480.0, "{workers} workers: every sample of the epoch once");
        let later = of_epoch(1.0).filter(|s| number(s, "step") > 7.0).count();
        assert_eq!(later, steps, "{workers} workers");
        let steps_taken = numbers(&steps_told, "step");
        assert!(steps_taken.iter().zip(1..).all(|(n, i)| *n == f64::from(i)), "{steps_taken:?}");
        let a_step = 16 * workers.parse::<usize>().unwrap();
        let all = 7 + steps + 2 * 480usize.div_ceil(a_step);
        assert_eq!(steps_taken.len(), all.min(24), "{workers} workers");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for path in entries(from) {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(path, target).unwrap();
        }
    }
}

#[test]
fn another_recipe_is_refused_key_by_key_and_more_of_the_same_is_not() {
    let program = Program::new();
    let schedule = ["--set", "schedule={kind=\"constant\"}"];
    let (run, _) = undisturbed(&program, "out", &schedule);
    let begin = ["train", "--quiet", "--resume", argument(&run)];
    let resume = |more: &[&'static str]| [&begin[..], more].concat();
    let changed = ["--set", "train.batch=8", "--set", "policy.dense_below=7", "--seed", "9"];
    let error = program.refuse(&resume(&changed), 2);
    let parts =
        ["train.batch was 16, is 8", "policy.dense_below was left out, is 7", "seed", "--force"];
    says(&error, &parts);
    program.refuses(&resume(&["--set", "train.bach=8"]), 2, &["did you mean"]);
    // The run's written recipe is its recipe, and errors are measured as often as steps are recorded.
    let written = run.join("recipe.toml");
    let again =
        ["train", argument(&written), "--resume", argument(&run), "--set", "record.every=3"];
    let shown = program.succeed(&[&again[..], &["--dry-run"]].concat());
    says(&shown, &["every = 3", "measure_every = 3"]);

    // The run has taken its 24 steps; more are more of the same.
    let more = ["--set", "train.max_steps=30", "--set", "record.every=2"];
    program.succeed(&resume(&more));
    let steps = events(&run, "step");
    assert_eq!(number(steps.last().unwrap(), "step"), 30.0);
    assert_eq!(number(&events(&run, "finished")[0]["summary"], "steps"), 30.0);
    // And it remembers how it was last continued.
    let forced = ["--set", "train.max_steps=32", "--set", "train.batch=8", "--force"];
    program.succeed(&resume(&forced));
    assert_eq!(number(events(&run, "step").last().unwrap(), "step"), 32.0);
    let recipe = fs::read_to_string(run.join("recipe.toml")).unwrap();
    assert!(recipe.contains("max_steps = 32") && recipe.contains("batch = 8"), "{recipe}");
}

/// Every file below a folder, by path.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for path in entries(&folder) {
            if path.is_dir() {
                open.push(path);
            } else {
                drop(all.insert(path.clone(), fs::read(path).unwrap()));
            }
        }
    }
    all
}

/// Nothing is written before it is known that the run can go on as it is asked to.
#[test]
fn what_cannot_go_on_stays_as_it_is() {
    let program = Program::new();
    let (run, checkpoints) = undisturbed(&program, "out", &["--scheme", "topk"]);
    let (before, told_before) = (files(&run), told(&run));
    for (more, part) in [
        (["--seed", "7", "--force"], "seed was 1, is 7"),
        (["--workers", "2", "--quiet"], "workers was 3, is 2"),
    ] {
        let parts = ["no step is left", part];
        program.refuses(&[&["train", "--resume", argument(&run)], &more[..]].concat(), 1, &parts);
        assert!(files(&run) == before, "{more:?} has changed the run");
    }
    let from = argument(&checkpoints[0]);
    let parts = ["taking up", "residual"];
    program.refuses(&["train", "--resume", from, "--scheme", "dense", "--force"], 1, &parts);
    assert!(files(&run) == before, "another scheme has changed the run");

    let (_, said) = program.outputs(&["train", "--resume", argument(&run)]);
    assert!(said.contains("has taken all its 24 steps"), "{said}");
    program.resume(&checkpoints[0], &[]);
    assert_eq!(told(&run), told_before);
}

/// Whoever insists: half a record of the network could not be read.
#[test]
fn the_network_is_recorded_from_the_first_step_or_not_at_all() {
    let program = Program::new();
    for begun in [false, true] {
        let [begun, set] = [begun, !begun].map(|records| format!("record.network={records}"));
        let (run, checkpoints) = undisturbed(&program, &set, &["--set", &begun]);
        let before = files(&run);
        let changed =
            ["train", "--quiet", "--resume", argument(&checkpoints[0]), "--set", set.as_str()];
        for force in [vec![], vec!["--force"]] {
            let parts = ["record.network was", "go on with record.network as it was"];
            program.refuses(&[&changed[..], &force].concat(), 2, &parts);
        }
        assert!(files(&run) == before, "{set} has changed the run");
        program.resume(&checkpoints[0], &[]);
        program.succeed(&["compare", argument(&run)]);
    }
}

/// Who was killed before the first checkpoint begins again, in the same folder; one that has ended does
/// not.
#[test]
fn what_was_cut_off_before_its_first_checkpoint_begins_again() {
    let program = Program::new();
    let rare = ["--set", "checkpoint.every_minutes=0"];
    program.run(&quick(&[&rare[..], &["--inject", "kill:step=5"]].concat()));
    let run = program.quick_run();
    assert!(events(&run, "finished").is_empty() && !run.join("checkpoints").exists());
    program.refuses(&["eval", argument(&run)], 1, &["there is no model at"]);
    let dry = program.succeed(&["train", "--resume", argument(&run), "--dry-run"]);
    assert!(dry.contains("max_steps = 12"), "{dry}");
    program.resume(&run, &[]);
    assert_eq!(events(&run, "finished").len(), 1);
    assert_eq!(number(&events(&run, "step")[0], "step"), 1.0);
    let mut cut = run.clone().into_os_string();
    cut.push("-cut-off-1");
    assert!(Path::new(&cut).join("metrics.jsonl").exists(), "nothing is removed");
    let straight = program.train_in("straight", &rare);
    assert!(model(&run, "last") == model(&straight, "last"));

    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    program.refuses(&["train", "--resume", argument(&run)], 1, &["there is no checkpoint in"]);
}

#[test]
fn damaged_checkpoints_are_passed_over_and_told() {
    let program = Program::new();
    let (run, checkpoints) = undisturbed(&program, "out", &[]);
    let expected = (told(&run), model(&run, "last"));
    let newest = checkpoints.last().unwrap();
    let file = newest.join("rank-0001.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();

    let parts = ["rank-0001.safetensors", "checksum", "--resume"];
    program.refuses(&["train", "--resume", argument(newest)], 1, &parts);
    let (_, said) = program.outputs(&["train", "--resume", argument(&run)]);
    assert!(said.contains("a newer checkpoint is damaged"), "{said}");
    assert_eq!((told(&run), model(&run, "last")), expected);

    // A newer program's is neither damaged nor passed over, which would remove it.
    let manifest = newest.join("manifest.json");
    let ours = fs::read(&manifest).unwrap();
    let mut newer: Value = serde_json::from_slice(&ours).unwrap();
    newer["version"] = 3.into();
    fs::write(&manifest, newer.to_string()).unwrap();
    let parts = ["version 3", "the program that wrote it", "name an older one"];
    program.refuses(&["train", "--resume", argument(&run)], 1, &parts);
    let said = program.refuse(&["train", "--resume", argument(newest)], 1);
    assert!(said.contains("version 3") && !said.contains("damaged"), "{said}");
    fs::write(&manifest, ours).unwrap();
    program.succeed(&["train", "--resume", argument(&run)]);
    assert_eq!((told(&run), model(&run, "last")), expected);

    for folder in entries(&run.join("checkpoints")) {
        fs::remove_file(folder.join("manifest.json")).unwrap();
    }
    program.refuses(&["train", "--resume", argument(&run)], 1, &["no checkpoint", "manifest.json"]);
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    program.refuses(&["train", "--resume", argument(&run)], 1, &["there is no checkpoint in"]);
    program.refuses(&["train", "--resume", "nowhere/at/all"], 1, &["there is no run at nowhere"]);
}

#[test]
fn the_newest_and_the_best_are_kept() {
    let program = Program::new();
    let best = "checkpoint.every_steps=1 checkpoint.keep_last=2 checkpoint.keep_best=true \
                optimizer.learning_rate=60 seed=1";
    let averaged = format!("{best} checkpoint.keep_last=1 average={{kind='ema',decay=0.001}}");
    let (run, averages) = undisturbed(&program, "averaged", &sets(&averaged));
    holds_the_best(&run, &averages);
    assert_eq!(averages.len(), 2, "the best is not the last: {averages:?}");
    let of = argument(&averages[0]);
    says(
        &program.outputs(&["eval", of]).1,
        &["note: what the run evaluates is the average of its weights"],
    );
    let model = averages[0].join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&model, bytes).unwrap();
    program.refuses(&["eval", of], 1, &["model.safetensors is damaged", "manifest.json"]);
    let (run, checkpoints) = undisturbed(&program, "out", &sets(best));
    holds_the_best(&run, &checkpoints);
    assert!((2..=3).contains(&checkpoints.len()), "{checkpoints:?}");
    assert!(checkpoints.last().unwrap().ends_with("step-00000024"));
    // A checkpoint holds a model as any other.
    let evaluated = program.succeed(&["eval", "--json", argument(&checkpoints[0])]);
    assert!(evaluated.contains("test_accuracy"), "{evaluated}");

    let program = Program::new();
    let none = words("--set checkpoint.keep_last=0 --set checkpoint.every_steps=0");
    let run = program.train(&[&words(STEPS)[..], &none].concat());
    assert!(!run.join("checkpoints").exists());
}

/// Checks that the checkpoint of the epoch with the best accuracy, of several the first, is among these.
fn holds_the_best(run: &Path, checkpoints: &[PathBuf]) {
    let epochs = events(run, "epoch");
    let accuracy = |epoch: &Value| number(epoch, "test_accuracy");
    let best = epochs.iter().rev().max_by(|a, b| accuracy(a).total_cmp(&accuracy(b))).unwrap();
    let name = format!("step-{:08}", number(best, "step"));
    assert!(checkpoints.iter().any(|path| path.ends_with(&name)), "{name}: {checkpoints:?}");
}

/// `last` is looked for where the recipe that is trained writes its runs.
#[test]
fn the_last_run_is_looked_for_where_runs_are_written() {
    let program = Program::new();
    program.succeed(&quick(&["--set", "record.out=elsewhere"]));
    program.refuse(&["train", "--resume", "last", "--dry-run"], 2);
    for there in [["--set", "record.out=elsewhere"], ["--out", "elsewhere"]] {
        let shown =
            program.succeed(&[&["train", "--resume", "last", "--dry-run"], &there[..]].concat());
        says(&shown, &["name = \"quick\"", "max_steps = 12"]);
    }
}
