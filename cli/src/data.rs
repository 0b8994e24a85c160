//! `gradwire data`: fetching, checking and making data sets.

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use gradwire_datasets::{Config, Counts};
use std::path::{Path, PathBuf};

/// What to do with data sets.
#[derive(Debug, Subcommand)]
pub(super) enum DataCommand {
    /// Download a data set and write it in its official layout
    Fetch {
        /// The data set
        #[cfg_attr(feature = "fetch", arg(value_parser = PossibleValuesParser::new(fetched())))]
        name: String,
        /// The folder to write it under
        #[arg(long, default_value = "data")]
        dir: PathBuf,
    },
    /// Tell what a path holds: official data sets, whole or not; or data of one's own, with the samples of each class
    /// and how many test samples are training samples
    Verify {
        /// The folder or the file
        #[arg(default_value = "data")]
        path: PathBuf,
    },
    /// Write a tiny made-up twin of a data set in its official format
    Synth(Synth),
}

/// The data sets that can be downloaded.
#[cfg(feature = "fetch")]
fn fetched() -> Vec<&'static str> {
    use gradwire_datasets::fetch::Source;
    Source::all().into_iter().map(Source::name).collect()
}

/// The data sets that have a made-up twin.
fn twinned() -> Vec<&'static str> {
    let of = |config: &Config| config.definition().twin().map(|twin| twin.original());
    Config::all().iter().filter_map(of).collect()
}

/// What to make.
#[derive(Debug, Args)]
pub(super) struct Synth {
    /// The data set whose format to write
    #[arg(value_parser = PossibleValuesParser::new(twinned()))]
    name: String,
    /// The folder to write it under
    #[arg(long, default_value = "data")]
    dir: PathBuf,
    /// Training samples
    #[arg(long)]
    train: Option<usize>,
    /// Test samples
    #[arg(long)]
    test: Option<usize>,
    /// What the samples are drawn from
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl DataCommand {
    /// Does it.
    ///
    /// # Errors
    /// What the data set's module says: file, place, what to do.
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Fetch { name, dir } => fetch(&name, &dir),
            Self::Verify { path } => verify(&path),
            Self::Synth(synth) => synth.run(),
        }
    }
}

#[cfg(feature = "fetch")]
fn fetch(name: &str, dir: &Path) -> Result<()> {
    use gradwire_datasets::fetch::{Progress, Source, fetch};
    use indicatif::{ProgressBar, ProgressStyle};
    let source = Source::from_name(name).with_context(|| format!("no data set {name}"))?;
    let style =
        ProgressStyle::with_template("{msg}  {bar:24} {bytes} of {total_bytes}, {eta} left")?;
    let bar = ProgressBar::new(0).with_style(style);
    let mut show = |progress| match progress {
        Progress::Asking => bar.set_message("asking the hub"),
        Progress::Downloading { file, bytes, total } => {
            bar.set_message(file);
            bar.set_length(total.max(bytes));
            bar.set_position(bytes);
        }
        Progress::Converting => bar.set_message("writing and checking the official files"),
        _ => {}
    };
    let fetched = fetch(source, dir, &mut show);
    bar.finish_and_clear();
    println!("{}", fetched?);
    Ok(())
}

/// Without its feature the program has no client for the hub.
#[cfg(not(feature = "fetch"))]
fn fetch(name: &str, dir: &Path) -> Result<()> {
    bail!(
        "this build of gradwire downloads no data set (cifar10, cifar100, ag-news), and so not {name}: it was built without the feature `fetch`, \
         which takes minutes; `cargo install --path cli --features fetch` has it. Or unpack the \
         official archive under {} yourself",
        dir.display()
    )
}

fn verify(path: &Path) -> Result<()> {
    let found = gradwire_datasets::look(path);
    if let Some(survey) = found.as_ref().ok().and_then(|found| found.config.survey()) {
        println!("{}", survey?);
        return Ok(());
    }
    let reports = match (gradwire_datasets::verify(path), found) {
        (Ok(reports), _) => reports,
        // What a file is not, is for who looked into it to say.
        (Err(error), Err(looked))
            if path.is_file() || matches!(error, gradwire_datasets::Error::NoDataSet { .. }) =>
        {
            return Err(looked.into());
        }
        (Err(error), _) => return Err(error.into()),
    };
    for report in &reports {
        println!("{report}");
    }
    match reports.iter().filter(|report| !report.is_well_formed()).count() {
        0 => Ok(()),
        broken => bail!("{broken} of {} data sets are broken", reports.len()),
    }
}

impl Synth {
    fn run(self) -> Result<()> {
        let Self { name, dir, train, test, seed } = self;
        let twin = Config::twin_of(&name).with_context(|| format!("no data set {name}"))?;
        let twin = twin.definition().twin().context("invariant: a twin is one")?;
        let files = twin.write(&dir, Counts { train, test, seed })?;
        for file in &files {
            println!("wrote {}", file.display());
        }
        // A text is named by its place, and has no number of samples that it should have.
        match files[0].parent().filter(|_| name == "text") {
            Some(folder) => println!("train on it with --data {}", folder.display()),
            None => println!(
                "train on it with --dataset {name} --dir {} --set dataset.partial=true",
                dir.display()
            ),
        }
        Ok(())
    }
}
