//! Reads what the definitions of the schemes say of their settings, so that Python can show it.

use std::path::{Path, PathBuf};
use std::{env, fs};

use syn::parse::ParseStream;
use syn::{Attribute, Expr, ExprLit, Ident, Item, Lit, Meta, Token, Type, Visibility, braced};

type SettingDocs = Vec<(String, String)>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schemes = Path::new("../exchange/src/schemes");
    println!("cargo::rerun-if-changed={}", schemes.display());
    let mut all: Vec<(String, SettingDocs)> = Vec::new();
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
fn rust(all: &[(String, SettingDocs)]) -> String {
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
fn settings(file: &syn::File) -> Option<SettingDocs> {
    let fields = file.items.iter().find_map(|item| match item {
        Item::Macro(item) if item.mac.path.is_ident("settings") => {
            item.mac.parse_body_with(fields).ok()
        }
        Item::Struct(item) if item.ident == "Config" => Some(Vec::new()),
        _ => None,
    })?;
    let documented = fields.into_iter().map(|(name, attributes)| {
        let lines: Vec<_> = attributes.iter().filter_map(line).collect();
        (name, plain(&lines.join(" ")))
    });
    Some(documented.collect())
}

/// The names of the settings, and what stands before each: `#[…] pub name: Type = default,`.
fn fields(body: ParseStream) -> syn::Result<Vec<(String, Vec<Attribute>)>> {
    body.call(Attribute::parse_outer)?;
    body.parse::<Visibility>()?;
    body.parse::<Token![struct]>()?;
    body.parse::<Ident>()?;
    let within;
    braced!(within in body);
    let mut fields = Vec::new();
    while !within.is_empty() {
        let attributes = within.call(Attribute::parse_outer)?;
        within.parse::<Visibility>()?;
        let name: Ident = within.parse()?;
        within.parse::<Token![:]>()?;
        within.parse::<Type>()?;
        within.parse::<Token![=]>()?;
        within.parse::<Expr>()?;
        within.parse::<Token![,]>()?;
        fields.push((name.to_string(), attributes));
    }
    Ok(fields)
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
