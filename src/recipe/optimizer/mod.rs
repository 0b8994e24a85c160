//! Optimizers: their settings, and the update rule that follows from them.
//!
//! The rules are PyTorch's to the letter (`torch.optim.SGD` with dampening 0, `torch.optim.AdamW`),
//! because the experiments that are repeated here were defined in them.
//!
//! Adding an optimizer is a file with its settings and rule, which implement [`Definition`], the
//! file's `mod` line, and one line in the list below. Recipes, `gradwire list` and checkpoints take
//! it from there.

mod adamw;
mod definition;
mod muon;
mod onebit_adam;
mod sgd;

pub use adamw::Adamw;
pub use definition::{
    About, Coasting, DECAY_MOMENTUM, Definition, MOMENTUM, Now, Piece, Rule, Slices,
};
pub use muon::Muon;
pub use onebit_adam::OnebitAdam;
pub use sgd::Sgd;

gradwire_registry::registry! {
    /// Which optimizer, with its settings.
    #[derive(schemars::JsonSchema)]
    pub enum Config: Definition {
        Sgd(Sgd),
        Adamw(Adamw),
        Muon(Muon),
        OnebitAdam(OnebitAdam),
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::Sgd(Sgd::default())
    }
}

impl Config {
    /// What the optimizer is.
    pub fn about(&self) -> About {
        self.definition().about()
    }
}
