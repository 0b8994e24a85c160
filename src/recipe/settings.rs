//! The settings of a run, and the checks that no single one can make.

use super::device::Device;
use super::{average, local, optimizer, schedule};
use gradwire_datasets as datasets;
use gradwire_exchange as exchange;
use gradwire_exchange::Scheme;
use gradwire_models::kernels::{Kernels, Precision, SelectError, active};
use gradwire_models::{self as models, Input, InputKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The word for the newest run, wherever the name of one can stand.
pub const NEWEST: &str = "last";

/// Numbers (pixels, words, or logits of a text to continue) of the samples in one pass of an evaluation on the
/// processor: those of 50 pictures of 83 × 83.
const MOST_EVALUATED: usize = 1 << 20;

/// A run, completely described.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The run's name: the folder that its records are kept in; unless said, that of the file.
    pub name: String,
    /// What every random stream of the run derives from.
    #[serde(default = "one")]
    #[schemars(range(max = i64::MAX))]
    pub seed: u64,
    /// World size: the number of workers, over all processes of a job, each a thread with a replica
    /// of its own.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 1024))]
    pub workers: usize,
    /// Compute threads per worker; 0 for the worker's share of the cores, at least one.
    #[serde(default)]
    #[schemars(range(max = 1024))]
    pub threads: usize,
    /// Where replicas compute: `cpu`; `cuda:0`, all on one GPU by its number; `cuda:local`, each
    /// worker on a GPU of its own.
    #[serde(default)]
    pub device: Device,
    /// Lets GPUs round the factors of matrix products to TF32, with a mantissa of 10 bits in place of 23.
    /// Sums stay f32. A GPU needs compute capability 8.0 for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub tf32: bool,
    /// What the processor's products are computed in: `f32`; `bf16`, by its own instruction (AVX512-BF16), and refused
    /// where it has none; `bf16-emulated`, the same arithmetic on any processor, slower than f32. Sums, weights
    /// and their gradients, statistics and the exchange stay in f32; feature maps of images are kept in bf16.
    #[serde(default, skip_serializing_if = "is_f32")]
    #[schemars(extend("default" = "f32"))]
    pub precision: Precision,
    /// What is trained on.
    pub dataset: datasets::Config,
    /// Which samples of it are used, and how many.
    #[serde(default, skip_serializing_if = "is_all")]
    pub samples: datasets::Selection,
    /// What is trained.
    pub model: models::Config,
    /// How gradients are compressed.
    pub scheme: exchange::SchemeConfig,
    /// What surrounds the scheme: what is not compressed, and what is done to gradients before.
    #[serde(default)]
    pub policy: exchange::Policy,
    /// How gradients are exchanged.
    #[serde(default)]
    pub exchange: ExchangeSettings,
    /// How many steps a rank trains by itself between two exchanges.
    #[serde(default, skip_serializing_if = "every_step")]
    pub local: local::Local,
    /// What is made of the mean of what ranks have come to by themselves; without a word their weights
    /// are averaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer: Option<local::Outer>,
    /// What becomes of the run when it loses a worker.
    #[serde(default)]
    pub faults: Faults,
    /// How long, in what batches, with what loss.
    #[serde(default)]
    pub train: Train,
    /// How training images are changed at random, unless `train.augment` is false.
    #[serde(default)]
    pub augment: datasets::Augmentation,
    /// How weights are updated.
    #[serde(default)]
    pub optimizer: optimizer::Config,
    /// How the learning rate changes.
    #[serde(default)]
    pub schedule: schedule::Config,
    /// Which average of the weights over the steps is kept.
    #[serde(default)]
    pub average: average::Config,
    /// What is written down, and where.
    #[serde(default)]
    pub record: Record,
    /// What is kept to go on from, and how often.
    #[serde(default)]
    pub checkpoint: CheckpointSettings,
}

