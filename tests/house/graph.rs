//! The module graph of a crate, computed from its sources.
//!
//! An arrow `a → b` means that the code of module `a` imports something that module `b` defines, or names it by a
//! path. A re-export (`pub use`) is followed to the module behind it, and is no arrow by itself. What
//! `#[cfg(test)]` guards is left out. No import is unused, so that imports tell what is named without a path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::punctuated::Punctuated;
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

/// What a module names of others.
#[derive(Default)]
struct Module {
    /// What it passes on: the name here, and the path as it is written.
    exports: BTreeMap<String, Name>,
    /// The paths that its code writes, imports among them.
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
                let from_root = path.first().is_some_and(|first| first == name);
                let target = match from_root {
                    true => Some(graph.follow(&Name::new(), &path[1..])),
                    false => graph.resolve(module, path),
                };
                if let Some(target) = target.filter(|target| target != module) {
                    let arrow = (module.clone(), target);
                    graph.arrows.entry(arrow).or_insert_with(|| path.join("::"));
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

    /// The module that defines what a path in `module` names; nothing when that is outside the crate, or is
    /// reached through an import, which is a path of its own.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Name> {
        let (first, rest) = path.split_first()?;
        let child = [module, std::slice::from_ref(first)].concat();
        match first.as_str() {
            "crate" => Some(self.follow(&[], rest)),
            "self" => Some(self.follow(module, rest)),
            "super" => Some(self.follow(&module[..module.len().checked_sub(1)?], rest)),
            _ => self.modules.contains_key(&child).then(|| self.follow(&child, rest)),
        }
    }

    /// The module that defines what the rest of a path names that has come to `module`.
    fn follow(&self, module: &[String], rest: &[String]) -> Name {
        let Some((first, after)) = rest.split_first() else { return module.to_vec() };
        if let Some(target) = self.resolve(module, rest) {
            return target;
        }
        let export = self.modules[module].exports.get(first);
        let target = export.and_then(|export| self.resolve(module, &[export, after].concat()));
        target.unwrap_or_else(|| module.to_vec())
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

    /// All top-level modules.
    pub(crate) fn rooms(&self) -> BTreeSet<String> {
        self.modules.keys().map(Self::room).collect()
    }
}

/// The arrows that circles are made of, and those between circles: what is left when no arrow begins or ends where
/// none goes on.
pub(crate) fn circles(mut arrows: BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    loop {
        let before = arrows.len();
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = arrows.iter().cloned().unzip();
        arrows.retain(|(begin, end)| to.contains(begin) && from.contains(end));
        if arrows.len() == before {
            return arrows;
        }
    }
}

/// Whether something is compiled for tests only.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let tokens = list.tokens.to_string().replace(' ', "");
        list.path.is_ident("cfg") && (tokens == "test" || tokens.starts_with("all(test,"))
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
            syn::UseTree::Glob(_) => drop(self.paths.insert(path.clone())),
            syn::UseTree::Name(name) => self.bring(&name.ident, &name.ident, path, passed_on),
            syn::UseTree::Rename(name) => self.bring(&name.ident, &name.rename, path, passed_on),
        }
    }

    fn bring(&mut self, word: &syn::Ident, here: &syn::Ident, path: &Name, passed_on: bool) {
        let mut path = path.clone();
        if word != "self" {
            path.push(word.to_string());
        }
        if passed_on {
            self.exports.insert(here.to_string(), path);
        } else {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Const(it) => &it.attrs,
            syn::Item::Fn(it) => &it.attrs,
            syn::Item::Impl(it) => &it.attrs,
            syn::Item::Use(it) => &it.attrs,
            // Modules are read by themselves.
            syn::Item::Mod(_) => return,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
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
        // One word alone is no module, but what is defined here or has been imported.
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.paths.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    /// What a macro is called with counts where it is expressions.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        let expressions = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        if let Ok(expressions) = call.parse_body_with(expressions) {
            expressions.iter().for_each(|expression| self.visit_expr(expression));
        }
    }
}
