//! The public items of the crate are those that `public-api.txt` lists: who changes the interface
//! changes that file in the same commit, and a reader of the commit sees it. A trait that a type
//! implements is one line: which methods that gives is said where the trait is.
//!
//! Rustdoc's JSON needs `RUSTC_BOOTSTRAP` with a stable compiler, and the crate is checked once more
//! for it, so the test is asked for by name:
//! `cargo test -p gradwire-exchange --test public_api -- --ignored`, with `GRADWIRE_ACCEPT=1` to
//! write the list anew.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

/// Items without what other lines say: the methods of a trait's implementations, an implementation
/// that stands under its type and under its trait, what is exported twice, and what every scheme has
/// to implement.
fn once(items: impl Iterator<Item = String>) -> String {
    let (mut within_trait, mut seen) = (false, HashSet::new());
    let items = items.map(|item| item.replace("::schemes::SchemeConfig", "::SchemeConfig"));
    let kept = items.filter(|item| {
        let kinds = ["struct", "enum", "union", "mod", "trait", "use", "macro"];
        if item.starts_with("impl") {
            within_trait = item.contains(" for ");
        } else if kinds.iter().any(|kind| item.contains(&format!("pub {kind} "))) {
            within_trait = false;
        } else if within_trait && of_a_type(item) {
            return false;
        }
        let of_scheme = item.contains(" for gradwire_exchange::schemes::")
            && ["Default", "Scheme"].iter().any(|name| item.contains(&format!("::{name} for ")));
        !of_scheme && seen.insert(item.clone())
    });
    kept.map(|item| item + "\n").collect()
}

/// Whether an item stands under a type: the name before its own begins with a capital letter.
fn of_a_type(item: &str) -> bool {
    let path = item.split(' ').find(|word| word.contains("::")).unwrap_or_default();
    let end = path.find(['(', '<']).filter(|_| !path.contains(">::")).unwrap_or(path.len());
    let owner = path[..end].rsplit("::").nth(1).unwrap_or_default();
    owner.starts_with(|first: char| first.is_uppercase()) || owner.ends_with('>')
}

#[test]
#[ignore = "checks the crate once more for its documentation; CI asks for it"]
fn the_public_items_are_those_of_the_list() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = folder.join("../target/public-api");
    let status = Command::new(env!("CARGO"))
        .current_dir(folder)
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["rustdoc", "--quiet", "--locked", "--lib", "--target-dir"])
        .arg(&built)
        .args(["--", "-Z", "unstable-options", "--output-format", "json", "--cap-lints", "warn"])
        .status()
        .unwrap();
    assert!(status.success());
    let api = public_api::Builder::from_rustdoc_json(built.join("doc/gradwire_exchange.json"))
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .unwrap();
    let found: String = once(api.items().map(ToString::to_string));
    let list = folder.join("public-api.txt");
    if std::env::var_os("GRADWIRE_ACCEPT").is_some() {
        std::fs::write(&list, &found).unwrap();
    }
    let listed = std::fs::read_to_string(&list).unwrap();
    let only = |these: &str, those: &str| -> Vec<String> {
        let those: HashSet<&str> = those.lines().collect();
        these.lines().filter(|item| !those.contains(item)).map(str::to_string).collect()
    };
    let (new, gone) = (only(&found, &listed), only(&listed, &found));
    assert!(new.is_empty() && gone.is_empty(), "new: {new:#?}\ngone: {gone:#?}");
}
