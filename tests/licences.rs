//! Everything that is built into the program may be: licences from a list, sources from one place.

use serde_json::Value;
use spdx::{Expression, ParseMode};
use std::process::Command;

/// What asks no more of those who pass the program on than a notice; of MPL-2.0, changes to the
/// files that are under it.
const ALLOWED: [&str; 11] = [
    "MIT",
    "MIT-0",
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "CC0-1.0",
    "MPL-2.0",
];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn every_dependency_may_be_used_and_comes_from_the_registry() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(crate::common::root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{}", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let source = package["source"].as_str();
        assert!(source.is_none_or(|source| source == REGISTRY), "{name} comes from {source:?}");
        let licence = package["license"].as_str();
        let licence = licence.unwrap_or_else(|| panic!("{name} names no licence"));
        let expression = Expression::parse_mode(licence, ParseMode::LAX)
            .unwrap_or_else(|error| panic!("{name}: {licence}: {error}"));
        let allowed = expression
            .evaluate(|licence| licence.license.id().is_some_and(|id| ALLOWED.contains(&id.name)));
        assert!(allowed, "{name} is under {licence}: not on the list");
    }
}
