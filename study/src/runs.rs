//! The runs under a folder: which there are, what each is at a glance, and which one a word means.

use anyhow::{Context, Result, bail};
use gradwire::disk::Disk;
use gradwire::recipe::NEWEST;
use gradwire::record::{
    METRICS, PROVENANCE, Provenance, RECIPE, RunLog, RunStatus, is_run, is_written,
};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use toml::{Table, Value};

/// Folders below the one that is looked through: superseded runs by which arms chose a setting lie deepest.
const DEEPEST: usize = 7;

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
    /// The model's name.
    pub model: String,
    /// The data set's name.
    pub dataset: String,
    /// The scheme's name.
    pub scheme: String,
    /// World size.
    pub workers: u64,
    /// What every random stream derives from.
    pub seed: u64,
    /// How it stands.
    #[serde(flatten)]
    pub status: RunStatus,
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
    let cannot = || match place.exists() {
        true => format!("cannot list {}: name the folder that runs are in", place.display()),
        false => format!(
            "there is no run under {} yet; another folder is named by --runs",
            place.display()
        ),
    };
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

/// Reads what a run is at a glance; what cannot be read makes it [`RunStatus::Damaged`].
#[must_use]
pub fn glance(disk: &Disk, folder: &Path) -> Glance {
    let recipe = recipe(disk, folder);
    let log = match folder.join(METRICS).exists() {
        true => RunLog::skim(disk, folder).map(Some),
        false => Ok(None),
    };
    let status = match (&recipe, &log) {
        _ if is_written(disk, folder) => RunStatus::Running,
        (Err(error), _) | (_, Err(error)) => RunStatus::Damaged { error: format!("{error:#}") },
        (Ok(_), Ok(log)) => log.as_ref().map_or(RunStatus::Stopped, RunLog::status),
    };
    let (recipe, log) = (recipe.unwrap_or_default(), log.ok().flatten());
    let word = |path: &[&str]| at(&recipe, path).and_then(Value::as_str).map(String::from);
    let number = |key: &str| recipe.get(key).and_then(Value::as_integer).unwrap_or(0) as u64;
    let tags = at(&recipe, &["record", "tags"]).and_then(Value::as_array);
    let tags = tags.into_iter().flatten().filter_map(|tag| Some(tag.as_str()?.to_string()));
    Glance {
        folder: folder.into(),
        name: word(&["record", "name"]),
        tags: tags.collect(),
        recipe: word(&["name"]).unwrap_or_default(),
        model: word(&["model", "kind"]).unwrap_or_default(),
        dataset: word(&["dataset", "kind"]).unwrap_or_default(),
        scheme: word(&["scheme", "kind"]).unwrap_or_default(),
        workers: number("workers"),
        seed: number("seed"),
        status,
        step: log.as_ref().map_or(0, RunLog::last_step),
        steps: log.as_ref().and_then(RunLog::started).map_or(0, |started| started.steps),
        test_accuracy: log.as_ref().and_then(RunLog::test_accuracy),
        began: began(disk, folder),
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
        let name = recipe(disk, run).ok().and_then(|recipe| {
            at(&recipe, &["record", "name"]).and_then(Value::as_str).map(String::from)
        });
        // What was set aside when the run began again does not answer to its name.
        run.ends_with(word) || (name.as_deref() == Some(word) && !is_set_aside(run))
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

/// Whether this is the folder of a run that was cut off and begun again beside it.
fn is_set_aside(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let number = name.rsplit_once("-cut-off-").map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Bytes beyond which no record's first line goes.
const FIRST_LINE: u64 = 1 << 20;

/// When a run began, in seconds since the Unix epoch: its record's first line, or else its recipe's
/// file, tells.
fn began(disk: &Disk, folder: &Path) -> f64 {
    #[derive(Deserialize)]
    struct TimedLine {
        time: f64,
    }
    let first = || {
        let mut line = String::new();
        disk.lines(&folder.join(METRICS)).ok()?.take(FIRST_LINE).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok().map(|TimedLine { time }| time)
    };
    let made = || fs::metadata(folder.join(RECIPE)).ok()?.modified().ok();
    let made = || made()?.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64());
    first().or_else(made).unwrap_or(0.0)
}

/// The recipe of the run in `folder` as it was written.
///
/// # Errors
/// When it cannot be read.
pub fn recipe_text(disk: &Disk, folder: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&read(disk, folder, RECIPE)?).into_owned())
}

/// What began the run in `folder`.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub fn provenance(disk: &Disk, folder: &Path) -> Result<Provenance> {
    let bytes = read(disk, folder, PROVENANCE)?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is damaged", folder.join(PROVENANCE).display()))
}

fn read(disk: &Disk, folder: &Path, name: &str) -> Result<Vec<u8>> {
    const MAX_BYTES: u64 = 1 << 24;
    let path = folder.join(name);
    disk.read(&path, MAX_BYTES).with_context(|| {
        format!("cannot read {}: is {} the folder of a run?", path.display(), folder.display())
    })
}

/// The recipe of a run, unchecked.
fn recipe(disk: &Disk, folder: &Path) -> Result<Table> {
    let text = recipe_text(disk, folder)?;
    text.parse().with_context(|| folder.join(RECIPE).display().to_string())
}

fn at<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (last, tables) = path.split_last()?;
    let inner = tables.iter().try_fold(table, |table, key| table.get(*key)?.as_table())?;
    inner.get(*last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::record::{self, Epoch, Event, Started};

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

    #[test]
    fn a_run_is_what_its_files_say() {
        let out = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let epoch = Event::from(Epoch { step: 4, test_accuracy: Some(0.5), ..Epoch::default() });
        let folder = run(out.path(), "a/b", "n", 7.0, vec![started(), epoch]);
        let found = glance(&disk, &folder);
        assert_eq!((&found.status, found.step, found.steps), (&RunStatus::Stopped, 4, 4));
        assert_eq!((found.test_accuracy, found.began), (Some(0.5), 7.0));
        assert_eq!((found.name.as_deref(), &found.tags[..]), (Some("n"), &["x".into()][..]));
        assert_eq!((found.scheme.as_str(), found.workers, found.seed), ("topk", 4, 3));
        let line = serde_json::to_string(&found).unwrap();
        assert!(line.contains(r#""state":"stopped""#), "{line}");

        let damaged = |name: &str, text: &str| {
            let folder = run(out.path(), "a/b", "n", 7.0, vec![started()]);
            fs::write(folder.join(name), text).unwrap();
            let RunStatus::Damaged { error } = glance(&disk, &folder).status else {
                panic!("{name} was read")
            };
            assert!(error.contains(name), "{error}");
        };
        damaged(METRICS, "{\"time\":1.0,\"event\":\"started\"\n");
        damaged(RECIPE, "name = ");
        let _lock = record::lock(&disk, &folder).unwrap();
        assert_eq!(glance(&disk, &folder).status, RunStatus::Running);
        fs::remove_file(folder.join(METRICS)).unwrap();
        assert_eq!(glance(&disk, &folder).status, RunStatus::Running);
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
