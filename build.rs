//! Tells the program which commit and compiler it was built from, for the provenance of its runs.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=runs");
    if let Some(folder) = output("git", &["rev-parse", "--git-dir"]) {
        println!("cargo::rerun-if-changed={folder}/HEAD");
        println!("cargo::rerun-if-changed={folder}/logs/HEAD");
    }
    if let Some(commit) = output("git", &["describe", "--always", "--dirty", "--abbrev=12"]) {
        println!("cargo::rustc-env=GRADWIRE_COMMIT={commit}");
    }
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if let Some(version) = output(&rustc, &["--version"]) {
        println!("cargo::rustc-env=GRADWIRE_RUSTC={version}");
    }
}

/// What a command prints, without the line's end; nothing where it is missing or fails.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_string())
}
