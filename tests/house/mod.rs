//! The house's laws about who may know whom (`ARCHITECTURE.md`), read off manifests and sources.

mod graph;

use crate::common::root;
use graph::{Graph, circles};
use std::collections::BTreeSet;
use std::fs;

/// The crates of the program: their names and root files.
const PROGRAM: [(&str, &str); 3] = [
    ("gradwire", "src/lib.rs"),
    ("gradwire_study", "study/src/lib.rs"),
    ("gradwire_cli", "cli/src/lib.rs"),
];

/// The files of a folder by their names, and their code.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                // What stands in comments binds nobody.
                let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
                let code = code.collect::<Vec<_>>().join("\n");
                let name = path.strip_prefix(root()).unwrap().to_string_lossy();
                found.push((name.replace('\\', "/"), code));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

fn dependencies(manifest: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(manifest)).unwrap();
    let table: toml::Table = toml::from_str(&text).unwrap();
    table["dependencies"].as_table().unwrap().keys().cloned().collect()
}

#[test]
fn the_crates_do_not_know_one_another() {
    for name in ["exchange", "models", "datasets"] {
        for dependency in dependencies(&format!("{name}/Cargo.toml")) {
            let ours = dependency.starts_with("gradwire") && dependency != "gradwire-registry";
            assert!(!ours, "{name} depends on {dependency}");
        }
    }
    // What they may share knows nobody, and has no code of its own to know.
    let registry = fs::read_to_string(root().join("registry/Cargo.toml")).unwrap();
    assert!(!registry.contains("\n[dependencies]"), "the registry depends on nothing");
    let candle: Vec<_> = dependencies("exchange/Cargo.toml")
        .into_iter()
        .filter(|d| d.starts_with("candle"))
        .collect();
    assert!(candle.is_empty(), "the exchange is candle-free, not {candle:?}");
}

/// Fails when a word stands in the code of a file of `folder` other than those allowed.
fn only_in(folder: &str, words: &[&str], allowed: &[&str]) {
    refuse(sources(folder), words, allowed);
}

/// Fails when a word stands in the code of a file of the program other than those allowed, tests apart:
/// they make their own files.
fn outside_tests_only_in(words: &[&str], allowed: &[&str]) {
    let mut sources = [sources("src"), sources("study/src"), sources("cli/src")].concat();
    sources.retain(|(name, _)| !name.ends_with("tests.rs"));
    for (_, code) in &mut sources {
        code.truncate(code.find("#[cfg(test)]").unwrap_or(code.len()));
    }
    refuse(sources, words, allowed);
}

fn refuse(sources: Vec<(String, String)>, words: &[&str], allowed: &[&str]) {
    for (name, code) in sources {
        if allowed.iter().any(|a| name.starts_with(a)) {
            continue;
        }
        for word in words {
            assert!(!code.contains(word), "{name} must not say {word:?}");
        }
    }
}

#[test]
fn each_concern_has_its_place() {
    only_in(
        "src",
        &["candle_core::", "candle_nn::"],
        &[
            // What a program with a model of its own names.
            "src/lib.rs",
            "src/train/beside.rs",
            "src/train/gradient.rs",
            "src/train/params.rs",
            "src/train/optim/tests.rs",
            "src/train/replica.rs",
        ],
    );
    only_in("src", &["tensorboard_rs", "tensorboard_proto"], &["src/record/"]);
    outside_tests_only_in(
        &[
            "fs::write",
            "fs::rename",
            "fs::copy",
            "fs::remove",
            "fs::create_dir",
            "fs::File",
            "File::create",
            "File::options",
            "OpenOptions",
        ],
        &["src/disk.rs"],
    );
    outside_tests_only_in(
        &["disk.create", "disk.append", "disk.replace", "disk.rename", "disk.remove"],
        &[
            "src/record/",
            "src/checkpoint/",
            "study/src/runner.rs",
            "study/src/report/",
            "src/disk.rs",
        ],
    );
    only_in("exchange/src", &["std::fs", "std::env"], &[]);
    only_in("exchange/src/compress", &["crate::collective"], &[]);
    only_in("exchange/src/schemes", &["crate::collective"], &[]);
    only_in("exchange/src/collective", &["crate::compress", "crate::schemes"], &[]);
}

