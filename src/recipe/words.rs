//! What the exchange refuses, in the words of a recipe.

use gradwire_exchange::Error;

/// The same refusal, with the keys of a recipe that it is about. The exchange knows its settings
/// and not where a recipe has them.
pub(super) fn in_a_recipe(error: Error) -> anyhow::Error {
    let keys = match &error {
        Error::Config { scheme: Some(_), key, .. } => format!("`scheme.{key}`"),
        Error::Config { key, .. } => format!("`policy.{key}`"),
        Error::Unsound { .. } => "`scheme.feedback = false` or `policy.force = true`".into(),
        Error::Invalid { problem } if problem.starts_with("bucketing: ") => {
            "`policy.bucketing`".into()
        }
        Error::Topology { .. } => "`exchange.topology = \"server\"` (or another), \
             `exchange.downlink`, `policy.bucketing = { bytes = 1048576 }`"
            .into(),
        _ => return error.into(),
    };
    anyhow::anyhow!("{error} (in a recipe: {keys})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire_exchange::Policy;
    use gradwire_exchange::schemes::{SchemeConfig, qsgd, topk};

    #[test]
    fn a_refusal_names_the_key_that_the_recipe_has() {
        let refused = |scheme: SchemeConfig, policy: &Policy| {
            in_a_recipe(policy.validate(&scheme).expect_err("it is refused")).to_string()
        };
        let ratio = SchemeConfig::Topk(topk::Config { ratio: 7.0.into(), ..Default::default() });
        assert!(refused(ratio, &Policy::default()).contains("`scheme.ratio`"));
        let clip = Policy { clip_norm: Some(-1.0), ..Policy::default() };
        assert!(refused(SchemeConfig::default(), &clip).contains("`policy.clip_norm`"));
        let unsound = SchemeConfig::Qsgd(qsgd::Config { feedback: true, ..Default::default() });
        assert!(refused(unsound, &Policy::default()).contains("`policy.force = true`"));
    }
}
