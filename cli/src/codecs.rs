//! `gradwire bench codecs`: the table of all schemes over one gradient.

use crate::refused::Failure;
use anyhow::Result;
use clap::Args;
use gradwire::recipe;
use gradwire::record::gradient;
use gradwire::text::{Column, Table};
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
        let width = schemes.iter().map(|s| name(s).len()).max().unwrap_or(0);
        let titles = [
            "encode\nGB/s",
            "of\nmemcpy",
            "decode\nGB/s",
            "of\nmemcpy",
            "bits per\nparameter",
            "error\nrelative",
            "cosine",
        ];
        let scheme = Column::left("scheme").at_least(width);
        let figures = titles.map(|title| Column::right(title).at_least(6));
        let table = Table::new([scheme].into_iter().chain(figures));
        if !self.json {
            let (d, tensors) = (gradient.flat.len(), gradient.shapes.len());
            println!("{d} elements in {tensors} parameters, one thread, medians");
            print!("{}", table.head());
        }
        for scheme in schemes {
            let row = codecs::measure(name(scheme), scheme, gradient)?;
            if self.json {
                println!("{}", serde_json::to_string(&row)?);
            } else {
                println!("{}", table.line(cells(row)));
            }
        }
        Ok(())
    }
}

fn cells(row: CodecSpeed) -> Vec<String> {
    let (Some(decode_gb_s), Some(decode_of_memcpy)) = (row.decode_gb_s, row.decode_of_memcpy)
    else {
        let why = "is sent as it is: the scheme has no shorter message for this gradient";
        return vec![row.scheme, why.into()];
    };
    let two = [row.encode_gb_s, row.encode_of_memcpy, decode_gb_s, decode_of_memcpy];
    let figures = two.into_iter().map(|figure| format!("{figure:.2}")).chain([
        format!("{:.3}", row.bits_per_parameter),
        format!("{:.4}", row.error),
        format!("{:.4}", row.cosine),
    ]);
    [row.scheme].into_iter().chain(figures).collect()
}
