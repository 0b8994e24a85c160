//! What this machine has, and what this program can use of it.

use anyhow::Result;
use gradwire::machine::{self, Machine};
use gradwire::record::Provenance;
use gradwire_models::gpu;
use gradwire_models::kernels::simd::Isa;
use gradwire_models::kernels::{Precision, VARIABLE, active};
use serde::Serialize;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

/// Programs that start several processes of a job.
const LAUNCHERS: [&str; 3] = ["mpirun", "mpiexec", "srun"];

/// Where NVIDIA's driver for Linux tells its version.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// One thing about this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Fact {
    /// What it is about, in a word or two.
    pub(crate) fact: &'static str,
    /// What there is.
    pub(crate) value: String,
}

/// What this machine has.
///
/// # Errors
/// When the environment asks for kernels that there are not, or the GPUs' driver does not answer.
pub(crate) fn here() -> Result<Vec<Fact>> {
    let Provenance { version, commit, rustc, profile, os, cpu, cores, .. } = Provenance::here();
    let Machine { host, processors } = Machine::here();
    let commit = commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
    let sets: Vec<String> = Isa::available().map(|isa| isa.to_string()).collect();
    let asked = env::var_os(VARIABLE).map_or_else(
        || format!("{VARIABLE} is not set"),
        |value| format!("{VARIABLE}={}", value.to_string_lossy()),
    );
    let memory = machine::memory().map_or_else(
        || "the system does not tell".into(),
        |memory| format!("{} in all, {} free", gigabytes(memory.total), gigabytes(memory.free)),
    );
    let mut facts = vec![
        ("program", format!("gradwire {version}, {profile} build{commit}, {rustc}")),
        ("machine", format!("{host}, {os}")),
        ("processor", format!("{cpu}; this process may use {cores} cores ({processors})")),
        ("instruction sets", sets.join(", ")),
        ("kernels", format!("{} ({asked})", active()?)),
        (
            "bf16",
            match active()?.in_precision(Precision::Bf16) {
                Ok(kernels) => format!(
                    "{kernels} (precision = \"bf16\"; bf16-emulated is the same in plain Rust)"
                ),
                Err(error) => format!("refused: {error}"),
            },
        ),
        ("memory", memory),
        ("MPI", mpi(&launchers(env::var_os("PATH").as_deref()))),
        (
            "GPU driver",
            fs::read_to_string(DRIVER).map_or_else(|_| NO_DRIVER.into(), |text| first(&text)),
        ),
    ];
    facts.extend(gpus()?.into_iter().map(|gpu| ("GPU", gpu)));
    Ok(facts.into_iter().map(|(fact, value)| Fact { fact, value }).collect())
}

const NO_DRIVER: &str = "none found";

/// The first line, in single spaces.
fn first(text: &str) -> String {
    text.lines().next().unwrap_or(NO_DRIVER).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// The launchers in the folders of a search path.
fn launchers(path: Option<&OsStr>) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> =
        path.map(|path| env::split_paths(path).collect()).unwrap_or_default();
    let find =
        |name: &str| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
    LAUNCHERS.into_iter().filter_map(find).collect()
}

fn mpi(launchers: &[PathBuf]) -> String {
    let built = if cfg!(feature = "mpi") {
        "built in"
    } else {
        "not built in (cargo build --release --features mpi)"
    };
    let found: Vec<String> = launchers.iter().map(|file| file.display().to_string()).collect();
    match &found[..] {
        [] => format!("{built}; no launcher found ({})", LAUNCHERS.join(", ")),
        found => format!("{built}; launchers: {}", found.join(", ")),
    }
}

/// A line for each GPU, or one that says why there is none.
fn gpus() -> Result<Vec<String>> {
    if !gpu::BUILT {
        let how = "not built in: cargo build --release --features cuda, where the CUDA toolkit is";
        return Ok(vec![how.into()]);
    }
    let gpus: Vec<String> = gpu::all()?
        .into_iter()
        .map(|gpu| {
            let (generation, of) = gpu.capability;
            let memory = gigabytes(gpu.memory);
            format!(
                "cuda:{}: {}, {memory}, compute capability {generation}.{of}",
                gpu.number, gpu.name
            )
        })
        .collect();
    Ok(if gpus.is_empty() { vec!["built in; this process sees none".into()] } else { gpus })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_told_of_this_machine() {
        let facts = here().unwrap();
        for fact in ["program", "kernels", "instruction sets", "memory", "MPI", "GPU driver", "GPU"]
        {
            let found = facts.iter().find(|one| one.fact == fact);
            assert!(found.is_some_and(|one| !one.value.is_empty()), "{fact}: {facts:?}");
        }
        let kernels = &facts.iter().find(|one| one.fact == "kernels").unwrap().value;
        assert!(kernels.contains(&active().unwrap().to_string()), "{kernels}");
    }

    #[test]
    fn launchers_are_found_where_the_path_leads() {
        let folder = tempfile::tempdir().unwrap();
        let path = env::join_paths([folder.path().join("none"), folder.path().into()]).unwrap();
        assert_eq!(launchers(Some(&path)), Vec::<PathBuf>::new());
        assert!(mpi(&[]).contains("no launcher found"), "{}", mpi(&[]));
        fs::write(folder.path().join("srun"), "").unwrap();
        let found = launchers(Some(&path));
        assert_eq!(found, [folder.path().join("srun")]);
        assert!(mpi(&found).contains("srun"), "{}", mpi(&found));
        assert_eq!(launchers(None), Vec::<PathBuf>::new());
    }

    #[test]
    fn of_the_drivers_text_the_first_line_is_kept() {
        let text = "NVRM version: NVIDIA UNIX x86_64  Kernel Module  570.86\nGCC version: 12\n";
        assert_eq!(first(text), "NVRM version: NVIDIA UNIX x86_64 Kernel Module 570.86");
        assert_eq!(first(""), NO_DRIVER);
    }
}
