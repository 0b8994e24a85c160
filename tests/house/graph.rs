//! The module graph of a crate, computed from its sources.
//!
//! An arrow `a → b` means that the code of module `a` names something that module `b` defines. A
//! name is followed through imports and re-exports to the module that defines it, so that a facade
//! (`pub use`) is no arrow by itself. What `#[cfg(test)]` guards is left out. Names inside macro
//! calls count, and so do the paths in attributes such as `#[serde(with = "number::map")]`. Calls of
//! methods are not seen; the types that have them are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};

/// A module's path from its crate's root, which itself is the empty path.
pub(crate) type Name = Vec<String>;

/// The modules of a crate and who names whose items.
#[derive(Default)]
pub(crate) struct Graph {
    modules: BTreeMap<Name, Module>,
    /// From, to, and one of the paths that make the arrow.
    pub(crate) arrows: BTreeMap<(Name, Name), String>,
}

/// What a module's names mean.
#[derive(Default)]
struct Module {
    /// What it defines, its modules apart.
    items: BTreeSet<String>,
    /// What its `use` declarations bring in: the name here, and the path as it is written.
    imports: BTreeMap<String, Name>,
    /// Where `use path::*` looks.
    globs: Vec<Name>,
    /// The paths that its code writes; of imports only those that are not passed on.
    paths: BTreeSet<Name>,
}

impl Graph {
    /// Reads a crate called `name` from its root file, and what its program (`main.rs`) adds.
    pub(crate) fn read(name: &str, root: &Path) -> Self {
        let mut graph = Self::default();
        let folder = root.parent().expect("a file lies in a folder");
        graph.read_module(&[], root, folder);
        let program = folder.join("main.rs");
        if program.exists() {
            graph.read_module(&["main".into()], &program, folder);
        }
        for (module, content) in &graph.modules {
            for path in &content.paths {
                let path: Name = match &path[..] {
                    [first, rest @ ..] if first == name => [&["crate".to_string()], rest].concat(),
                    path => path.to_vec(),
                };
                match graph.resolve(module, &path, 0) {
                    Some(Found::Item(target)) if target != *module => {
                        let arrow = (module.clone(), target);
                        graph.arrows.entry(arrow).or_insert_with(|| path.join("::"));
                    }
                    _ => {}
                }
            }
        }
        graph
    }

    fn read_module(&mut self, name: &[String], file: &Path, folder: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.read_items(name, &parsed.items, folder);
    }

    /// Reads the items of a module whose own modules lie in `folder`.
    fn read_items(&mut self, name: &[String], items: &[syn::Item], folder: &Path) {
        let mut module = Module::default();
        items.iter().for_each(|item| module.visit_item(item));
        self.modules.insert(name.to_vec(), module);
        for item in items {
            let syn::Item::Mod(inner) = item else { continue };
            if is_test(&inner.attrs) {
                continue;
            }
            let word = inner.ident.to_string();
            let (path, folder) = ([name, std::slice::from_ref(&word)].concat(), folder.join(&word));
            match &inner.content {
                Some((_, items)) => self.read_items(&path, items, &folder),
                None => {
                    let file = folder.with_extension("rs");
                    let file = if file.exists() { file } else { folder.join("mod.rs") };
                    self.read_module(&path, &file, &folder);
                }
            }
        }
    }

    /// What a path in `module` leads to; nothing when that is outside the crate.
    fn resolve(&self, module: &Name, path: &[String], depth: usize) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let content = self.modules.get(module)?;
        let child = [&module[..], std::slice::from_ref(first)].concat();
        let within = |module: &Name| self.within(module, rest, depth);
        if depth > 20 {
            return None;
        }
        match first.as_str() {
            "crate" => return within(&Vec::new()),
            "self" => return within(module),
            "super" => return within(&module[..module.len().checked_sub(1)?].to_vec()),
            _ if self.modules.contains_key(&child) => return within(&child),
            _ if content.items.contains(first) => return Some(Found::Item(module.clone())),
            _ => {}
        }
        if let Some(import) = content.imports.get(first) {
            let same = import.len() == 1 && import[0] == *first;
            return match self.resolve(module, import, depth + 1).filter(|_| !same)? {
                Found::Module(module) => within(&module),
                item => Some(item),
            };
        }
        content.globs.iter().find_map(|glob| match self.resolve(module, glob, depth + 1)? {
            Found::Module(glob) if glob != *module => {
                self.knows(&glob, first).then(|| self.within(&glob, path, depth + 1)).flatten()
            }
            _ => None,
        })
    }

    /// What the rest of a path leads to that has come to `module`.
    fn within(&self, module: &Name, rest: &[String], depth: usize) -> Option<Found> {
        if rest.is_empty() {
            return Some(Found::Module(module.clone()));
        }
        // What nothing here declares has been made by a macro, here.
        let known = self.resolve(module, rest, depth + 1);
        Some(known.unwrap_or_else(|| Found::Item(module.clone())))
    }

    fn knows(&self, module: &Name, word: &String) -> bool {
        let content = &self.modules[module];
        let child = [&module[..], std::slice::from_ref(word)].concat();
        content.items.contains(word)
            || content.imports.contains_key(word)
            || self.modules.contains_key(&child)
    }

    /// The arrows between what `of` makes of modules; what it drops, and arrows within, are left out.
    pub(crate) fn between(
        &self,
        of: impl Fn(&Name) -> Option<String>,
    ) -> BTreeSet<(String, String)> {
        let ends = self.arrows.keys().filter_map(|(from, to)| Some((of(from)?, of(to)?)));
        ends.filter(|(from, to)| from != to).collect()
    }

    /// The top-level module that a module belongs to; the root's own is called `lib`.
    pub(crate) fn room(name: &Name) -> String {
        name.first().cloned().unwrap_or_else(|| "lib".into())
    }

    /// The number of modules.
    pub(crate) fn len(&self) -> usize {
        self.modules.len()
    }

    /// All top-level modules.
    pub(crate) fn rooms(&self) -> BTreeSet<String> {
        self.modules.keys().map(Self::room).collect()
    }
}