settings! {
    /// How gradients travel.
    pub struct ExchangeSettings {
        /// The shape that messages travel in: `allgather`, `server`, `sharded`, or
        /// `{ kind = "two-level", group = 4 }`.
        pub topology: exchange::Topology = exchange::Topology::default(),
        /// What a server sends back, or the owner of a shard: with `topology = "server"` `exact` unless said, with
        /// `topology = "sharded"` only `compressed`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub downlink: Option<exchange::Downlink> = None,
        /// Seconds that a rank waits for another before the run is ended.
        #[schemars(range(max = 86_400.0), extend("exclusiveMinimum" = 0.0))]
        pub timeout: f64 = 300.0,
        /// Steps between two comparisons of the replicas' hashes; 0 for never.
        pub compare_replicas_every: u64 = 50,
        /// Buckets leave while the backward pass still runs; the result is the same, bit for bit.
        pub overlap: bool = false,
        /// With overlap: buckets that follow each other travel together until they hold so many bytes
        /// of f32 gradient.
        pub overlap_bytes: usize = 1 << 20,
    }
}

impl ExchangeSettings {
    /// The topology and its settings.
    pub fn wiring(&self) -> exchange::Wiring {
        exchange::Wiring { topology: self.topology, downlink: self.downlink }
    }
}

settings! {
    /// What becomes of a run that loses a worker: one that panics, fails, stalls or sends messages that
    /// cannot be read.
    #[derive(Copy, Eq)]
    pub struct Faults {
        /// How it goes on, if it does.
        pub on_worker_loss: OnWorkerLoss = OnWorkerLoss::Stop,
        /// How often at most.
        pub restarts: u64 = 3,
    }
}

/// How a run goes on that has lost a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnWorkerLoss {
    /// It ends; its last checkpoint stays.
    Stop,
    /// All workers start again from the last checkpoint: the same run as without the loss.
    Restart,
    /// The others go on from the last checkpoint, with the lost worker's residual of that moment.
    Shrink,
}

settings! {
    /// How long, in what batches, with what loss.
    pub struct Train {
        /// Passes over the training set.
        #[schemars(range(min = 1))]
        pub epochs: u64 = 10,
        /// Updates after which the run ends early; absent for all epochs. A schedule that spans the run
        /// (`cosine`, `triangular`) is shortened with it; a warm-up, which is in epochs, is not.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1))]
        pub max_steps: Option<u64> = None,
        /// Samples per rank in one forward pass.
        #[schemars(range(min = 1))]
        pub batch: usize = 64,
        /// Forward passes per update; the gradient is compressed once per update.
        #[schemars(range(min = 1))]
        pub accumulate: usize = 1,
        /// Images are changed at random in training, as `augment` says.
        pub augment: bool = true,
        /// Label smoothing, 0 to 1 (Szegedy et al. 2016, section 7).
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub label_smoothing: f64 = 0.0,
        /// The largest allowed global norm of the mean gradient; 0 or absent for no clipping.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 0.0))]
        pub clip_norm: Option<f64> = None,
        /// What becomes of batch norm's running statistics, which differ between ranks.
        pub batch_norm: BatchNorm = BatchNorm::Averaged,
        /// Forward passes of each rank over training samples from which batch norm's running statistics are
        /// computed anew before each evaluation, so that they are those of the present weights; training
        /// goes on with its own. 0 for none, as PyTorch does.
        #[schemars(range(max = 1000))]
        pub recalibrate: usize = 4,
        /// How each test image is looked at: `one`, as it is; `mirror`, the mean of its logits and those of
        /// its mirror image; `mirror-translate`, half of that and half of the same for the image moved by
        /// one pixel, up and left, and down and right (Jordan 2024, section 3.5).
        pub test_views: TestViews = TestViews::One,
        /// Epochs between two evaluations on the test set; the last epoch is always evaluated.
        #[schemars(range(min = 1))]
        pub evaluate_every: u64 = 1,
    }
}

