//! The gradwire program.
fn main() {}
