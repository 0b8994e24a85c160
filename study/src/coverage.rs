//! Which sentence of a paper's abstract is tested by which claims, and how many claims got which verdict.

use crate::claim::Sentence;
use crate::experiment::Experiment;
use crate::results::{ClaimKind, Results, Ruling, Verdict};

/// How many of these got each verdict, in the order of [`Ruling::ALL`]. A group of claims that repeat
/// each other counts once: as contradicted where one of them is, else as depending on the link, else as
/// undecided, else as reproduced.
pub fn counts<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> [usize; 5] {
    const ORDER: [Ruling; 5] = [
        Ruling::Contradicted,
        Ruling::DependsOnLink,
        Ruling::Undecided,
        Ruling::Reproduced,
        Ruling::NotTestable,
    ];
    let place = |ruling: &Ruling| ORDER.iter().position(|of| of == ruling);
    let mut rulings: Vec<(Option<&String>, Ruling)> = Vec::new();
    for verdict in verdicts {
        let group = verdict.group.as_ref();
        match rulings.iter_mut().find(|(known, _)| group.is_some() && *known == group) {
            Some((_, ruling)) if place(ruling) <= place(&verdict.ruling) => {}
            Some((_, ruling)) => *ruling = verdict.ruling,
            None => rulings.push((group, verdict.ruling)),
        }
    }
    Ruling::ALL.map(|ruling| rulings.iter().filter(|(_, of)| *of == ruling).count())
}

/// How many verdicts there are over all `results`, by the kind of claim and by experiment, as Markdown
/// tables, and how many of them chance alone gets wrong at most, on average: each tested row errs with
/// [`Verdict::error`]. Claims of no kind are not counted.
pub fn counted(results: &[Results]) -> String {
    let mut text = table("claims");
    for kind in ClaimKind::ALL {
        text += &line(kind.words(), results, |verdict| verdict.kind == Some(kind));
    }
    text += &line("all", results, |verdict| verdict.kind.is_some());
    text += &format!("\n{}", table("experiment"));
    for one in results {
        let name = format!("`{}`", one.experiment);
        text += &line(&name, std::slice::from_ref(one), |verdict| verdict.kind.is_some());
    }
    text
}

fn table(first: &str) -> String {
    format!(
        "| {first} | reproduced | contradicted | dependent on the link | undecided | not testable | wrong by chance, at most |\n\
         |---|---|---|---|---|---|---|\n"
    )
}

/// A line of that table; empty where nothing is counted.
fn line(words: &str, results: &[Results], is_counted: impl Fn(&Verdict) -> bool) -> String {
    let rows = |of: &Results| -> Vec<Verdict> {
        of.verdicts.iter().filter(|verdict| is_counted(verdict)).cloned().collect()
    };
    // A name of a group is one experiment's own.
    let (mut sums, mut wrong) = ([0; 5], 0.0);
    for rows in results.iter().map(rows) {
        let counts = counts(rows.iter());
        sums = std::array::from_fn(|i| sums[i] + counts[i]);
        wrong += rows.iter().map(Verdict::error).sum::<f64>();
    }
    let cells = sums.map(|sum: usize| sum.to_string());
    match sums.iter().sum() {
        0 => String::new(),
        _ => format!("| {words} | {} | {wrong:.2} |\n", cells.join(" | ")),
    }
}

