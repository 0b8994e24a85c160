//! What produced a run's figures.

use crate::machine;
use gradwire_datasets::FileSum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// What someone must know to believe a run's figures or to repeat them.
///
/// [`Provenance::here`] fills in the program and the machine; the rest belongs to the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of gradwire.
    pub version: String,
    /// Commit it was built from, with `-dirty` when files differed from it; absent when it was not
    /// built in a git checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The compiler, as `rustc --version` has it.
    pub rustc: String,
    /// `release` or `debug`.
    pub profile: String,
    /// Host operating system and kernel.
    pub os: String,
    /// The processor's model name.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The arithmetic kernels in use: `avx2`, `portable`, ….
    pub kernels: String,
    /// Number of workers.
    pub workers: usize,
    /// Compute threads of each worker.
    pub threads: usize,
    /// The command line, the name of the program first.
    pub command: Vec<String>,
    /// The data files read.
    pub data: Vec<FileSum>,
    /// What the program brought itself in place of what the recipe names: `data`, and `model`,
    /// `optimizer` and `scheme` by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub own: BTreeMap<String, String>,
}

/// A command, with the name of its program alone: the folder is a path of one machine.
fn without_folder(command: impl Iterator<Item = OsString>) -> Vec<String> {
    let word = |(place, word): (usize, OsString)| {
        let name = Path::new(&word).file_name().filter(|_| place == 0);
        name.unwrap_or(&word).to_string_lossy().into_owned()
    };
    command.enumerate().map(word).collect()
}

impl Provenance {
    /// This program on this machine; `kernels`, `workers`, `threads` and `data` are left empty.
    #[must_use]
    pub fn here() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("GRADWIRE_COMMIT").map(Into::into),
            rustc: option_env!("GRADWIRE_RUSTC").unwrap_or("unknown").into(),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            os: machine::system(),
            cpu: machine::processor(),
            cores: machine::cores(),
            command: without_folder(std::env::args_os()),
            ..Self::default()
        }
    }

    /// Whether the program was built with changes that no commit holds: nobody can build it again.
    pub fn is_dirty(&self) -> bool {
        self.commit.as_ref().is_some_and(|commit| commit.ends_with("-dirty"))
    }

    /// As JSON for a person to read.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json =
            serde_json::to_string_pretty(self).expect("invariant: strings and numbers are JSON");
        json.push('\n');
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_named_without_its_folder() {
        let named = |words: &[&str]| without_folder(words.iter().map(OsString::from));
        assert_eq!(
            named(&["/home/me/gradwire", "train", "a/b.toml"]),
            ["gradwire", "train", "a/b.toml"]
        );
        assert_eq!(named(&[".."]), [".."]);
        assert!(named(&[]).is_empty());
    }

    #[test]
    fn here_is_filled_in() {
        let here = Provenance::here();
        assert_eq!(here.version, env!("CARGO_PKG_VERSION"));
        assert!(here.cores >= 1 && !here.cpu.is_empty() && !here.os.is_empty());
        assert_eq!(serde_json::from_str::<Provenance>(&here.to_json()).unwrap(), here);
    }
}
