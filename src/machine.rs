//! What this machine is and what this process may use of it, as far as the system tells.

use serde::{Deserialize, Serialize};
use std::fs;
use std::num::NonZero;

/// Where a process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The machine's name.
    pub host: String,
    /// The processors that the process may use, as the system lists them.
    pub processors: String,
}

impl Machine {
    /// Where this process runs.
    #[must_use]
    pub fn here() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(
            |_| std::env::var("HOSTNAME").unwrap_or_else(|_| "an unknown host".to_string()),
            |name| name.trim().to_string(),
        );
        Self { host, processors: of_this_process("Cpus_allowed_list").unwrap_or_default() }
    }
}

/// The cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The largest resident set of this process so far, in MB; absent where the system does not tell.
pub fn peak_memory() -> Option<f64> {
    let kib: f64 = of_this_process("VmHWM")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

/// Bytes of the resident set of this process now; absent where the system does not tell.
pub fn resident_memory() -> Option<u64> {
    let kib: u64 = of_this_process("VmRSS")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What this process may have at most: the machine's, or the limit of its container or shell.
    pub total: u64,
    /// What is free for it now.
    pub free: u64,
}

/// The memory of this process's surroundings; absent where the system does not tell.
pub fn memory() -> Option<Memory> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let mut total = system.total_memory() + system.total_swap();
    let mut free = system.available_memory() + system.free_swap();
    if let Some(group) = system.cgroup_limits() {
        total = total.min(group.total_memory);
        free = free.min(group.free_memory);
    }
    if let Some(limit) = address_space() {
        (total, free) = (total.min(limit), free.min(limit));
    }
    (total > 0).then_some(Memory { total, free })
}

/// The bytes that the shell's limits leave to this process (`ulimit -v`), if they do.
fn address_space() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The system's name and kernel.
pub fn system() -> String {
    let name = value_in("/etc/os-release", "PRETTY_NAME", '=')
        .unwrap_or_else(|| std::env::consts::OS.into());
    match fs::read_to_string("/proc/sys/kernel/osrelease") {
        Ok(kernel) => format!("{name}, kernel {}", kernel.trim()),
        Err(_) => name,
    }
}

/// The processor's name, with the numbers of its family and model, for names are shared by several; or the architecture
/// where the system does not tell.
pub fn processor() -> String {
    let told = |key| value_in("/proc/cpuinfo", key, ':');
    let name = told("model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    match (told("cpu family"), told("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    }
}

/// What Linux tells of this process under `key`.
fn of_this_process(key: &str) -> Option<String> {
    value_in("/proc/self/status", key, ':')
}

/// The first value of `key` in a file; none where there is no such file.
fn value_in(file: &str, key: &str, separator: char) -> Option<String> {
    value_of(&fs::read_to_string(file).ok()?, key, separator)
}

/// The first value of `key` in lines of `key<separator>value`, without quotes.
fn value_of(text: &str, key: &str, separator: char) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(separator))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_key() {
        let text = "model\t\t: 1\nmodel name\t: AMD EPYC: 9R14\nmodel name\t: other\n";
        assert_eq!(value_of(text, "model name", ':').unwrap(), "AMD EPYC: 9R14");
        let name = value_of("PRETTY_NAME=\"Debian 12\"\n", "PRETTY_NAME", '=');
        assert_eq!(name.unwrap(), "Debian 12");
        assert_eq!(value_of(text, "vendor", ':'), None);
    }

    #[test]
    fn this_machine_is_known() {
        assert!(cores() >= 1 && !processor().is_empty() && !system().is_empty());
        assert!(!Machine::here().host.is_empty());
        assert_eq!(peak_memory().is_some(), cfg!(target_os = "linux"));
        let memory = memory().unwrap();
        assert!(memory.free <= memory.total && memory.total > 1 << 20, "{memory:?}");
    }
}
