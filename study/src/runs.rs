//! The runs under a folder: which there are, what each is at a glance, and which one a word means.

use anyhow::{Context, Result, bail};
use gradwire::disk::Disk;
use gradwire::recipe::NEWEST;
use gradwire::record::{Event, Kind, METRICS, RECIPE, is_run, is_written};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use toml::{Table, Value};

/// Folders below the one that is looked through: runs of superseded experiments lie deepest.
const DEEPEST: usize = 6;

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It took all its steps.
    Finished,
    /// It ended before its last step, on request or by a kill.
    Stopped,
    /// It was ended by an error.
    Failed,
    /// A gradient or a loss was no finite number any more.
    Diverged,
    /// A process is at work in it now.
    Running,
    /// Its recipe or its record cannot be read.
    Damaged,
}

impl State {
    /// In one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Diverged => "diverged",
            Self::Running => "running",
            Self::Damaged => "damaged",
        }
    }
}

/// A run at a glance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Glance {
    /// Its folder.
    pub folder: PathBuf,
    /// What it is called; absent when nobody has named it.
    pub name: Option<String>,
    /// The words that it was marked with.
    pub tags: Vec<String>,
    /// The name of its recipe.
    pub recipe: String,
    /// The scheme's name.
    pub scheme: String,
    /// World size.
    pub workers: u64,
    /// What every random stream derives from.
    pub seed: u64,
    /// How it stands.
    pub state: State,
    /// The last step in its record.
    pub step: u64,
    /// The step after which it is whole; 0 before it is known.
    pub steps: u64,
    /// The last evaluation's fraction of right answers.
    pub test_accuracy: Option<f64>,
    /// When it began, in seconds since the Unix epoch.
    pub began: f64,
}

/// The folders of all runs in `place` and below it, links and hidden folders apart, in order of name.
///
/// # Errors
/// When `place` cannot be listed. A folder below it that cannot is passed over.
pub fn under(disk: &Disk, place: &Path) -> Result<Vec<PathBuf>> {
    let cannot = || format!("cannot list {}: name the folder that runs are in", place.display());
    let mut runs = Vec::new();
    look(disk, place, disk.list(place).with_context(cannot)?, DEEPEST, &mut runs);
    runs.sort();
    Ok(runs)
}

fn look(disk: &Disk, place: &Path, entries: Vec<PathBuf>, deeper: usize, runs: &mut Vec<PathBuf>) {
    if is_run(place) {
        runs.push(place.to_path_buf());
        return;
    }
    let hidden = |path: &Path| path.file_name().is_none_or(|n| n.as_encoded_bytes()[0] == b'.');
    let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|about| about.is_dir());
    for path in entries.into_iter().filter(|path| !hidden(path) && is_folder(path)) {
        if let (Some(deeper), Ok(entries)) = (deeper.checked_sub(1), disk.list(&path)) {
            look(disk, &path, entries, deeper, runs);
        }
    }
}

/// Reads what a run is at a glance; what cannot be read makes it [`State::Damaged`].
#[must_use]
pub fn glance(disk: &Disk, folder: &Path) -> Glance {
    let recipe = recipe(disk, folder);
    let table = recipe.as_ref().cloned().unwrap_or_default();
    let word = |path: &[&str]| at(&table, path).and_then(Value::as_str).map(String::from);
    let number = |key: &str| table.get(key).and_then(Value::as_integer).unwrap_or(0) as u64;
    let tags = at(&table, &["record", "tags"]).and_then(Value::as_array);
    let tags = tags.into_iter().flatten().filter_map(|tag| Some(tag.as_str()?.to_string()));
    let mut glance = Glance {
        folder: folder.into(),
        name: word(&["record", "name"]),
        tags: tags.collect(),
        recipe: word(&["name"]).unwrap_or_default(),
        scheme: word(&["scheme", "kind"]).unwrap_or_default(),
        workers: number("workers"),
        seed: number("seed"),
        state: State::Stopped,
        step: 0,
        steps: 0,
        test_accuracy: None,
        began: began(disk, folder),
    };
    if follow(disk, &folder.join(METRICS), &mut glance).is_err() || recipe.is_none() {
        glance.state = State::Damaged;
    }
    if is_written(disk, folder) {
        glance.state = State::Running;
    }
    glance
}