enum Found {
    Module(Name),
    /// By the module that defines it.
    Item(Name),
}

/// The circles of a graph: the sets of more than one node of which each leads to every other.
pub(crate) fn circles(arrows: &BTreeSet<(String, String)>) -> Vec<BTreeSet<String>> {
    let mut next: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    arrows.iter().for_each(|(from, to)| next.entry(from).or_default().push(to));
    let reach = |start: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(node) = open.pop() {
            let nodes = next.get(node).into_iter().flatten();
            open.extend(nodes.filter(|to| seen.insert(to.to_string())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        next.keys().map(|node| (*node, reach(node))).collect();
    let circle = |node: &&String| -> BTreeSet<String> {
        let back = |other: &&String| reached.get(other).is_some_and(|seen| seen.contains(*node));
        reached[*node].iter().filter(back).cloned().collect()
    };
    let all: BTreeSet<BTreeSet<String>> = next.keys().map(circle).collect();
    all.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// Whether something is compiled for tests only.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.tokens.to_string() == "test"
    })
}

impl Module {
    fn import(&mut self, tree: &syn::UseTree, path: &mut Name, passed_on: bool) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path, passed_on);
                path.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, path, passed_on));
            }
            syn::UseTree::Glob(_) => self.globs.push(path.clone()),
            syn::UseTree::Name(name) => self.bring(&name.ident, &name.ident, path, passed_on),
            syn::UseTree::Rename(name) => self.bring(&name.ident, &name.rename, path, passed_on),
        }
    }

    fn bring(&mut self, word: &syn::Ident, here: &syn::Ident, path: &Name, passed_on: bool) {
        let mut path = path.clone();
        let mut here = here.to_string();
        if word == "self" {
            if here == "self" {
                here = path.last().cloned().unwrap_or_default();
            }
        } else {
            path.push(word.to_string());
        }
        if !passed_on {
            self.paths.insert(path.clone());
        }
        self.imports.insert(here, path);
    }

    /// The paths among the tokens of a macro call or an attribute.
    fn tokens(&mut self, mut at: Cursor<'_>) {
        let mut path = Name::new();
        // Whether `::` has just been read.
        let mut joined = false;
        while !at.eof() {
            if let Some((word, next)) = at.ident() {
                if !joined {
                    self.end(&mut path);
                }
                path.push(word.to_string());
                (joined, at) = (false, next);
                continue;
            }
            if let Some((first, next)) = at.punct()
                && first.as_char() == ':'
                && let Some((second, next)) = next.punct()
                && second.as_char() == ':'
            {
                (joined, at) = (true, next);
                continue;
            }
            self.end(&mut path);
            joined = false;
            if let Some((inside, _, _, next)) = at.any_group() {
                self.tokens(inside);
                at = next;
            } else if let Some((_, next)) = at.token_tree() {
                at = next;
            }
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Name) {
        let path = std::mem::take(path);
        if !path.is_empty() {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attributes, name) = match item {
            syn::Item::Const(it) => (&it.attrs, Some(&it.ident)),
            syn::Item::Enum(it) => (&it.attrs, Some(&it.ident)),
            syn::Item::Fn(it) => (&it.attrs, Some(&it.sig.ident)),
            syn::Item::Macro(it) => (&it.attrs, it.ident.as_ref()),
            syn::Item::Static(it) => (&it.attrs, Some(&it.ident)),
            syn::Item::Struct(it) => (&it.attrs, Some(&it.ident)),
            syn::Item::Trait(it) => (&it.attrs, Some(&it.ident)),
            syn::Item::Type(it) => (&it.attrs, Some(&it.ident)),
            syn::Item::Union(it) => (&it.attrs, Some(&it.ident)),
            syn::Item::Impl(it) => (&it.attrs, None),
            syn::Item::Use(it) => (&it.attrs, None),
            // Modules are read by themselves.
            _ => return,
        };
        if is_test(attributes) {
            return;
        }
        self.items.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let passed_on = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, &mut Name::new(), passed_on);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.paths.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.tokens(TokenBuffer::new2(call.tokens.clone()).begin());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let syn::Meta::List(list) = &attribute.meta else { return };
        self.tokens(TokenBuffer::new2(list.tokens.clone()).begin());
        if !list.path.is_ident("serde") {
            return;
        }
        // serde has paths in quotes: of functions, or of a module that has them.
        let _ = attribute.parse_nested_meta(|meta| {
            let Ok(value) = meta.value() else { return Ok(()) };
            let Ok(text) = value.parse::<syn::LitStr>() else { return Ok(()) };
            if ["with", "default", "skip_serializing_if"].iter().any(|key| meta.path.is_ident(key))
            {
                let inside = ["serialize".to_string()];
                let path = text.value();
                self.paths.insert(path.split("::").map(str::to_string).chain(inside).collect());
            }
            Ok(())
        });
    }
}
