//! Reports of one set of results, compared with stored ones, and what no stored report can show.

use super::*;
use crate::results::{RunStatus, Verdict};
use std::fs;

/// Two arms over three seeds on two tasks that differ in their workers; of one arm a seed diverged, and
/// a third has not begun; a verdict of every ruling.
pub(super) fn results() -> Results {
    serde_json::from_str(include_str!("stored/results.json")).unwrap()
}

/// The first verdict of the results, with this ruling.
pub(super) fn verdict(ruling: Ruling) -> Verdict {
    Verdict { ruling, ..results().verdicts[0].clone() }
}

fn written(results: &Results) -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    write(&Disk::default(), folder.path(), results).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let (html, markdown) = (read(HTML), read(MARKDOWN));
    (folder, html, markdown)
}

/// `GRADWIRE_ACCEPT=1 cargo test` stores what is found: read the difference before you commit it.
#[test]
fn reports_are_as_they_are_stored() {
    let results = results();
    let (folder, html, _) = written(&results);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let found = [
        (MARKDOWN, read(MARKDOWN)),
        (RUNS, read(RUNS)),
        (CURVES, read(CURVES)),
        ("loss.svg", read("plots/text-loss-time-1gbit.svg")),
        ("accuracy.svg", read("plots/text-accuracy-bits.svg")),
        ("terminal.txt", terminal(&results)),
        ("reached.txt", reached_in_words(&reached(&results, 0.89))),
    ];
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/stored");
    for (name, text) in found {
        if std::env::var_os("GRADWIRE_ACCEPT").is_some() {
            fs::write(stored.join(name), &text).unwrap();
        }
        let expected = fs::read_to_string(stored.join(name)).unwrap();
        let differs =
            expected.lines().zip(text.lines()).find(|(expected, found)| expected != found);
        assert!(text == expected, "{name}: {differs:?}");
        let wide = name.ends_with(".txt") && text.lines().any(|line| line.chars().count() > 200);
        assert!(!wide && !text.contains("NaN") && !text.contains("None"), "{name}");
    }
    let ours = html.replace(&crate::plot::script(), "");
    assert!(html.len() > ours.len() + 1_000_000, "the script is in the page");
    for word in ["http://", "https://", "<link", "@import", "url(", "src=", "NaN"] {
        assert!(!ours.contains(word), "{word}");
    }
    for line in read(MARKDOWN).lines().filter(|line| line.starts_with("![")) {
        let path = line.split_once("](").unwrap().1.trim_end_matches(')');
        assert!(folder.path().join(path).exists(), "{path}");
        let name = path.trim_start_matches("plots/").trim_end_matches(".svg");
        assert!(html.contains(&format!("data-name=\"{name}\"")), "{name}");
    }
    assert_eq!(serde_json::from_str::<Results>(&read(JSON)).unwrap(), results);
}

#[test]
fn nothing_yet_is_a_report_too() {
    let mut results = results();
    for run in &mut results.runs {
        run.measured = None;
        run.outcome = RunStatus::Missing;
    }
    let (_folder, html, _) = written(&results);
    assert!(html.contains("0 of 13 finished, 13 missing"));
    let (_folder, html, _) = written(&Results::default());
    assert!(html.contains("0 of 0 finished"));
}

#[test]
fn what_has_not_changed_is_left_alone() {
    let results = results();
    let folder = tempfile::tempdir().unwrap();
    write(&Disk::default(), folder.path(), &results).unwrap();
    let replaced = |results: &Results| {
        let rename = gradwire::disk::Operation::Rename;
        let fault = gradwire::disk::Fault {
            first: u64::MAX,
            ..gradwire::disk::Fault::full(Some(rename), 1)
        };
        let disk = Disk::failing(fault);
        write(&disk, folder.path(), results).unwrap();
        disk.tried()
    };
    assert_eq!(replaced(&results), 0);
    let mut other = results.clone();
    other.title = "Another".into();
    assert_eq!(replaced(&other), 3, "the pages and the JSON");
}
