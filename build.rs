//! Tells the program which commit and compiler it was built from, for the provenance of its runs, and lays its
//! recipes out for it to include.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    lay_out_recipes()?;
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
    Ok(())
}

/// Copies recipes and experiments to `runs` under cargo's folder, and not what lies beside them: runs are
/// written to `runs/out`, which belongs in no program. For the same reason the files are watched and not
/// their folder; a new recipe is taken up with the next commit, or by its path.
fn lay_out_recipes() -> io::Result<()> {
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default().join("runs");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    println!("cargo::rerun-if-changed=runs/reproduce");
    for folder in ["", "reproduce"] {
        fs::create_dir_all(out.join(folder))?;
        for entry in fs::read_dir(Path::new("runs").join(folder))? {
            let file = entry?.path();
            if let Some(name) =
                file.file_name().filter(|_| file.extension() == Some("toml".as_ref()))
            {
                println!("cargo::rerun-if-changed={}", file.display());
                fs::copy(&file, out.join(folder).join(name))?;
            }
        }
    }
    Ok(())
}

/// What a command prints, without the line's end; nothing where it is missing or fails.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_string())
}
