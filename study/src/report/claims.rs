//! The claims of several experiments in one table, for pages.

use super::{JSON, words};
use crate::results::{Results, Ruling};
use crate::{coverage, verdict};
use anyhow::{Context, Result};
use gradwire::disk::Disk;
use std::path::{Path, PathBuf};

/// The claims of the reports in `folders`, one line each, as a Markdown table, below it how many got which
/// verdict, and which sentence of each abstract is tested by which of them. The runs are judged anew, by
/// the claims that the experiments have now.
///
/// # Errors
/// When a folder holds no `results.json`, or one of another form, or an experiment cannot be read.
pub fn claims(disk: &Disk, folders: &[PathBuf]) -> Result<String> {
    let (mut all, mut sentences) = (Vec::new(), String::new());
    for folder in folders {
        let mut results = read(disk, folder)?;
        if let Some(experiment) = verdict::judge_again(folder, &mut results)? {
            sentences += &coverage::sentences(&experiment, &results);
        }
        all.push(results);
    }
    let mut text = table(&all);
    if all.iter().flat_map(|of| &of.verdicts).any(|verdict| verdict.kind.is_some()) {
        text += &format!("\n{}", coverage::counted(&all));
    }
    if !sentences.is_empty() {
        let head = "| experiment | the abstract says, in our words | rows |\n|---|---|---|\n";
        text += &format!("\n{head}{sentences}");
    }
    Ok(text)
}

fn read(disk: &Disk, folder: &Path) -> Result<Results> {
    super::read(disk, folder)?.with_context(|| {
        let path = folder.join(JSON);
        format!("there is no {}: is that the folder of an experiment's report?", path.display())
    })
}

fn table(all: &[Results]) -> String {
    let mut text = "| experiment | claim | claimed | measured | verdict |\n|---|---|---|---|---|\n"
        .to_string();
    for (results, verdict) in all.iter().flat_map(|of| of.verdicts.iter().map(move |v| (of, v))) {
        let format = |value| words::in_unit(value, verdict.unit);
        let claimed = verdict.claimed.map_or_else(|| "in words".into(), format);
        let mut measured = words::mean_and_ends(verdict).unwrap_or_default();
        match verdict.dirty {
            0 => {}
            1 => measured += "; 1 run of a dirty build",
            runs => measured += &format!("; {runs} runs of dirty builds"),
        }
        if verdict.machines > 1 {
            measured += &format!("; {} kinds of machine", verdict.machines);
        }
        let more = match verdict.more_seeds {
            Some(1) => " (one seed more)".to_owned(),
            Some(more) => format!(" ({more} seeds more)"),
            None => String::new(),
        };
        let links = verdict.by_link.as_ref().map_or_else(String::new, |on| format!(": {on}"));
        let emphasis = if verdict.ruling == Ruling::Reproduced { "**" } else { "" };
        text += &format!(
            "| {} | {} | {claimed} | {measured} | {emphasis}{}{emphasis}{more}{links} |\n",
            results.experiment,
            verdict.claim.replace('|', "\\|"),
            results.in_words(verdict.ruling)
        );
    }
    let verdicts = all.iter().flat_map(|results| results.verdicts.iter().cloned()).collect();
    let looks = all.iter().map(|results| results.looks).max().unwrap_or(1);
    let papers = all.iter().map(|results| results.paper.clone());
    let paper = papers.filter(|paper| !paper.is_empty()).collect();
    let together = Results { paper, verdicts, looks, ..Results::default() };
    text + "\n" + &words::chance(&together) + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::tests::{results, verdict};
    use super::*;
    use crate::results::Verdict;

    #[test]
    fn what_is_undecided_says_how_many_seeds_more() {
        let by_link = Some("it holds at slow, undecided at fast".into());
        let undecided = Verdict { more_seeds: Some(4), by_link, ..verdict(Ruling::Undecided) };
        let text = table(&[Results { verdicts: vec![undecided], ..results() }]);
        let line = "| test | twice \\| as fast | 2× | 2.4× (2.1× to 2.7×, 3 seeds) | undecided (4 seeds more): it holds at slow, undecided at fast |";
        assert!(text.contains(line), "{text}");
        assert!(
            text.contains(
                "0 reproduced, 0 contradicted at this scale, 0 dependent on the link, 1 undecided"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let (disk, folder) = (Disk::default(), tempfile::tempdir().unwrap());
        let refusal = || format!("{:#}", claims(&disk, &[folder.path().into()]).unwrap_err());
        assert!(refusal().contains("results.json: is that"), "{}", refusal());
        disk.replace(&folder.path().join(JSON), b"{").unwrap();
        assert!(refusal().contains("damaged"), "{}", refusal());
    }
}
