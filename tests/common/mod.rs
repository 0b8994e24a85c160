//! What the whole-program tests share: the binary, run from outside, and its records.

#![allow(unreachable_pub, reason = "tests")]

use safetensors::SafeTensors;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The program with its working folder in a scratch folder of its own.
pub struct Program {
    /// Where it runs; removed at the end.
    pub folder: TempDir,
}

impl Program {
    /// A program that has not run yet.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a scratch folder") }
    }

    /// The program with `arguments`, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
        command.args(arguments).current_dir(self.folder.path()).env_remove("GRADWIRE_KERNELS");
        command
    }

    /// Runs it with `arguments`, to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    /// Runs it and expects success; its standard output and its standard error.
    pub fn outputs(&self, arguments: &[&str]) -> (String, String) {
        let output = self.run(arguments);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{arguments:?} failed\n{out}\n{err}");
        (out, err)
    }

    /// Runs it and expects success; its standard output.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        self.outputs(arguments).0
    }

    /// Runs it and expects success; the JSON of each line of its standard output.
    pub fn rows(&self, arguments: &[&str]) -> Vec<Value> {
        json_lines(&self.succeed(arguments))
    }

    /// Runs it and expects the exit code `code`; its standard error.
    pub fn refuse(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
        err
    }

    /// Runs it and expects the exit code `code`, and all of these words in its standard error.
    #[track_caller]
    pub fn refuses(&self, arguments: &[&str], code: i32, words: &[&str]) {
        says(&self.refuse(arguments, code), words);
    }

    /// Trains the quick recipe with more arguments; the run's folder.
    pub fn train(&self, more: &[&str]) -> PathBuf {
        self.succeed(&quick(more));
        self.quick_run()
    }

    /// The same below the folder `out`.
    pub fn train_in(&self, out: &str, more: &[&str]) -> PathBuf {
        self.succeed(&quick(&[&["--out", out], more].concat()));
        only_run(&self.path(out).join("quick"))
    }

    /// Goes on from a run or a checkpoint, with more arguments.
    pub fn resume(&self, from: &Path, more: &[&str]) {
        self.succeed(&[&["train", "--quiet", "--resume", argument(from)], more].concat());
    }

    /// The only run of the quick recipe.
    pub fn quick_run(&self) -> PathBuf {
        only_run(&self.path("runs/out/quick"))
    }

    /// A path within the working folder.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }
}

/// A path as an argument.
pub fn argument(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Fails unless all of these words are in `text`.
#[track_caller]
pub fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing: {text}");
    }
}

/// What a process has written, as text: standard output and standard error.
pub fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The JSON of each line.
pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What lies in a folder, in order of the names.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

/// The only run in `folder`, which holds stamps.
pub fn only_run(folder: &Path) -> PathBuf {
    let mut runs = entries(folder);
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.pop().unwrap()
}

/// Waits for something from outside, and returns it; fails with these words when it does not come.
#[track_caller]
pub fn until<T>(missing: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{missing}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The run that is going on in `folder`, once it has taken its first steps.
pub fn begun(folder: &Path) -> PathBuf {
    until("the run does not begin", || {
        let run = fs::read_dir(folder).ok()?.next()?.ok()?.path();
        let lines = fs::read_to_string(run.join("metrics.jsonl")).ok()?;
        (lines.matches("\"event\":\"step\"").count() > 3).then_some(run)
    })
}

/// Sends a signal such as `-INT` to a process.
pub fn signal(process: u32, name: &str) {
    let kill = Command::new("kill").args([name, &process.to_string()]).status().unwrap();
    assert!(kill.success());
}

/// The weights of a run's last model, by name: their bytes.
pub fn weights(run: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(run.join("last/model.safetensors")).expect("the run's last model");
    let model = SafeTensors::deserialize(&bytes).expect("a whole model");
    let mut tensors: Vec<_> =
        model.tensors().into_iter().map(|(name, t)| (name, t.data().to_vec())).collect();
    tensors.sort();
    tensors
}

/// A model file with another text about itself and other data.
pub fn forged(bytes: &[u8], about: impl Fn(&mut Value), data: impl Fn(&mut [u8])) -> Vec<u8> {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, tensors) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let said = &mut header["__metadata__"]["gradwire"];
    let mut said_about: Value = serde_json::from_str(said.as_str().unwrap()).unwrap();
    about(&mut said_about);
    *said = said_about.to_string().into();
    let header = header.to_string();
    let mut tensors = tensors.to_vec();
    data(&mut tensors);
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &tensors].concat()
}

/// The events of one kind in a run's metrics.
pub fn events(run: &Path, kind: &str) -> Vec<Value> {
    let mut all = json_lines(&fs::read_to_string(run.join("metrics.jsonl")).unwrap());
    all.retain(|event| event["event"] == kind);
    all
}

/// A number in an event.
pub fn number(event: &Value, key: &str) -> f64 {
    event[key].as_f64().unwrap_or_else(|| panic!("{key} in {event}"))
}

/// A number in each of these events.
pub fn numbers(events: &[Value], key: &str) -> Vec<f64> {
    events.iter().map(|event| number(event, key)).collect()
}

/// `--set` before each of these settings, between which is white space.
pub fn sets(settings: &str) -> Vec<&str> {
    settings.split_whitespace().flat_map(|setting| ["--set", setting]).collect()
}

/// The words of a command line without quotes.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A recipe that takes seconds in a debug build: a linear text model, four classes.
const QUICK: &str = "train --quiet --set dataset=synthetic-ag-news --set model=fasttext \
                     --set train.max_steps=12 --set record.every=1 --set name=quick \
                     --set optimizer.learning_rate=1";

/// The command that trains a quick recipe, with more arguments.
pub fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&words(QUICK)[..], more].concat()
}

/// What a run's record tells of steps, epochs and histograms, but for times.
pub fn told(run: &Path) -> Vec<Value> {
    let mut told = ["step", "epoch", "histograms"].map(|kind| events(run, kind)).concat();
    for event in &mut told {
        let event = event.as_object_mut().unwrap();
        let times = ["time", "phases", "samples_per_second"];
        event.retain(|key, _| !times.contains(&key.as_str()) && !key.ends_with("seconds"));
    }
    told
}

/// What a run came to: its last model's weights by name, and what its record tells.
pub struct Outcome {
    weights: Vec<(String, Vec<u8>)>,
    told: Vec<Value>,
}

impl Outcome {
    /// Of the run in this folder.
    pub fn of(run: &Path) -> Self {
        Self { weights: weights(run), told: told(run) }
    }

    /// Fails unless the run in this folder came to the same.
    pub fn is_of(&self, run: &Path, what: &str) {
        assert!(weights(run) == self.weights, "{what}: the weights");
        assert_eq!(told(run), self.told, "{what}: the record");
    }
}
