//! Experiments with compressed gradient exchange: grids of runs that put a paper's claims, or a question
//! of one's own, to the test; what a few seeds tell about them; and the reports that show it.
//!
//! What the crate offers to a program, and the command line puts into words:
//!
//! - **Run an experiment.** [`experiment::Experiment`] is one as TOML; [`sweep::Sweep`] makes one from a
//!   recipe, values and questions ([`question::Question`]). [`grid::Grid::plan`] lists its runs, and
//!   [`runner::Job::run`] makes those that are missing: what comes back are [`results::Results`].
//! - **Read results.** [`collection::collect`] puts together runs that were made one by one,
//!   [`measured::Measured::read`] reads one of them, [`runs`] finds them by name; a `results.json` is
//!   [`results::Results`] as JSON.
//! - **Decide.** [`verdict::judge_again`] rules on every [`claim::Claim`]; [`decision`] has the tests, and
//!   [`statistics`] the distributions under them.
//! - **Report.** [`report::write`] makes pages, plots and tables, [`report::terminal`] a text, and
//!   [`report::rows`] figures for programs.
//!
//! Beside them, [`network`] replays recorded runs on other links and gives advice, and [`bench`](mod@bench)
//! measures speed on this machine.
//!
//! ```no_run
//! use gradwire::disk::Disk;
//! use gradwire_exchange::network::Link;
//! use gradwire_study::{collection, report};
//!
//! # fn main() -> anyhow::Result<()> {
//! let (disk, links) = (Disk::default(), Link::parse_list("100mbit,1gbit")?);
//! let runs = ["runs/out/dense/1".into(), "runs/out/topk/1".into()];
//! let together = collection::collect(&disk, &runs, &links, Some("dense"))?;
//! report::write(&disk, "report".as_ref(), &together.results)?;
//! print!("{}", report::terminal(&together.results));
//! # Ok(())
//! # }
//! ```

pub mod bench;
pub mod claim;
pub mod collection;
pub mod coverage;
pub mod decision;
mod earlier;
pub mod estimate;
pub mod experiment;
pub mod grid;
pub mod measured;
mod names;
pub mod network;
mod pace;
pub mod plot;
pub mod question;
pub mod report;
pub mod results;
pub mod runner;
pub mod runs;
pub mod scale;
mod sheet;
pub mod statistics;
pub mod sweep;
pub mod timings;
pub mod tuning;
pub mod verdict;
