//! `gradwire bench codecs`: the table of all schemes over one gradient.

use crate::refused::Failure;
use anyhow::Result;
use clap::Args;
use gradwire::recipe;
use gradwire::record::gradient;
use gradwire_exchange::Scheme;
use gradwire_exchange::SchemeConfig;
use gradwire_study::bench::codecs::{self, CodecSpeed};
use std::path::PathBuf;

/// Which gradient, and which schemes.
#[derive(Debug, Args)]
pub(super) struct Codecs {
    /// A safetensors file of f32 tensors, such as `train --set record.gradients=100` writes;
    /// without it, Laplace distributed values
    #[arg(long, value_name = "FILE", conflicts_with = "d")]
    gradient: Option<PathBuf>,
    /// Elements of the Laplace distributed gradient
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 29))]
    d: u32,
    /// A scheme, by name or as '{ kind = "topk", ratio = 0.001 }'; may be repeated; all of them at
    /// their defaults if absent
    #[arg(long = "scheme", value_name = "SCHEME")]
    schemes: Vec<String>,
    /// Every scheme at further settings too
    #[arg(long, conflicts_with = "schemes")]
    specimens: bool,
    /// Print each row as a line of JSON
    #[arg(long)]
    json: bool,
}

impl Codecs {
    /// Measures and prints, row by row.
    pub(super) fn run(self) -> Result<(), Failure> {
        let named = self.schemes.iter().map(|text| recipe::scheme_of(text));
        let named: Vec<SchemeConfig> = named.collect::<Result<_>>().map_err(Failure::refused)?;
        let schemes = match (named.is_empty(), self.specimens) {
            (false, _) => named,
            (true, true) => SchemeConfig::specimens(),
            (true, false) => SchemeConfig::all(),
        };
        let gradient = match &self.gradient {
            Some(file) => gradient::load(file).map_err(Failure::refused)?,
            None => codecs::laplace(self.d as usize, 1),
        };
        Ok(self.table(&schemes, &gradient)?)
    }

    fn table(&self, schemes: &[SchemeConfig], gradient: &gradient::Gradient) -> Result<()> {
        let name = |scheme| match self.specimens || !self.schemes.is_empty() {
            true => recipe::in_words(scheme),
            false => scheme.about().name.to_string(),
        };
        let width = schemes.iter().map(|s| name(s).len()).max().unwrap_or(0).max(6);
        if !self.json {
            let (d, tensors) = (gradient.flat.len(), gradient.shapes.len());
            println!("{d} elements in {tensors} parameters, one thread, medians");
            println!(
                "{:<width$} {:>7} {:>6} {:>7} {:>6} {:>9} {:>8} {:>7}",
                "scheme", "encode", "of", "decode", "of", "bits per", "error", "cosine"
            );
            println!(
                "{:<width$} {:>7} {:>6} {:>7} {:>6} {:>9} {:>8} {:>7}",
                "", "GB/s", "memcpy", "GB/s", "memcpy", "parameter", "relative", ""
            );
        }
        for scheme in schemes {
            let row = codecs::measure(name(scheme), scheme, gradient)?;
            if self.json {
                println!("{}", serde_json::to_string(&row)?);
            } else {
                show(&row, width);
            }
        }
        Ok(())
    }
}

fn show(row: &CodecSpeed, width: usize) {
    print!("{:<width$} ", row.scheme);
    let (Some(decode_gb_s), Some(decode_of_memcpy)) = (row.decode_gb_s, row.decode_of_memcpy)
    else {
        println!("is sent as it is: the scheme has no shorter message for this gradient");
        return;
    };
    println!(
        "{:>7.2} {:>6.2} {:>7.2} {:>6.2} {:>9.3} {:>8.4} {:>7.4}",
        row.encode_gb_s,
        row.encode_of_memcpy,
        decode_gb_s,
        decode_of_memcpy,
        row.bits_per_parameter,
        row.error,
        row.cosine
    );
}
