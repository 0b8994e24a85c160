//! Experiments: grids of runs that put a paper's claims to the test, what a few seeds allow to be
//! said, and the reports and plots that say it.

pub mod bench;
pub mod claim;
pub mod collection;
pub mod decision;
pub mod definition;
pub mod estimate;
pub mod grid;
mod kept;
pub mod measured;
pub mod network;
mod pace;
pub mod plot;
pub mod question;
pub mod replays;
pub mod report;
pub mod results;
pub mod runner;
pub mod runs;
pub mod scale;
pub mod statistics;
pub mod sweep;
pub mod timings;
pub mod verdict;
