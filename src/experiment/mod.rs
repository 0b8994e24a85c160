//! Experiments: grids of runs that put a paper's claims to the test.

pub mod measured;
pub mod results;
