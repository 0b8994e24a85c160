//! What a run is made of: model, optimizer and scheme, each by the recipe or a program's own.

use crate::recipe::{Recipe, optimizer};
use gradwire_exchange::{Policy, Scheme};
use std::collections::BTreeMap;
use std::sync::Arc;

pub use gradwire_models::Definition as ModelDefinition;
pub use optimizer::Definition as OptimizerDefinition;

/// What a program brings in place of what its recipe names.
#[derive(Clone, Default)]
pub struct OwnParts {
    /// The model.
    pub model: Option<Arc<dyn ModelDefinition + Send + Sync>>,
    /// The optimizer.
    pub optimizer: Option<Arc<dyn OptimizerDefinition + Send + Sync>>,
    /// The scheme.
    pub scheme: Option<Arc<dyn Scheme>>,
    /// Whether the data is the program's.
    pub data: bool,
}

impl OwnParts {
    /// The names of those that there are, for the record of a run.
    pub fn names(&self) -> BTreeMap<String, String> {
        let names = [
            ("data", self.data.then_some("own samples")),
            ("model", self.model.as_ref().map(|model| model.about().name)),
            ("optimizer", self.optimizer.as_ref().map(|optimizer| optimizer.about().name)),
            ("scheme", self.scheme.as_ref().map(|scheme| scheme.about().name)),
        ];
        let names = names.into_iter().filter_map(|(part, name)| Some((part.into(), name?.into())));
        names.collect()
    }

    /// These, and what `recipe` names for the others.
    pub fn with<'a>(&'a self, recipe: &'a Recipe) -> Parts<'a> {
        let mut parts = Parts::of(recipe);
        if let Some(model) = &self.model {
            parts.model = &**model;
        }
        if let Some(optimizer) = &self.optimizer {
            parts.optimizer = &**optimizer;
        }
        if let Some(scheme) = &self.scheme {
            parts.scheme = &**scheme;
            parts.scheme_in_words = scheme.about().name.to_string() + &recipe.rules_in_words();
        }
        // Where the recipe is silent, it is the own optimizer's need and the own scheme's default that count.
        let (needed, usual) = (parts.optimizer.policy(), parts.scheme.default_policy());
        let own = recipe.policy.clone();
        parts.policy = own.or(needed).or(usual).or(recipe.neutral_policy());
        parts
    }
}

/// Model, optimizer and scheme of a run, and what surrounds the scheme.
pub struct Parts<'a> {
    /// The model.
    pub model: &'a dyn ModelDefinition,
    /// The optimizer.
    pub optimizer: &'a dyn OptimizerDefinition,
    /// The scheme.
    pub scheme: &'a dyn Scheme,
    /// The scheme as people are shown it, such as `topk(ratio=0.01)`.
    pub scheme_in_words: String,
    /// What surrounds the scheme, with a value for everything.
    pub policy: Policy,
}

impl<'a> Parts<'a> {
    /// Those that a recipe names.
    pub fn of(recipe: &'a Recipe) -> Self {
        Self {
            model: recipe.model.definition(),
            optimizer: recipe.optimizer.definition(),
            scheme: &recipe.scheme,
            scheme_in_words: recipe.scheme_in_words(),
            policy: recipe.policy(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Source;
    use gradwire_exchange::SchemeConfig;

    /// What surrounds an own scheme is its own default, and not that of the scheme whose place it takes.
    #[test]
    fn an_own_scheme_brings_its_own_policy() {
        let recipe = Source::of(["scheme=dgc", "optimizer.momentum=0"]).load().unwrap();
        assert!(Parts::of(&recipe).policy.momentum() > 0.0);
        let own =
            OwnParts { scheme: Some(Arc::new(SchemeConfig::default())), ..OwnParts::default() };
        assert_eq!(own.with(&recipe).policy, recipe.neutral_policy());
    }
}