/// Reads how far a run came off its record. Lines that say nothing about that are not decoded.
fn follow(disk: &Disk, metrics: &Path, glance: &mut Glance) -> Result<()> {
    // What stands in front of a line's kind: the time.
    const HEAD: usize = 64;
    const KINDS: [&str; 5] = ["started", "step", "epoch", "finished", "failed"];
    if !metrics.exists() {
        return Ok(());
    }
    let mut lines = disk.lines(metrics)?;
    let (mut line, mut step) = (Vec::new(), None);
    while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        let head = String::from_utf8_lossy(&line[..line.len().min(HEAD)]).into_owned();
        let kind = head.split_once("\"event\":\"").and_then(|(_, rest)| rest.split('"').next());
        match kind.and_then(|kind| KINDS.iter().find(|known| **known == kind)) {
            // Of steps only the last matters.
            Some(&"step") => step = Some(line.clone()),
            Some(_) => observe(&serde_json::from_slice(&line)?, glance),
            None if kind.is_none() => bail!("a line is no event"),
            None => {}
        }
        line.clear();
    }
    if let Some(step) = step {
        let step: Event = serde_json::from_slice(&step)?;
        observe(&step, glance);
    }
    Ok(())
}

fn observe(event: &Event, glance: &mut Glance) {
    match &event.kind {
        Kind::Started(started) => {
            glance.steps = started.steps;
            glance.state = State::Stopped;
        }
        Kind::Step(step) => glance.step = glance.step.max(step.step),
        Kind::Epoch(epoch) => {
            glance.step = glance.step.max(epoch.step);
            glance.test_accuracy = epoch.test_accuracy.or(glance.test_accuracy);
        }
        Kind::Finished(finished) => {
            glance.step = glance.step.max(finished.summary.step);
            if finished.summary.step >= glance.steps {
                glance.state = State::Finished;
            }
        }
        Kind::Failed(failed) => {
            glance.state = if failed.diverged { State::Diverged } else { State::Failed };
        }
        _ => {}
    }
}

/// The folder of the run that a word means: [`NEWEST`], a folder under `out` as it is listed, the name
/// of a run, or the last part of its folder.
///
/// # Errors
/// When there is none, or there are several: then with all of them.
pub fn find(disk: &Disk, out: &Path, word: &str) -> Result<PathBuf> {
    let listed = out.join(word);
    if is_run(&listed) {
        return Ok(listed);
    }
    let runs = if out.exists() { under(disk, out)? } else { Vec::new() };
    let newest = |a: &&PathBuf, b: &&PathBuf| began(disk, a).total_cmp(&began(disk, b));
    if word == NEWEST {
        let last = runs.iter().max_by(newest).cloned();
        return last.with_context(|| format!("there is no run under {} yet", out.display()));
    }
    let is_called = |run: &&PathBuf| {
        let name = recipe(disk, run).and_then(|recipe| {
            at(&recipe, &["record", "name"]).and_then(Value::as_str).map(String::from)
        });
        run.ends_with(word) || name.as_deref() == Some(word)
    };
    let mut found: Vec<&PathBuf> = runs.iter().filter(is_called).collect();
    found.sort_by(newest);
    match found.as_slice() {
        [run] => Ok(run.to_path_buf()),
        [] => bail!(
            "there is no run {word}: it is no folder, and no run under {} has this name; `gradwire runs` \
             lists them",
            out.display()
        ),
        several => {
            let lines = several.iter().rev().map(|run| format!("\n  {}", run.display()));
            bail!(
                "{} runs are called {word}; name the folder of one, newest first:{}",
                several.len(),
                lines.collect::<String>()
            )
        }
    }
}

/// When a run began, in seconds since the Unix epoch: its record's first line, or else its recipe's
/// file, tells.
fn began(disk: &Disk, folder: &Path) -> f64 {
    #[derive(Deserialize)]
    struct Line {
        time: f64,
    }
    let first = || {
        let mut line = String::new();
        disk.lines(&folder.join(METRICS)).ok()?.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok().map(|Line { time }| time)
    };
    let made = || fs::metadata(folder.join(RECIPE)).ok()?.modified().ok();
    let made = || made()?.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64());
    first().or_else(made).unwrap_or(0.0)
}

/// The recipe of a run, unchecked; `None` when it cannot be read.
fn recipe(disk: &Disk, folder: &Path) -> Option<Table> {
    const MAX_BYTES: u64 = 1 << 24;
    let bytes = disk.read(&folder.join(RECIPE), MAX_BYTES).ok()?;
    String::from_utf8(bytes).ok()?.parse().ok()
}

