//! The Python package `gradwire`: the part of it that is written in Rust.
//!
//! Python sees this crate as the module `gradwire._gradwire`; the package around it
//! (`python/gradwire`) adds PyTorch's hook, the reader of runs, and the exceptions.

#![forbid(unsafe_code)]

mod arrays;
mod compressor;
mod contract;
mod errors;
mod exchange;
mod own;
mod settings;
mod states;
mod transport;

/// The names that Python imports.
#[pyo3::pymodule]
mod _gradwire {
    #[pymodule_export]
    use crate::compressor::Compressor;
    #[pymodule_export]
    use crate::contract::check_contract;
    #[pymodule_export]
    use crate::exchange::{Exchange, Traffic};
    #[pymodule_export]
    use crate::settings::describe_schemes;
}