/// How each test image is looked at (test-time augmentation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TestViews {
    /// As it is.
    One,
    /// As it is and mirrored.
    Mirror,
    /// As it is and moved by one pixel either way, each also mirrored.
    MirrorTranslate,
}

/// What becomes of batch norm's running statistics. The batch's own statistics, which the
/// forward pass of a training step uses, are always those of the rank's local batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BatchNorm {
    /// Every rank takes rank 0's before each evaluation.
    Rank0,
    /// Every rank takes the mean over the ranks before each evaluation.
    Averaged,
    /// Every rank takes the mean over the ranks after each step.
    Synchronised,
}

settings! {
    /// What is written down, and where.
    pub struct Record {
        /// The folder that runs are written under.
        pub out: PathBuf = PathBuf::from("runs/out"),
        /// What the run is called, in place of its folder on the command line, and in reports.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub name: Option<String> = None,
        /// Words by which `gradwire runs --tag TAG` finds the run.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub tags: Vec<String> = Vec::new(),
        /// Steps between two records of a step.
        #[schemars(range(min = 1))]
        pub every: u64 = 10,
        /// Steps between two histograms of gradients and residuals; 0 for none.
        pub histograms_every: u64 = 200,
        /// The parameters that histograms are made of, such as `["conv*", "fc.weight"]`, `["*"]` for all;
        /// absent for the largest weight of each part of the model.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub histograms: Option<Vec<String>> = None,
        /// Whether every step's sizes and times are recorded, for `gradwire network replay`.
        pub network: bool = true,
        /// Steps between two gradients of rank 0 written to the run's folder, with the residuals that are
        /// added to them, for `bench codecs --gradient`; 0 for none.
        pub gradients: u64 = 0,
    }
}

settings! {
    /// What is kept to go on from, and how often. The end of a run is kept in any case.
    #[derive(Copy)]
    pub struct CheckpointSettings {
        /// Steps between two checkpoints; 0 for none by steps.
        pub every_steps: u64 = 0,
        /// Minutes between two checkpoints; 0 for none by time.
        #[schemars(range(min = 0.0, max = 1e6))]
        pub every_minutes: f64 = 10.0,
        /// How many of the newest are kept; 0 for no checkpoints at all.
        pub keep_last: usize = 2,
        /// Whether the epoch of the best test accuracy, or of a text the least loss, is kept as well: one more checkpoint
        /// each time that it is surpassed.
        pub keep_best: bool = false,
    }
}

fn is_f32(precision: &Precision) -> bool {
    *precision == Precision::F32
}

fn is_all(samples: &datasets::Selection) -> bool {
    *samples == datasets::Selection::default()
}

fn every_step(local: &local::Local) -> bool {
    *local == local::Local::default()
}

fn one() -> u64 {
    1
}

fn two() -> usize {
    2
}

impl Recipe {
    /// Whether ranks exchange weights after steps of their own, and not gradients at every step.
    pub fn is_local(&self) -> bool {
        self.local.steps > 1 || self.outer.is_some()
    }

    /// Whether some steps exchange gradients: all of them, or those up to `local.after`.
    pub fn exchanges_gradients(&self) -> bool {
        !self.is_local() || self.local.after > 0
    }

    /// The momentum that what an exchange brings meets: the outer optimizer's in rounds, else that of the optimizer, `inner`.
    pub fn momentum_behind_exchange(&self, inner: f64) -> f64 {
        if self.is_local() { self.outer.map_or(0.0, |outer| outer.momentum) } else { inner }
    }

    /// Samples per rank and update.
    pub fn local_batch(&self) -> usize {
        self.train.batch * self.train.accumulate
    }

    /// What surrounds the scheme, with a value for everything: the recipe's word, and
    /// what is usual where the recipe is silent.
    pub fn policy(&self) -> exchange::Policy {
        self.policy.clone().or(self.usual_policy())
    }

