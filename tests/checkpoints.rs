//! The checkpoint format: what it holds, and that nothing else is read.

use crate::common::{Program, argument, only_run};
use gradwire::checkpoint::{
    Checkpoint, FOLDER, Location, Part, Shared, Tensor, Tensors, Whole, find_newest, write,
};
use gradwire::disk::{Disk, Fault};
use gradwire::recipe::Recipe;
use gradwire_datasets::sha256;
use gradwire_exchange::Entry;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::LazyLock;

/// FastText of two dimensions on a made-up AG-News, two workers, aggregation-aware sparsification with
/// momentum correction.
const RECIPE: &str = r#"
name = "small"
workers = 2
dataset = { kind = "synthetic-ag-news", vocabulary = 12 }
samples = { train = 64, test = 16 }
model = { kind = "fasttext", dim = 2 }
scheme = { kind = "aggregation-aware", ratio = 0.2, values = "f32" }
policy = { momentum_correction = 0.9 }
train = { epochs = 6, max_steps = 8, batch = 8 }
optimizer = { kind = "sgd", momentum = 0.0, learning_rate = 0.5 }
record = { every = 1 }
checkpoint = { every_steps = 3, keep_last = 9 }
"#;

/// A run of it, from its first step to its last.
static SMALL: LazyLock<(Program, PathBuf)> = LazyLock::new(|| {
    let program = Program::new();
    fs::write(program.path("small.toml"), RECIPE).unwrap();
    program.succeed(&["train", "small.toml", "--quiet"]);
    let run = only_run(&program.path("runs/out/small"));
    (program, run)
});

const FILES: [&str; 6] = [
    "manifest.json",
    "manifest.sha256",
    "model.safetensors",
    "optimizer.safetensors",
    "rank-0000.safetensors",
    "rank-0001.safetensors",
];

/// A run's folder with a copy of the checkpoint of step 3.
struct Copy {
    run: tempfile::TempDir,
    folder: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join(FOLDER).join("step-00000003");
        fs::create_dir_all(&folder).unwrap();
        for name in FILES {
            let from = SMALL.1.join(FOLDER).join("step-00000003").join(name);
            fs::copy(from, folder.join(name)).unwrap();
        }
        Self { run, folder }
    }

    /// How reading it fails.
    fn refusal(&self) -> String {
        match Checkpoint::read(&Disk::default(), &self.folder) {
            Ok(_) => panic!("it was read"),
            Err(error) => format!("{error:#}"),
        }
    }

    /// Changes the manifest, and makes its checksum fit.
    fn sign(&self, change: impl FnOnce(&mut Value)) {
        let path = self.folder.join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut manifest);
        self.sign_text(&serde_json::to_vec(&manifest).unwrap());
    }

    fn sign_text(&self, text: &[u8]) {
        fs::write(self.folder.join("manifest.json"), text).unwrap();
        let line = format!("{}  manifest.json\n", sha256(text));
        fs::write(self.folder.join("manifest.sha256"), line).unwrap();
    }

    /// Replaces a file, and makes the manifest fit.
    fn forge(&self, name: &str, bytes: &[u8]) {
        fs::write(self.folder.join(name), bytes).unwrap();
        self.sign(|manifest| {
            let files = manifest["files"].as_array_mut().unwrap();
            let entry = files.iter_mut().find(|entry| entry["name"] == name).unwrap();
            entry["bytes"] = bytes.len().into();
            entry["sha256"] = sha256(bytes).into();
        });
    }
}

