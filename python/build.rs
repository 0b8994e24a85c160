//! Reads what the definitions of the schemes say of their settings, so that Python can show it.

use std::path::{Path, PathBuf};
use std::{env, fs};

use syn::{Attribute, Expr, ExprLit, Item, Lit, Meta};

type Settings = Vec<(String, String)>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schemes = Path::new("../exchange/src/schemes");
    println!("cargo::rerun-if-changed={}", schemes.display());
    let mut all: Vec<(String, Settings)> = Vec::new();
    for entry in fs::read_dir(schemes)? {
        let file = entry?.path();
        let Some(name) = scheme(&file) else { continue };
        let parsed = syn::parse_file(&fs::read_to_string(&file)?)?;
        if let Some(settings) = settings(&parsed) {
            all.push((name, settings));
        }
    }
    all.sort();
    let out = env::var_os("OUT_DIR").map(PathBuf::from).ok_or("cargo names no folder")?;
    fs::write(out.join("docs.rs"), rust(&all))?;
    Ok(())
}

/// The table as an expression of Rust.
fn rust(all: &[(String, Settings)]) -> String {
    let mut text = String::from("&[");
    for (scheme, settings) in all {
        let settings: Vec<_> =
            settings.iter().map(|(name, doc)| format!("({name:?}, {doc:?})")).collect();
        text.push_str(&format!("({scheme:?}, &[{}]), ", settings.join(", ")));
    }
    text.push(']');
    text
}

/// The name of a scheme's file, without its ending.
fn scheme(file: &Path) -> Option<String> {
    let name = file.file_stem()?.to_str()?;
    (file.extension()? == "rs" && name != "mod").then(|| name.to_string())
}

/// The fields of `Config`, in order, and what is written above each.
fn settings(file: &syn::File) -> Option<Settings> {
    let config = file.items.iter().find_map(|item| match item {
        Item::Struct(item) if item.ident == "Config" => Some(item),
        _ => None,
    })?;
    let fields = config.fields.iter().filter_map(|field| {
        let lines: Vec<_> = field.attrs.iter().filter_map(line).collect();
        Some((field.ident.as_ref()?.to_string(), plain(&lines.join(" "))))
    });
    Some(fields.collect())
}

/// A line of documentation.
fn line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(meta) = &attribute.meta else { return None };
    match &meta.value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if meta.path.is_ident("doc") => {
            Some(text.value().trim().to_string())
        }
        _ => None,
    }
}

/// The text without the destinations of its links, which lead into Rust's documentation.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let Some((shown, after)) = after.split_once(']') else { break };
        out.push_str(before);
        let linked = after.starts_with('(').then(|| after.split_once(')')).flatten();
        if linked.is_some() || shown.starts_with('`') {
            out.push_str(shown);
        } else {
            out.push_str(&format!("[{shown}]"));
        }
        rest = linked.map_or(after, |(_, after)| after);
    }
    out + rest
}
