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
use gradwire_study::network::advise::{self, BreakEven, Compute, SchemeCost, Workload};
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

/// How many times dense's speed is worth a word: measurements repeat to about this.
const WORTH: f64 = 1.02;

/// Everything that is known about one link.
struct Verdict<'a> {
    word: &'a str,
    link: &'a Link,
    /// Seconds per step and the scheme's place, fastest first.
    order: Vec<(f64, usize)>,
    dense: f64,
}

impl Advise {
    /// Measures and prints.
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
    println!(
        "{} on {}, {} workers, batch {}: {:.1} ms of computing a step {measured_here} ({} steps, \
         {} parameters)",
        recipe.model.name(),
        recipe.dataset.name(),
        recipe.workers,
        recipe.local_batch(),
        1e3 * compute.seconds(),
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
         of the first\nsteps suggests; only training tells (gradwire train, gradwire network replay)."
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
    let all = measured.iter().map(seconds).collect::<Result<Vec<f64>>>()?;
    let mut order: Vec<(f64, usize)> = all.iter().copied().zip(0..).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(Verdict { word, link, order, dense: all[dense] })
}

fn table(measured: &[SchemeCost], evens: &[BreakEven]) -> Table {
    let repeats = |name| measured.iter().filter(|row| row.name == name).count() > 1;
    let titles = ["bits per\nparameter", "encode\nms", "decode\nms", "error", "risk"];
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
        BreakEven::Above(bandwidth) => format!("above {}", text::bandwidth(bandwidth)),
        BreakEven::Always => "on every link".into(),
        BreakEven::Never => "on no link".into(),
    }
}

/// One link's verdict, in a sentence or two.
fn tell(verdict: &Verdict<'_>, measured: &[SchemeCost]) {
    let Verdict { word, order, dense: dense_seconds, .. } = verdict;
    let says = |(seconds, place): &(f64, usize)| {
        let row = &measured[*place];
        format!(
            "{} {:.1} ms, {:.2} times dense's speed, risk {}",
            row.name,
            1e3 * seconds,
            dense_seconds / seconds,
            row.risk.word()
        )
    };
    let ms = 1e3 * dense_seconds;
    let wins = |seconds: f64| dense_seconds / seconds >= WORTH;
    let Some(best) = order.first().filter(|(seconds, _)| wins(*seconds)) else {
        println!("{word}: dense ({ms:.1} ms); no scheme gains more than it would take to notice");
        return;
    };
    println!("{word}: {} (dense {ms:.1} ms)", says(best));
    let careful = order
        .iter()
        .find(|(seconds, place)| measured[*place].risk <= advise::Risk::Low && wins(*seconds));
    match careful {
        Some(careful) if careful.1 != best.1 => println!("  at low risk: {}", says(careful)),
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
            let own = verdict.order.iter().find(|(_, other)| *other == place);
            json!({
                "link": verdict.word, "bandwidth": verdict.link.bandwidth,
                "step_seconds": own.map(|(seconds, _)| seconds),
                "of_dense": own.map(|(seconds, _)| verdict.dense / seconds),
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