#[test]
fn a_checkpoint_holds_what_the_next_step_needs() {
    let copy = Copy::new();
    let checkpoint = Checkpoint::read(&Disk::default(), &copy.folder).unwrap();
    let manifest = &checkpoint.manifest;
    assert_eq!((manifest.version, manifest.world_size, manifest.updates), (2, 2, 3));
    let progress = manifest.progress;
    assert_eq!((progress.step, progress.epoch, progress.position), (3, 1, 48));
    let names = |tensors: &Tensors| tensors.0.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&checkpoint.model), ["embedding.weight", "fc.bias", "fc.weight"]);
    let waiting = ["drift", "left", "since", "weights"].map(|name| format!("waiting/{name}"));
    assert_eq!(names(&checkpoint.optimizer), waiting, "what rows wait with, and no momentum");
    let length: usize =
        checkpoint.model.0.values().map(|t| t.shape.iter().product::<usize>()).sum();
    for rank in &checkpoint.ranks {
        for name in ["exchange/residual", "exchange/velocity"] {
            let values = rank.f32s(name, &[length]).unwrap();
            assert!(values.iter().any(|value| *value != 0.0), "{name}");
        }
        assert!(matches!(rank.0["exchange/bucket.0/unions"].values, Entry::Bytes(_)));
    }

    // It goes on to the end that the run itself came to.
    let (program, run) = &*SMALL;
    let from = copy.run.path();
    program.resume(from, &[]);
    let model = |run: &std::path::Path| fs::read(run.join("last/model.safetensors")).unwrap();
    assert!(model(from) == model(run));
}

/// Neither a checkpoint of another version nor one that another optimizer wrote is taken for damaged.
#[test]
fn what_another_program_or_optimizer_wrote_is_refused_with_the_remedy() {
    let program = &SMALL.0;
    let copy = Copy::new();
    let resume = ["train", "--quiet", "--resume", argument(copy.run.path())];
    let adamw =
        ["--set", "optimizer.kind=adamw", "--set", "policy.momentum_correction=0", "--force"];
    let error = program.refuse(&[&resume[..], &adamw].concat(), 1);
    assert!(
        error.contains("another optimizer wrote it: it holds no vectors where exp_avg"),
        "{error}"
    );
    for version in [1, 3] {
        copy.sign(|manifest| manifest["version"] = version.into());
        let error = program.refuse(&resume, 1);
        let part =
            format!("of version {version}, and this program reads version 2: resume it with");
        assert!(error.contains(&part) && error.contains("manifest.json"), "{error}");
    }
}

#[test]
fn damaged_bytes_are_noticed() {
    for name in FILES {
        let copy = Copy::new();
        let path = copy.folder.join(name);
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(if good.len() > 1000 { 5 } else { 1 }) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, &bad).unwrap();
            let refusal = copy.refusal();
            assert!(refusal.contains(name), "{name}, byte {at}: {refusal}");
        }
        for length in (0..good.len()).step_by(37) {
            fs::write(&path, &good[..length]).unwrap();
            let refusal = copy.refusal();
            assert!(refusal.contains(name), "{name}, cut to {length}: {refusal}");
        }
        fs::write(&path, [&good[..], b"x"].concat()).unwrap();
        assert!(copy.refusal().contains(name));
        fs::remove_file(&path).unwrap();
        assert!(copy.refusal().contains(name));
        fs::create_dir(&path).unwrap();
        assert!(copy.refusal().contains(name));
    }
}

#[test]
fn files_and_folders_that_changed_places_are_noticed() {
    let copy = Copy::new();
    let [a, b] = ["rank-0000.safetensors", "rank-0001.safetensors"].map(|n| copy.folder.join(n));
    fs::rename(&a, copy.folder.join("c")).unwrap();
    fs::rename(&b, &a).unwrap();
    fs::rename(copy.folder.join("c"), &b).unwrap();
    assert!(copy.refusal().contains("rank-0000.safetensors"));

    let mut copy = Copy::new();
    let elsewhere = copy.folder.with_file_name("step-00000009");
    fs::rename(&copy.folder, &elsewhere).unwrap();
    copy.folder = elsewhere;
    assert!(copy.refusal().contains("of step 3"), "{}", copy.refusal());
}

