//! `gradwire doctor`: what this machine has, and whether this build computes right on it.

mod check;
mod facts;
mod selftest;
mod step;

use crate::refused::Failure;
use anyhow::Result;
use check::{Check, Summary};
use clap::Args;
use facts::Fact;
use gradwire::recipe::Device;
use gradwire::text::{Column, Table, milliseconds};
use gradwire_models::kernels::{Kernels, active};
use serde_json::json;
use std::io::{Write, stdout};
use std::process::ExitCode;

/// Where to compute, and how to tell.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// What to test: cpu; cuda:0, a GPU by its number; cuda:local, all GPUs of this machine
    #[arg(long, default_value = "cpu", value_parser = device)]
    device: Device,
    /// Print every line as JSON
    #[arg(long)]
    json: bool,
}

fn device(text: &str) -> Result<Device, String> {
    Device::try_from(text.to_string())
}

impl Doctor {
    /// Tells and tests; code 1 when a check did not pass.
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let targets = selftest::targets(self.device).map_err(Failure::refused)?;
        Ok(self.examine(&targets)?)
    }

    fn examine(&self, targets: &[Option<usize>]) -> Result<ExitCode> {
        let facts = facts::here()?;
        let known = Table::new([Column::left("").at_least(16), Column::left("")]);
        let told = |fact: &Fact| self.line(fact, || known.line([fact.fact, &fact.value]));
        facts.iter().try_for_each(told)?;
        if !self.json {
            println!();
        }
        let checks = check_table();
        let told = |check: &Check| self.line(check, || checks.line(row(check)));
        let summary = selftest::run(self.device, targets, told)?;
        if self.json {
            println!("{}", json!({"summary": summary, "ok": summary.ok()}));
        } else {
            println!("\n{}", verdict(&summary));
            if self.device == Device::Cpu && active()? == Kernels::Candle {
                println!(
                    "note: candle's operations were compared with themselves; the models were compared \
                     with PyTorch"
                );
            }
        }
        Ok(if summary.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Prints one line, at once: what follows may take seconds.
    fn line(&self, line: &impl serde::Serialize, shown: impl FnOnce() -> String) -> Result<()> {
        let text = if self.json { serde_json::to_string(line)? } else { shown() };
        println!("{text}");
        Ok(stdout().flush()?)
    }
}

/// The columns of checks, which are printed one by one.
fn check_table() -> Table {
    let left = |width| Column::left("").at_least(width);
    let right = |width| Column::right("").at_least(width);
    Table::new([left(9), left(44), left(7), right(16), left(6), right(10), left(0)])
}

fn row(check: &Check) -> [String; 7] {
    let Check { check: kind, name, device, worst, error, tolerance, ok, fault, ms, .. } = check;
    let word = if *ok { "ok" } else { "FAILED" };
    let (off, what) = match (worst, error, tolerance) {
        (Some(worst), Some(error), Some(tolerance)) => {
            let count = check.compared.len();
            (format!("{error:.1e} of {tolerance:.0e}"), format!("{count} compared, worst: {worst}"))
        }
        _ => (String::new(), fault.clone().unwrap_or_else(|| "nothing was compared".into())),
    };
    let (kind, word, time) = (kind.to_string(), word.into(), milliseconds(1e-3 * ms, 0));
    [kind, name.clone(), device.clone(), off, word, time, what]
}

fn verdict(summary: &Summary) -> String {
    let Summary { checks, failed, seconds } = summary;
    match failed.len() {
        0 => format!("all {checks} checks passed in {seconds:.1} s"),
        count => format!(
            "{count} of {checks} checks FAILED: {}; this build must not be trusted on this device: report it \
             with this output",
            failed.join("; ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire_models::compare::Comparison;

    #[test]
    fn a_row_says_what_failed_and_by_how_much() {
        let off = || Ok(vec![Comparison::new("gradient of bias", 3e-3, 2e-5)]);
        let check = Check::of("operation", "linear", "cuda:1", off);
        let line = |check: &Check| check_table().line(row(check));
        let text = line(&check);
        for part in ["operation  linear", "cuda:1", "3.0e-3 of 2e-5", "FAILED", "gradient of bias"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut summary = Summary::default();
        summary.add(&check);
        assert!(verdict(&summary).contains("1 of 1 checks FAILED: operation linear on cuda:1"));
        let stopped = Check::of("model", "vgg16", "cpu", || Err(anyhow::anyhow!("no memory")));
        assert!(line(&stopped).contains("FAILED") && line(&stopped).contains("no memory"));
    }
}