/// Fails on a circle among these, and says what makes it.
fn without_circle(graph: &Graph, what: &str, of: impl Fn(&graph::Name) -> Option<String>) {
    let circles = circles(graph.between(&of));
    let in_circles = graph.arrows.iter().filter(|((from, to), _)| {
        of(from).zip(of(to)).is_some_and(|arrow| circles.contains(&arrow))
    });
    let arrows = in_circles
        .map(|((from, to), path)| format!("\n  {} → {} ({path})", from.join("::"), to.join("::")));
    assert!(circles.is_empty(), "{what}: these stand in a circle:{}", arrows.collect::<String>());
}

#[test]
fn what_leads_to_a_circle_or_away_from_one_is_left_out() {
    let set = |arrows: &str| -> BTreeSet<(String, String)> {
        arrows.split(' ').map(|arrow| (arrow[..1].into(), arrow[1..].into())).collect()
    };
    assert_eq!(circles(set("ab bc ca ea cd de fg")), set("ab bc ca cd de ea"));
    assert_eq!(circles(set("ab bc ca xa cy yz uv")), set("ab bc ca"));
}

#[test]
fn rooms_and_their_modules_stand_in_no_circle() {
    for (name, root_file) in PROGRAM {
        let graph = Graph::read(name, &root().join(root_file));
        let room = |name: &graph::Name| Some(Graph::room(name)).filter(|room| room != "lib");
        without_circle(&graph, "rooms", room);
        for one in graph.rooms() {
            let inside = |name: &graph::Name| (Graph::room(name) == one).then(|| name.join("::"));
            without_circle(&graph, &one, inside);
        }
    }
    for name in ["exchange", "models", "datasets", "registry"] {
        let root = root().join(name).join("src/lib.rs");
        let graph = Graph::read(&format!("gradwire_{name}"), &root);
        assert_eq!(graph.arrows.is_empty(), name == "registry", "{name}");
        without_circle(&graph, name, |module| Some(Graph::room(module)));
        // The kernels' room is the largest: no circle is among its modules either.
        if name == "models" {
            without_circle(&graph, name, |module| Some(module.join("::")));
        }
    }
}

#[test]
fn unsafe_code_lives_in_kernels_and_says_why() {
    only_in("src", &["unsafe {", "unsafe fn"], &[]);
    only_in("study/src", &["unsafe {", "unsafe fn"], &[]);
    only_in("cli/src", &["unsafe {", "unsafe fn"], &["cli/src/main.rs"]);
    only_in("datasets/src", &["unsafe {", "unsafe fn"], &[]);
    // The launches of the CUDA kernels and a setting of a GPU: calls with raw arguments are all that the driver offers.
    let kernels = ["models/src/kernels/", "models/src/fused/launch.rs", "models/src/gpu.rs"];
    only_in("models/src", &["unsafe {", "unsafe fn"], &kernels);
}

/// Adding a scheme, a model, a data set or an optimizer is a file and a line: nobody else in the
/// trainer matches on one. Dense alone is known, as what others are compared with.
#[test]
fn entries_of_a_registry_are_asked_and_not_matched() {
    fn words<T: std::fmt::Debug>(of: &str, entries: Vec<T>) -> Vec<String> {
        let variant = |entry: T| {
            let shown = format!("{entry:?}");
            format!("{of}::{}", shown.split(['(', ' ']).next().unwrap())
        };
        entries.into_iter().map(variant).filter(|word| word != "SchemeConfig::Dense").collect()
    }
    let all = [
        words("SchemeConfig", gradwire_exchange::SchemeConfig::all()),
        words("Config", gradwire_models::Config::all()),
        words("Config", gradwire_datasets::Config::all()),
        words("Config", gradwire::recipe::optimizer::Config::all()),
    ]
    .concat();
    assert!(all.iter().any(|word| word == "Config::Resnet20"), "{all:?}");
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    outside_tests_only_in(&all, &[]);
}