#[test]
fn manifests_that_lie_are_refused() {
    type Lie<'a> = (&'a str, &'a dyn Fn(&mut Value));
    let lies: [Lie<'_>; 15] = [
        ("version 0", &|m| m["version"] = 0.into()),
        ("format", &|m| m["format"] = "other".into()),
        ("not a manifest", &|m| *m = Value::Array(vec![])),
        ("world size of 0", &|m| m["world_size"] = 0.into()),
        ("world size", &|m| m["world_size"] = u64::MAX.into()),
        ("3 workers", &|m| m["world_size"] = 3.into()),
        ("epoch 0", &|m| m["epoch"] = 0.into()),
        ("step 0", &|m| m["step"] = 0.into()),
        ("not possible", &|m| m["step"] = u64::MAX.into()),
        ("not possible", &|m| m["epoch"] = u64::MAX.into()),
        ("updates are not possible", &|m| m["updates"] = u64::MAX.into()),
        ("name the files", &|m| m["files"][2]["name"] = "../../../etc/passwd".into()),
        ("name the files", &|m| drop(m["files"].as_array_mut().unwrap().pop())),
        ("were written", &|m| m["files"][2]["bytes"] = u64::MAX.into()),
        ("whole manifest", &|m| drop(m.as_object_mut().unwrap().remove("sums"))),
    ];
    for (part, lie) in lies {
        let copy = Copy::new();
        copy.sign(lie);
        let refusal = copy.refusal();
        assert!(refusal.contains(part) && refusal.contains("step-00000003/"), "{part}: {refusal}");
    }
    for text in [&b""[..], b"{", b"\xff\xfe", "[".repeat(100_000).as_bytes(), b"nul\0"] {
        let copy = Copy::new();
        copy.sign_text(text);
        assert!(copy.refusal().contains("manifest.json"));
    }
}

