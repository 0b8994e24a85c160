//! What an optimizer is to everybody else: the traits that each one's settings implement.

use std::ops::Range;

use gradwire_exchange::Policy;
use gradwire_models::updates::Update;
pub use gradwire_registry::About;

/// The name of the state vector that holds a momentum, for rules that [coast](Coasting).
pub const MOMENTUM: &str = "momentum";

/// The name of the state vector that holds the momentum of weight decay, where that of gradients is
/// applied before compression.
pub const DECAY_MOMENTUM: &str = "decay_momentum";

/// The settings of an optimizer in a recipe, and everything that follows from them.
pub trait Definition {
    /// What the optimizer is.
    fn about(&self) -> About;

    /// The base learning rate, which the schedule multiplies.
    fn learning_rate(&self) -> f64;

    /// The factor by which it repeats its last update, which a scheme's momentum correction would
    /// do a second time; 0 for a rule that has none of that kind.
    fn momentum(&self) -> f64 {
        0.0
    }

    /// Whether a step is as long as the gradient: not AdamW's, nor one of signs. The usual rate for another global batch
    /// is in proportion to the batch then, and else to its square root.
    fn follows_magnitude(&self) -> bool {
        false
    }

    /// Checks what bounds of single numbers, which the schema has, do not say. All is fine unless the optimizer says otherwise.
    ///
    /// # Errors
    /// A sentence that names the key and what to write instead.
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks whether the rule can follow momentum correction: gradients to which every rank has
    /// applied a momentum before compression (Lin et al. 2018, section 3.1, which defines it for SGD).
    ///
    /// # Errors
    /// Why it cannot, which is the answer of a rule that does not know it.
    fn follows_correction(&self) -> Result<(), String> {
        Err("keeps running means of gradients itself, so that momentum would act twice".into())
    }

    /// What has to surround the scheme with it: a recipe that is silent about it has this, and one that says
    /// something else is refused. Nothing unless the optimizer says otherwise.
    fn policy(&self) -> Policy {
        Policy::default()
    }

    /// The update rule under these settings. `correction` is the factor of the momentum that the
    /// gradients it is given have in them already, 0 for none; above 0 only where the rule
    /// [follows](Self::follows_correction) that.
    fn rule(&self, correction: f64) -> Box<dyn Rule>;
}

/// An update rule. What it remembers are named vectors beside the flat gradient, in the same order
/// of elements, and the number of updates: both are kept for it, and saved in checkpoints.
pub trait Rule: Send {
    /// The names of its vectors. Each is as long as the flat gradient and begins as zeros.
    fn vectors(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether an update takes the whole of a parameter as one piece. If not, each element's update depends on
    /// that element alone, so that it is the same whatever the pieces; so are most rules.
    fn whole(&self) -> bool {
        false
    }

    /// Updates consecutive elements of one parameter in place.
    fn update(&self, piece: Piece<'_>, now: &Now<'_>);

    /// The same update as one that GPUs have a kernel for, if it is one: then weights, gradient and vectors meet on the GPU,
    /// in this order. The host updates by other rules, which answer so at every step and for every parameter.
    fn kernel(&self, _now: &Now<'_>) -> Option<Update> {
        None
    }

    /// How the rows of a table move whose gradient is zero, if that is by SGD's momentum alone:
    /// then they may wait until they are next read. None by default.
    fn coasting(&self) -> Option<Coasting> {
        None
    }
}

/// A rule that remembers nothing.
impl<F: Fn(Piece<'_>, &Now<'_>) + Send> Rule for F {
    fn update(&self, piece: Piece<'_>, now: &Now<'_>) {
        self(piece, now);
    }
}

/// A rule under which a row with a gradient of zero moves by its momentum and by nothing else:
/// `m = μm; w -= rate·m`. The momentum is in the vector [`MOMENTUM`], unless μ is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coasting {
    /// The factor μ.
    pub momentum: f64,
    /// Whether a row moves by μm in place of m.
    pub nesterov: bool,
}

/// When an update is, and of what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now<'a> {
    /// The learning rate of this update.
    pub rate: f64,
    /// The number of this update, from 1.
    pub step: u64,
    /// PyTorch's name of the parameter, such as `layer1.0.conv1.weight`.
    pub name: &'a str,
    /// The parameter's shape.
    pub shape: &'a [usize],
    /// Whether it is the shift of a batch norm.
    pub is_norm_bias: bool,
}

impl Now<'_> {
    /// Whether the parameter has two dimensions or more: norms' scales and biases have one.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1
    }

    /// The weight decay of this parameter, where only matrices are sure to decay.
    pub fn decay(&self, weight_decay: f64, norms_and_biases: bool) -> f64 {
        if norms_and_biases || self.is_matrix() { weight_decay } else { 0.0 }
    }
}

/// Consecutive elements of one parameter, with all that is known of them.
pub struct Piece<'a> {
    /// The weights.
    pub weights: &'a mut [f32],
    /// The mean gradient.
    pub gradient: &'a [f32],
    /// The rule's vectors.
    pub state: Slices<'a>,
}

/// The stretch of the rule's vectors that belongs to a piece.
pub struct Slices<'a> {
    vectors: &'a mut [Vec<f32>],
    range: Range<usize>,
}

impl<'a> Slices<'a> {
    /// The elements `range` of each of these vectors.
    pub fn new(vectors: &'a mut [Vec<f32>], range: Range<usize>) -> Self {
        Self { vectors, range }
    }

    /// The stretches, in the order of [`Rule::vectors`].
    ///
    /// # Panics
    /// When the rule names fewer vectors.
    pub fn take<const N: usize>(self) -> [&'a mut [f32]; N] {
        let Self { vectors, range } = self;
        let (vectors, _) = vectors.split_first_chunk_mut::<N>().expect("a rule names its vectors");
        vectors.each_mut().map(|vector| &mut vector[range.clone()])
    }
}
