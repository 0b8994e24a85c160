//! `gradwire advise`: which scheme wins on which link, on this machine.

use crate::changes::Changes;
use crate::refused::Failure;
use crate::spinner::Spinner;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use gradwire::machine;
use gradwire::recipe::{self, Recipe};
use gradwire::text::{self, Column, Table};
use gradwire::train::session;
use gradwire_exchange::Scheme;
use gradwire_exchange::SchemeConfig;
use gradwire_exchange::network::Link;
use gradwire_study::network::advise::{self, BreakEven, Compute, Risk, SchemeCost, Workload};
use serde_json::json;

/// Which recipe, on which links.
#[derive(Debug, Args)]
pub(super) struct Advise {
    /// A built-in recipe's name (see `gradwire list recipes`) or a TOML file
    #[arg(default_value = "first-look")]
    recipe: String,
    #[command(flatten)]
    changes: Changes,
    /// Links by name (`gradwire network links`) or bandwidth
    #[arg(long, value_name = "LINK,…", default_value = "100mbit,1gbit,10gbit,25gbit")]
    links: String,
    /// Another scheme, by name or as '{ kind = "topk", ratio = 0.001 }'; may be repeated; then only
    /// these, the recipe's own and dense are compared
    #[arg(long = "against", value_name = "SCHEME")]
    against: Vec<String>,
    /// Training steps that are measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=1000))]
    steps: u64,
    /// Seconds that a step computes, in place of what is measured: to stand for a faster machine
    #[arg(long, value_name = "SECONDS")]
    compute: Option<f64>,
    /// Print the figures as lines of JSON
    #[arg(long)]
    json: bool,
}

/// Everything that is known about one link.
struct Verdict<'a> {
    word: &'a str,
    link: &'a Link,
    /// Seconds per step of each scheme.
    seconds: Vec<f64>,
    /// What is recommended; then what the noise does not tell from the fastest.
    best: Vec<usize>,
    /// The same at low risk.
    careful: Vec<usize>,
    /// Dense's place.
    dense: usize,
}

impl Advise {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Self { recipe, changes, links, against, steps, compute, json } = self;
        let source = changes.source(Some(recipe)).map_err(Failure::refused)?;
        let recipe = source.load().map_err(Failure::refused)?;
        let links = Link::parse_list(&links).map_err(|error| Failure::refused(error.into()))?;
        let asked = against.iter().map(|text| recipe::scheme_of(text));
        let asked: Vec<SchemeConfig> = asked.collect::<Result<_>>().map_err(Failure::refused)?;
        if let Some(seconds) = compute.filter(|seconds| !(1e-9..=86_400.0).contains(seconds)) {
            let error = anyhow!("--compute {seconds}: write seconds above 0");
            return Err(Failure::refused(error));
        }
        Ok(advise(&recipe, &links, &schemes(&recipe, asked), steps, compute, json)?)
    }
}

/// Dense, then the recipe's own, then those asked for, or all.
fn schemes(recipe: &Recipe, asked: Vec<SchemeConfig>) -> Vec<SchemeConfig> {
    let mut all = vec![SchemeConfig::default()];
    let others = if asked.is_empty() { SchemeConfig::all() } else { asked };
    for scheme in [recipe.scheme.clone()].into_iter().chain(others) {
        if !all.contains(&scheme) {
            all.push(scheme);
        }
    }
    all
}

fn advise(
    recipe: &Recipe,
    links: &[(String, Link)],
    schemes: &[SchemeConfig],
    steps: u64,
    compute: Option<f64>,
    json: bool,
) -> Result<()> {
    let spinner = Spinner::of(schemes.len() + 1, &format!("reading {}", recipe.dataset.name()));
    let data = session::load(recipe, None)?;
    spinner.now(&format!("taking {steps} steps of {}", recipe.model.name()));
    let threads = recipe.threads_per_worker(machine::cores());
    let workload = Workload::measure(recipe, &data, threads, steps)?;
    let asked = compute;
    let compute = asked.map_or(workload.compute, |seconds| workload.compute.scaled(seconds));
    let mut measured = Vec::new();
    let mut refused = Vec::new();
    for scheme in schemes {
        spinner.part();
        spinner.now(&format!("exchanging with {}", scheme.about().name));
        match advise::exchange(recipe, scheme, &workload) {
            Ok(row) => measured.push(row),
            Err(error) => refused.push((recipe::in_words(scheme), error)),
        }
    }
    drop(spinner);
    let dense = measured.iter().position(|row| row.name == "dense").context(
        "dense, which everything is compared with, cannot be exchanged under this recipe",
    )?;
    let base = &links.first().context("no link is given")?.1;
    let evens = measured
        .iter()
        .map(|row| advise::break_even(recipe, &compute, (row, &measured[dense]), base))
        .collect::<Result<Vec<_>>>()?;
    let verdicts = links
        .iter()
        .map(|(word, link)| verdict(recipe, &compute, &measured, dense, (word, link)))
        .collect::<Result<Vec<_>>>()?;
    if json {
        lines(&compute, &measured, &evens, &verdicts)?;
        for (scheme, error) in &refused {
            println!("{}", json!({"scheme": scheme, "left_out": format!("{error:#}")}));
        }
        return Ok(());
    }
    let measured_here = if asked.is_some() { "as asked" } else { "on this machine" };
    let every = match recipe.local.steps {
        1 => String::new(),
        steps => format!(
            "; an exchange every {steps} steps{}, whose progress gradients stand for",
            if recipe.local.after > 0 { ", as after local.after" } else { "" }
        ),
    };
    println!(
        "{} on {}, {} workers, batch {}: {} of computing a step {measured_here} ({} steps, \
         {} parameters){every}",
        recipe.model.name(),
        recipe.dataset.name(),
        recipe.workers,
        recipe.local_batch(),
        text::milliseconds(compute.seconds(), 1),
        steps,
        workload.parameters()
    );
    print!("{}", table(&measured, &evens));
    for (scheme, error) in &refused {
        println!("{scheme}: left out: {error:#}");
    }
    println!();
    for verdict in &verdicts {
        tell(verdict, &measured);
    }
    println!(
        "\nTimes are of the network model, without overlap. The risk is what the compression error \
         of the first\nsteps suggests, and one of high risk is not recommended; only training tells (gradwire train)."
    );
    Ok(())
}