    /// What surrounds the scheme where the recipe is silent: what the optimizer needs; the scheme's habit; else nothing.
    fn usual_policy(&self) -> exchange::Policy {
        let needed = self.optimizer.definition().policy();
        needed.or(self.scheme.default_policy()).or(self.neutral_policy())
    }

    /// What surrounds a scheme that has no habit, with an optimizer that needs nothing: the compression error is measured as
    /// often as steps are recorded.
    pub fn neutral_policy(&self) -> exchange::Policy {
        exchange::Policy {
            bucketing: Some(exchange::Bucketing::default()),
            dense_below: Some(0),
            warmup_steps: Some(0),
            momentum_correction: Some(0.0),
            momentum_masking: Some(true),
            feedback: None,
            clip_norm: Some(0.0),
            measure_every: Some(self.record.every),
            force: false,
            rules: Vec::new(),
        }
    }

    /// The same recipe, silent about what surrounds the scheme wherever it says what is usual: so that
    /// another scheme brings its own default policy, and a recipe is the same whether it says so or not.
    pub(super) fn without_defaults(mut self) -> anyhow::Result<Self> {
        let usual = toml::Table::try_from(self.usual_policy())?;
        let mut own = toml::Table::try_from(&self.policy)?;
        own.retain(|key, value| usual.get(key) != Some(value));
        self.policy = own.try_into()?;
        self.exchange.downlink =
            self.exchange.downlink.filter(|said| *said != exchange::Downlink::default());
        Ok(self)
    }

    /// The scheme with its settings, such as `topk(ratio=0.01)`, and those of the policy's rules: `dense for fc.*`.
    pub fn scheme_in_words(&self) -> String {
        in_words(&self.scheme) + &self.rules_in_words()
    }

    /// What goes by the policy's rules, to be said behind the scheme; empty where there are none.
    pub(crate) fn rules_in_words(&self) -> String {
        let rules = self.policy.rules.iter();
        rules.map(|rule| format!(", {} for {}", in_words(&rule.scheme), rule.pattern)).collect()
    }

    /// How training images are changed at random, if they are.
    pub fn augmentation(&self) -> Option<datasets::Augmentation> {
        self.train.augment.then_some(self.augment)
    }

    /// Samples of each rank, of this shape, in one forward pass of an evaluation. Many take much memory: on the
    /// processor the system can need as long to clear its pages as the arithmetic takes. A GPU waits
    /// for launches if there are few. Large samples are fewer: what lies between the layers is kept till a pass ends.
    pub fn evaluation_batch(&self, shape: datasets::Shape) -> usize {
        let (most, numbers) = match self.device {
            Device::Cpu => (50, MOST_EVALUATED),
            Device::Cuda(_) | Device::Local => (250, 16 * MOST_EVALUATED),
        };
        let each = match shape {
            datasets::Shape::Image { height, width, channels } => height * width * channels,
            datasets::Shape::Text { length, .. } => length,
            datasets::Shape::Sequence { vocabulary, length } => vocabulary.saturating_mul(length),
        };
        (numbers / each.max(1)).clamp(1, most)
    }

    /// The kernels of the calling thread, in the recipe's precision.
    ///
    /// # Errors
    /// When the environment asks for kernels that there are not, or there are none in this precision.
    pub fn kernels(&self) -> Result<Kernels, SelectError> {
        active()?.in_precision(self.precision)
    }

    /// Compute threads of each worker on a machine with `cores` cores.
    pub fn threads_per_worker(&self, cores: usize) -> usize {
        if self.threads > 0 { self.threads } else { (cores / self.workers).max(1) }
    }

    /// The recipe as the TOML that is written into records: every value that is in force, also what a
    /// scheme does by habit; `tf32` and `policy.force` are left out where they are false, and
    /// `precision` where it is f32.
    ///
    /// # Errors
    /// When a number does not fit TOML, such as a seed above 2⁶³.
    pub fn to_toml(&self) -> anyhow::Result<String> {
        let mut told = Self { policy: self.policy(), ..self.clone() };
        told.exchange.downlink = self.exchange.downlink.or_else(|| self.usual_downlink());
        Ok(toml::to_string(&told)?)
    }