#[test]
fn tensors_that_lie_are_refused() {
    let header = |length: u64, text: &str| [&length.to_le_bytes()[..], text.as_bytes()].concat();
    let absurd = [
        vec![],
        vec![0xff; 8],
        header(u64::MAX, "{}"),
        header(1 << 40, "{}"),
        header(2, "{}x"),
        header(3, "{{{"),
        header(70, r#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}"#),
        header(58, r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}    "#),
        header(58, r#"{"a":{"dtype":"I16","shape":[0],"data_offsets":[0,0]}}    "#),
    ];
    for bytes in absurd {
        let copy = Copy::new();
        copy.forge("rank-0001.safetensors", &bytes);
        let refusal = copy.refusal();
        assert!(refusal.contains("rank-0001.safetensors"), "{bytes:?}: {refusal}");
    }

    // Whole files that hold something else than the model, the optimizer and the scheme need.
    let program = &SMALL.0;
    let put =
        |t: &mut Tensors, name: &str, entry| drop(t.0.insert(name.into(), Tensor::flat(entry)));
    type Other<'a> = (&'a str, &'a str, &'a dyn Fn(&mut Tensors));
    let others: [Other<'_>; 8] = [
        ("model.safetensors", "fc.bias is missing", &|t| drop(t.0.remove("fc.bias"))),
        ("model.safetensors", "fc.bias has the shape", &|t| {
            put(t, "fc.bias", Entry::F32(vec![0.0; 3]));
        }),
        ("model.safetensors", "4 tensors where", &|t| put(t, "more", Entry::F32(vec![0.0; 3]))),
        ("model.safetensors", "not of f32", &|t| put(t, "fc.bias", Entry::U64(vec![0; 4]))),
        ("rank-0001.safetensors", "residual", &|t| drop(t.0.remove("exchange/residual"))),
        ("rank-0001.safetensors", "velocity", &|t| {
            put(t, "exchange/velocity", Entry::F32(vec![0.0]));
        }),
        ("rank-0001.safetensors", "unions", &|t| {
            put(t, "exchange/bucket.0/unions", Entry::Bytes(vec![0xff; 40]));
        }),
        ("rank-0001.safetensors", "residual", &|t| {
            let Entry::F32(values) = &mut t.0.get_mut("exchange/residual").unwrap().values else {
                panic!("no f32")
            };
            values[1] = f32::NAN;
        }),
    ];
    for (name, part, change) in others {
        let copy = Copy::new();
        let mut tensors = Tensors::decode(&fs::read(copy.folder.join(name)).unwrap()).unwrap();
        change(&mut tensors);
        copy.forge(name, &tensors.encode(None).unwrap());
        let run = argument(copy.run.path());
        let error = program.refuse(&["train", "--quiet", "--resume", run, "--force"], 1);
        assert!(error.contains(part) && error.contains("step-00000003"), "{part}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}

/// What was read, ready to be written again as the checkpoint of another step.
fn whole(checkpoint: &Checkpoint, step: u64) -> Whole {
    let manifest = checkpoint.manifest.clone();
    let mut shared = Some(Shared {
        weights: checkpoint.model.clone(),
        optimizer: checkpoint.optimizer.clone(),
        manifest: manifest.clone(),
        normalisation: None,
    });
    let parts = checkpoint.ranks.iter().enumerate().map(|(rank, own)| Part {
        rank,
        step,
        own: own.clone(),
        shared: shared.take(),
        stall: 0.0,
    });
    let mut progress = manifest.progress;
    progress.step = step;
    Whole {
        progress,
        recipe: Recipe::from_toml(&manifest.recipe).unwrap(),
        provenance: manifest.provenance,
        sums: manifest.sums,
        summary: manifest.summary,
        parts: parts.collect(),
    }
}

#[test]
fn what_is_written_is_what_was_read() {
    let copy = Copy::new();
    let disk = Disk::default();
    let first = Checkpoint::read(&disk, &copy.folder).unwrap();
    let (folder, bytes) = write(&disk, copy.run.path(), whole(&first, 4)).unwrap();
    let second = Checkpoint::read(&disk, &folder).unwrap();
    assert_eq!(
        (&second.model, &second.optimizer, &second.ranks),
        (&first.model, &first.optimizer, &first.ranks)
    );
    let found: u64 = FILES.iter().map(|f| fs::metadata(folder.join(f)).unwrap().len()).sum();
    assert_eq!(bytes, found);
    for name in &FILES[3..] {
        assert!(fs::read(folder.join(name)).unwrap() == fs::read(copy.folder.join(name)).unwrap());
    }
}

/// The disk fails once, or for ever, at each of the operations of writing a checkpoint: the
/// earlier one can always be gone on from, and the new one is there whole or not at all.
#[test]
fn at_whatever_operation_writing_stops_a_whole_checkpoint_is_left() {
    for count in [1, u64::MAX] {
        let mut operations = 0;
        for first in 1.. {
            let copy = Copy::new();
            fs::write(copy.run.path().join("metrics.jsonl"), "{}\n").unwrap();
            let healthy = Disk::default();
            let old = Checkpoint::read(&healthy, &copy.folder).unwrap();
            let kind = io::ErrorKind::StorageFull;
            let disk = Disk::failing(Fault { operation: None, first, count, kind });
            let result = write(&disk, copy.run.path(), whole(&old, 4));
            let location = Location { run: copy.run.path().into(), folder: None };
            let (checkpoint, damaged) = find_newest(&healthy, &location).unwrap();
            assert!(damaged.is_empty(), "{first}: {damaged:?}");
            let step = checkpoint.manifest.progress.step;
            assert!(step == 4 || result.is_err(), "{first}: told to be written, and is not");
            // The next attempt is not in the way of what this one left.
            write(&healthy, copy.run.path(), whole(&old, 5)).unwrap();
            let names = fs::read_dir(copy.run.path().join(FOLDER)).unwrap();
            let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
            assert!(names.into_iter().all(|name| !name.starts_with('.')), "{first}");
            if disk.failed() == 0 {
                break;
            }
            operations = first;
        }
        assert!(operations > 20, "{operations}");
    }
}