fn at<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (last, tables) = path.split_last()?;
    let inner = tables.iter().try_fold(table, |table, key| table.get(*key)?.as_table())?;
    inner.get(*last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::record::{self, Epoch, Failed, Finished, Started, Step, Summary};

    /// A run's folder with this name, begun at a time, and these events.
    fn run(out: &Path, place: &str, name: &str, began: f64, events: Vec<Event>) -> PathBuf {
        let folder = out.join(place);
        fs::create_dir_all(&folder).unwrap();
        let name = if name.is_empty() { String::new() } else { format!("name = {name:?}\n") };
        let recipe = format!(
            "name = \"a\"\nseed = 3\nworkers = 4\n[scheme]\nkind = \"topk\"\n[record]\n{name}tags = [\"x\"]\n"
        );
        fs::write(folder.join(RECIPE), recipe).unwrap();
        let lines = events.into_iter().map(|event| Event { time: began, ..event });
        let lines = lines.map(|event| serde_json::to_string(&event).unwrap() + "\n");
        fs::write(folder.join(METRICS), lines.collect::<String>()).unwrap();
        folder
    }

    fn started() -> Event {
        Event::from(Started { steps: 4, ..Started::default() })
    }

    fn finished(step: u64) -> Event {
        let summary = Summary { step, ..Summary::default() };
        Event::from(Finished { summary, ..Finished::default() })
    }

    #[test]
    fn a_run_is_what_its_record_says() {
        let out = tempfile::tempdir().unwrap();
        let step = |step| Event::from(Step { step, ..Step::default() });
        let epoch = Event::from(Epoch { step: 4, test_accuracy: Some(0.5), ..Epoch::default() });
        let failed = |diverged| Event::from(Failed { error: "e".into(), diverged });
        for (events, state, at) in [
            (vec![started(), step(3), epoch, finished(4)], State::Finished, 4),
            (vec![started(), step(2), finished(2)], State::Stopped, 2),
            (vec![started(), finished(4), started(), step(5)], State::Stopped, 5),
            (vec![started(), step(1), failed(false)], State::Failed, 1),
            (vec![started(), failed(true)], State::Diverged, 0),
            (vec![], State::Stopped, 0),
        ] {
            let folder = run(out.path(), "a/b", "n", 7.0, events.clone());
            let glance = glance(&Disk::default(), &folder);
            assert_eq!((glance.state, glance.step), (state, at), "{events:?}");
            assert_eq!((glance.name.as_deref(), &glance.tags[..]), (Some("n"), &["x".into()][..]));
            assert_eq!((glance.scheme.as_str(), glance.workers, glance.seed), ("topk", 4, 3));
        }
        let folder = run(out.path(), "a/b", "n", 7.0, vec![started()]);
        fs::write(folder.join(METRICS), "{\"time\":1.0,\"event\":\"started\"\n").unwrap();
        assert_eq!(glance(&Disk::default(), &folder).state, State::Damaged);
        fs::write(folder.join(METRICS), "").unwrap();
        let _lock = record::lock(&Disk::default(), &folder).unwrap();
        assert_eq!(glance(&Disk::default(), &folder).state, State::Running);
    }

    #[test]
    fn a_word_means_one_run_or_none() {
        let out = tempfile::tempdir().unwrap();
        let (disk, out) = (Disk::default(), out.path());
        assert!(find(&disk, &out.join("none"), NEWEST).is_err());
        let one = run(out, "a/1", "one", 1.0, vec![started()]);
        let two = run(out, "a/2", "twin", 3.0, vec![started()]);
        let three = run(out, "b/c/d/3", "twin", 2.0, vec![started()]);
        // Neither hidden nor behind a link, nor without a record.
        run(out, ".hidden/4", "one", 9.0, vec![started()]);
        #[cfg(unix)]
        std::os::unix::fs::symlink(out.join(".hidden"), out.join("link")).unwrap();
        fs::create_dir(out.join("c")).unwrap();
        fs::write(out.join("c").join(RECIPE), "name = \"one\"").unwrap();
        assert_eq!(under(&disk, out).unwrap(), [one.clone(), two.clone(), three.clone()]);
        assert_eq!(find(&disk, out, NEWEST).unwrap(), two);
        for (word, run) in [("one", &one), ("2", &two), ("b/c/d/3", &three), ("d/3", &three)] {
            assert_eq!(&find(&disk, out, word).unwrap(), run, "{word}");
        }
        let error = format!("{:#}", find(&disk, out, "twin").unwrap_err());
        let [a, b] = [two, three].map(|run| error.find(&run.display().to_string()).unwrap());
        assert!(a < b, "the newest comes first: {error}");
        assert!(format!("{:#}", find(&disk, out, "no").unwrap_err()).contains("gradwire runs"));
    }
}