    /// What a server sends back where the recipe is silent; nothing where there is no server.
    pub(super) fn usual_downlink(&self) -> Option<exchange::Downlink> {
        let usual = Some(exchange::Downlink::default());
        let wiring = exchange::Wiring { downlink: usual, ..self.exchange.wiring() };
        usual.filter(|_| wiring.validate(&self.scheme, &self.policy()).is_ok())
    }
}

/// A scheme as one would call it, such as `topk(ratio=0.01)`: with the first of its settings, which
/// mostly says how much is sent, and those that are not as usual.
pub fn in_words(scheme: &exchange::SchemeConfig) -> String {
    let name = scheme.about().name;
    let usual = exchange::SchemeConfig::all().into_iter().find(|usual| usual.about().name == name);
    let usual = usual.and_then(|usual| toml::Table::try_from(usual).ok()).unwrap_or_default();
    let settings = toml::Table::try_from(scheme).unwrap_or_default();
    // Only text has the order of the definition.
    let text = toml::to_string(scheme).unwrap_or_default();
    let key = |line: &str| line.split_once(" = ").map(|(key, _)| key.to_string());
    let first = text.lines().filter_map(key).find(|key| key != "kind");
    let told = settings.into_iter().filter(|(key, value)| {
        key != "kind" && (Some(key) == first.as_ref() || usual.get(key) != Some(value))
    });
    call(name, told.collect())
}

/// `name(key=value, …)`.
fn call(name: &str, settings: toml::Table) -> String {
    let said = |value: toml::Value| match value {
        toml::Value::String(word) => word,
        // The scheme that quantises what a sparsifier sends.
        toml::Value::Table(table) => match table.clone().try_into() {
            Ok(inner) => in_words(&inner),
            Err(_) => toml::Value::Table(table).to_string(),
        },
        other => other.to_string(),
    };
    let given: Vec<String> =
        settings.into_iter().map(|(key, value)| format!("{key}={}", said(value))).collect();
    if given.is_empty() { name.to_string() } else { format!("{name}({})", given.join(", ")) }
}

/// The data set's shape in the models' words.
pub fn input(shape: datasets::Shape) -> Input {
    match shape {
        datasets::Shape::Image { height, width, channels } => {
            Input::Image { channels, height, width }
        }
        datasets::Shape::Text { vocabulary, length } => Input::Text { vocabulary, length },
        datasets::Shape::Sequence { vocabulary, length } => Input::Sequence { vocabulary, length },
    }
}

/// What the data set holds, in the models' words.
pub fn holds(dataset: &datasets::Config) -> InputKind {
    match dataset.holds() {
        datasets::Holds::Images => InputKind::Image,
        datasets::Holds::Texts => InputKind::Text,
        datasets::Holds::Sequences => InputKind::Sequence,
    }
}

/// A made-up data set that the model of this name can read.
pub fn synthetic_for(model: &str) -> Option<&'static str> {
    let reads = models::Config::from_name(model)?.input_kind();
    let all = datasets::Config::all();
    let mut synthetic = all.iter().filter(|data| data.definition().twin().is_some());
    synthetic.find(|data| holds(data) == reads).map(datasets::Config::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_called_with_what_tells_them_apart() {
        for (text, called) in [
            ("dense", "dense"),
            ("topk", "topk(ratio=0.01)"),
            (
                "{ kind = 'topk', ratio = 0.02, feedback = false }",
                "topk(feedback=false, ratio=0.02)",
            ),
            (
                "{ kind = 'topk', values = { kind = 'qsgd', levels = 1 } }",
                "topk(ratio=0.01, values=qsgd(levels=1))",
            ),
        ] {
            assert_eq!(in_words(&super::super::scheme_of(text).unwrap()), called);
        }
    }
}