fn verdict<'a>(
    recipe: &Recipe,
    compute: &Compute,
    measured: &[SchemeCost],
    dense: usize,
    (word, link): (&'a str, &'a Link),
) -> Result<Verdict<'a>> {
    let seconds = |row| advise::step_seconds(recipe, compute, row, link);
    let seconds = measured.iter().map(seconds).collect::<Result<Vec<f64>>>()?;
    let of = |most| advise::recommended(measured, &seconds, dense, most);
    let (best, careful) = (of(Risk::Moderate), of(Risk::Low));
    Ok(Verdict { word, link, seconds, best, careful, dense })
}

fn table(measured: &[SchemeCost], evens: &[BreakEven]) -> Table {
    let repeats = |name| measured.iter().filter(|row| row.name == name).count() > 1;
    let bits = if measured.iter().any(|row| row.every > 1) {
        "bits per\nparam. and step"
    } else {
        "bits per\nparameter"
    };
    let titles = [bits, "encode\nms", "decode\nms", "error", "risk"];
    let figures = titles.map(|title| Column::right(title).at_least(9));
    let last = Column::left("faster than dense");
    let mut table = Table::new([Column::left("scheme")].into_iter().chain(figures).chain([last]));
    for (row, even) in measured.iter().zip(evens) {
        table.row([
            // Settings tell rows of one scheme apart.
            if repeats(row.name) { row.scheme.clone() } else { row.name.into() },
            format!("{:.3}", row.bits_per_parameter),
            format!("{:.2}", 1e3 * row.encode),
            format!("{:.2}", 1e3 * row.decode),
            format!("{:.4}", row.error),
            row.risk.word().into(),
            if row.name == "dense" { "–".into() } else { words(*even) },
        ]);
    }
    table
}

fn words(even: BreakEven) -> String {
    match even {
        BreakEven::Below(bandwidth) => format!("below {}", text::bandwidth(bandwidth)),
        BreakEven::Always => "on every link".into(),
        BreakEven::Never => "on no link".into(),
    }
}

/// One link's verdict, in a sentence or two.
fn tell(verdict: &Verdict<'_>, measured: &[SchemeCost]) {
    let Verdict { word, seconds, best, careful, dense, .. } = verdict;
    let says = |places: &[usize]| {
        let (place, ties) = places.split_first()?;
        let row = &measured[*place];
        let ties: Vec<&str> = ties.iter().map(|place| measured[*place].name).collect();
        let ties = match ties.as_slice() {
            [] => String::new(),
            ties => format!("; not told from it by these measurements: {}", ties.join(", ")),
        };
        Some(format!(
            "{} {}, {:.2} times dense's speed, risk {}{ties}",
            row.name,
            text::milliseconds(seconds[*place], 1),
            seconds[*dense] / seconds[*place],
            row.risk.word()
        ))
    };
    let usual = text::milliseconds(seconds[*dense], 1);
    let Some(told) = says(best) else {
        println!(
            "{word}: dense ({usual}); no scheme that can be recommended gains more than the noise"
        );
        return;
    };
    println!("{word} (dense {usual}): {told}");
    match says(careful) {
        Some(told) if careful.first() != best.first() => println!("  at low risk: {told}"),
        None => println!("  nothing of low risk beats dense here"),
        _ => {}
    }
}

fn lines(
    compute: &Compute,
    measured: &[SchemeCost],
    evens: &[BreakEven],
    verdicts: &[Verdict<'_>],
) -> Result<()> {
    for (place, (row, even)) in measured.iter().zip(evens).enumerate() {
        let links = verdicts.iter().map(|verdict| {
            let seconds = &verdict.seconds;
            json!({
                "link": verdict.word, "bandwidth": verdict.link.bandwidth,
                "step_seconds": seconds[place],
                "of_dense": seconds[verdict.dense] / seconds[place],
                "recommended": verdict.best.first() == Some(&place),
            })
        });
        let links: Vec<_> = links.collect();
        let mut line = serde_json::to_value(row)?;
        line["compute_seconds"] = compute.seconds().into();
        line["break_even"] = serde_json::to_value(even)?;
        line["links"] = links.into();
        println!("{line}");
    }
    Ok(())
}