/// The sentences of an experiment's abstract and the verdicts on each, as lines of a Markdown table.
pub fn sentences(experiment: &Experiment, results: &Results) -> String {
    let line = |sentence: &Sentence| {
        let is_about = |verdict: &&Verdict| {
            let mut names = std::iter::once(&sentence.name).chain(&sentence.like);
            names.any(|name| verdict.sentence.as_ref() == Some(name))
        };
        let verdict = |of: &Verdict| {
            let links = of.by_link.as_ref().map_or_else(String::new, |on| format!(" ({on})"));
            format!("*{}*{links}: {}", results.in_words(of.ruling), of.claim.replace('|', "\\|"))
        };
        let tested = results.verdicts.iter().filter(is_about).map(verdict);
        let untested = sentence.untested.iter().map(|why| format!("*not tested*, because {why}"));
        let cells: Vec<String> = tested.chain(untested).collect();
        format!("| {} | {} | {} |\n", results.experiment, sentence.says, cells.join("<br>"))
    };
    experiment.sentences.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Claim;

    fn verdict(ruling: Ruling, kind: Option<ClaimKind>, group: Option<&str>) -> Verdict {
        let text = include_str!("report/stored/results.json");
        let results: Results = serde_json::from_str(text).unwrap();
        let sentence = Some("speed".to_string());
        let group = group.map(String::from);
        Verdict { ruling, kind, group, sentence, ..results.verdicts[0].clone() }
    }

    #[test]
    fn repeats_count_once_and_as_the_least_certain() {
        use Ruling::{Contradicted, DependsOnLink, NotTestable, Reproduced, Undecided};
        let of = |rulings: &[(Ruling, Option<&str>)]| {
            let all: Vec<_> =
                rulings.iter().map(|(of, group)| verdict(*of, None, *group)).collect();
            counts(all.iter())
        };
        let (a, b) = (Some("a"), Some("b"));
        assert_eq!(of(&[(Reproduced, None), (Reproduced, None)]), [2, 0, 0, 0, 0]);
        assert_eq!(of(&[(Reproduced, a), (Reproduced, a), (Reproduced, b)]), [2, 0, 0, 0, 0]);
        assert_eq!(of(&[(Reproduced, a), (Undecided, a), (NotTestable, a)]), [0, 0, 0, 1, 0]);
        assert_eq!(of(&[(Contradicted, a), (Undecided, a), (NotTestable, None)]), [0, 1, 0, 0, 1]);
        assert_eq!(of(&[(Undecided, a), (DependsOnLink, a), (Reproduced, a)]), [0, 0, 1, 0, 0]);
    }

    #[test]
    fn kinds_and_experiments_are_counted_apart() {
        let headline = |ruling| verdict(ruling, Some(ClaimKind::Headline), Some("g"));
        let of = |name: &str, verdicts| Results {
            experiment: name.into(),
            verdicts,
            ..Results::default()
        };
        let first = vec![headline(Ruling::Reproduced), headline(Ruling::Reproduced)];
        let second = vec![
            headline(Ruling::Contradicted),
            verdict(Ruling::Undecided, Some(ClaimKind::Baseline), None),
            Verdict {
                links_asked: 3,
                ..verdict(Ruling::DependsOnLink, Some(ClaimKind::Baseline), None)
            },
            verdict(Ruling::Reproduced, None, None),
        ];
        let text = counted(&[of("one", first), of("two", second)]);
        for line in [
            "| what the papers say of their methods | 1 | 1 | 0 | 0 | 0 | 0.15 |",
            "| about other methods | 0 | 0 | 1 | 1 | 0 | 0.20 |",
            "| all | 1 | 1 | 1 | 1 | 0 | 0.35 |",
            "| `one` | 1 | 0 | 0 | 0 | 0 | 0.10 |",
            "| `two` | 0 | 1 | 1 | 1 | 0 | 0.25 |",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("follows from it"), "{text}");
    }

    /// Every sentence of the papers' abstracts is tested or says why not, and one margin, and one rule for losses, holds in
    /// all experiments for what is measured alike.
    #[test]
    fn the_built_in_experiments_cover_their_abstracts() {
        let (mut margins, mut losses) = (std::collections::BTreeMap::new(), 0);
        for (name, _) in Experiment::built_in() {
            let (_, experiment) = Experiment::load(&name).unwrap();
            assert_eq!(experiment.sentences.is_empty(), name == "grace", "{name}");
            assert!(experiment.claims.iter().all(|claim| claim.kind.is_some()), "{name}");
            // A published loss of accuracy is asked for by half.
            let lost = |claim: &&Claim| {
                claim.at_most.is_some() && claim.claimed.is_some_and(|claimed| claimed < 0.0)
            };
            for claim in experiment.claims.iter().filter(lost) {
                let half = claim.claimed.unwrap() / 2.0;
                assert!((claim.at_most.unwrap() - half).abs() < 1e-9, "{name}: {}", claim.claim);
                losses += 1;
            }
            for (measure, margin) in &experiment.margins {
                let known = margins.entry(*measure).or_insert_with(|| margin.clone());
                assert_eq!(known, margin, "{name}: {measure:?}");
            }
            let results = Results {
                experiment: name.clone(),
                paper: experiment.paper.clone(),
                verdicts: vec![verdict(Ruling::Contradicted, None, None)],
                ..Results::default()
            };
            let text = sentences(&experiment, &results);
            assert_eq!(text.lines().count(), experiment.sentences.len());
            let row = "| *contradicted at this scale*: twice \\| as fast |";
            assert_eq!(text.contains(row), name == "sidco", "{text}");
        }
        assert_eq!((margins.len(), losses), (3, 11));
    }
}
