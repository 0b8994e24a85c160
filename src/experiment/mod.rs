//! Experiments: grids of runs that put a paper's claims to the test.

pub mod collection;
pub mod definition;
pub mod estimate;
pub mod grid;
pub mod measured;
pub mod results;
pub mod runner;
pub mod verdict;
