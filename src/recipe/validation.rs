//! What a recipe is refused for, each with what to write instead.

use super::average;
use super::device::Device;
use super::local::InnerState;
use super::optimizer;
use super::settings::{NEWEST, OnWorkerLoss, Recipe, TestViews, holds};
use super::words::in_a_recipe;
use gradwire_exchange as exchange;
use gradwire_exchange::Scheme;
use gradwire_models::kernels::Precision;
use gradwire_models::{self as models, InputKind, gpu};

impl Recipe {
    /// Checks what no single field can know.
    ///
    /// # Errors
    /// A sentence that names the key and what to write instead.
    pub(super) fn validate(&self) -> anyhow::Result<()> {
        self.check_names()?;
        self.check_samples()?;
        self.check_parts()?;
        self.check_policy()?;
        self.fits()
    }

    /// Refuses names that cannot be folders, or words of the command line.
    fn check_names(&self) -> anyhow::Result<()> {
        let name_is_plain = self.name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
        refuse(self.name.is_empty() || self.name.starts_with('.') || !name_is_plain, || {
            format!(
                "name = {:?} becomes a folder: use letters, digits, '-', '_' and '.'",
                self.name
            )
        })?;
        let name = self.record.name.iter().map(|name| ("record.name", name));
        let tags = self.record.tags.iter().map(|tag| ("record.tags", tag));
        for (key, word) in name.chain(tags) {
            let plain = word.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
            let first = word.chars().next().is_some_and(char::is_alphanumeric);
            refuse(!plain || !first || word.len() > 60 || word == NEWEST, || {
                format!(
                    "{key} = {word:?}: write up to 60 letters, digits, '-', '_' and '.', the first a letter \
                     or digit; `{NEWEST}` means the newest run"
                )
            })?;
        }
        Ok(())
    }

    /// Refuses more samples than can be counted.
    fn check_samples(&self) -> anyhow::Result<()> {
        let t = &self.train;
        let local = t.batch.checked_mul(t.accumulate);
        refuse(local.and_then(|local| local.checked_mul(self.workers)).is_none(), || {
            format!(
                "train.batch = {} times train.accumulate = {} for each of {} workers is more samples \
                 than can be counted; write a smaller train.batch, such as 64, or a smaller \
                 train.accumulate",
                t.batch, t.accumulate, self.workers
            )
        })
    }

    /// Refuses what a part of the recipe refuses by itself.
    fn check_parts(&self) -> anyhow::Result<()> {
        let t = &self.train;
        refuse(self.tf32 && self.device == Device::Cpu, || {
            "tf32 = true is for GPUs, and device = \"cpu\": write tf32 = false, or device = \"cuda:0\"".into()
        })?;
        refuse(self.precision != Precision::F32 && self.device != Device::Cpu, || {
            format!(
                "precision = \"{}\" is for the processor, and device = \"{}\": write precision = \"f32\", or \
                 device = \"cpu\"",
                self.precision, self.device
            )
        })?;
        self.samples.validate()?;
        self.dataset.validate(&self.samples)?;
        self.augment.validate().map_err(anyhow::Error::msg)?;
        self.optimizer.definition().validate().map_err(anyhow::Error::msg)?;
        self.schedule.validate(t.epochs as f64).map_err(anyhow::Error::msg)?;
        self.outer
            .map_or(Ok(()), |outer| outer.validate(&self.local))
            .map_err(anyhow::Error::msg)?;
        let holds = holds(&self.dataset);
        refuse(t.test_views != TestViews::One && holds != InputKind::Image, || {
            format!(
                "train.test_views looks at mirrored images, and the data set holds {holds}; write \
                 train.test_views = \"one\""
            )
        })
    }

    /// Refuses a policy that does not go with the scheme, the exchange or the optimizer.
    fn check_policy(&self) -> anyhow::Result<()> {
        let policy = self.policy();
        policy.validate(&self.scheme).map_err(in_a_recipe)?;
        self.exchange.wiring().validate(&self.scheme, &policy).map_err(in_a_recipe)?;
        let whole = matches!(policy.bucketing, None | Some(exchange::Bucketing::Whole));
        refuse(self.exchange.overlap && whole, || {
            let scheme = self.scheme.about().name;
            format!(
                "exchange.overlap = true has nothing to hide while {scheme} encodes the whole \
                 gradient as one bucket; write policy.bucketing = {{ bytes = 1048576 }} or \
                 \"parameter\", or exchange.overlap = false"
            )
        })?;
        refuse(self.exchange.overlap && policy.clip_norm.is_some_and(|clip| clip > 0.0), || {
            "exchange.overlap = true sends buckets before the whole gradient is known, which \
             policy.clip_norm needs; write one or the other"
                .into()
        })?;
        refuse(self.exchange.overlap && self.is_local(), || {
            "exchange.overlap = true sends gradients beside the backward pass, and local steps send none; \
             write exchange.overlap = false, or local.steps = 1 and no outer optimizer"
                .into()
        })?;
        self.check_momenta(&policy, self.optimizer.definition())?;
        self.check_outer(&policy)
    }

    /// Refuses a momentum of the policy beside another one.
    fn check_momenta(
        &self,
        policy: &exchange::Policy,
        optimizer: &dyn optimizer::Definition,
    ) -> anyhow::Result<()> {
        refuse(policy.momentum() > 0.0 && self.is_local() && self.exchanges_gradients(), || {
            format!(
                "policy.momentum_correction = {} would act on gradients up to step local.after = {}, and then on how far \
                 ranks have come; write policy.momentum_correction = 0, or local.after = 0",
                policy.momentum(),
                self.local.after
            )
        })?;
        let outer = self.outer.map_or(0.0, |outer| outer.momentum);
        let momenta = [
            ("optimizer", optimizer.momentum(), self.exchanges_gradients()),
            ("outer", outer, self.is_local()),
        ];
        let acts = momenta.into_iter().find(|(_, momentum, acts)| *acts && *momentum > 0.0);
        let (table, momentum, _) = acts.unwrap_or_default();
        refuse(policy.momentum() > 0.0 && momentum > 0.0, || {
            format!(
                "policy.momentum_correction = {} takes the place of {table}.momentum = {momentum}; \
                 write {table}.momentum = 0, or policy.momentum_correction = 0",
                policy.momentum()
            )
        })?;
        refuse((policy.efsgdm() > 0.0 || policy.shares_momentum()) && momentum > 0.0, || {
            let (form, kept) = match policy.efsgdm() > 0.0 {
                true => ("efsgdm", "every rank keeps"),
                false => ("momentum", "ranks share"),
            };
            format!(
                "policy.feedback.{form} is a momentum that {kept}, and \
                 {table}.momentum = {momentum} would act on top of it; write {table}.momentum = 0, \
                 or leave policy.feedback out"
            )
        })
    }

    /// Refuses a scheme without magnitudes beside an outer optimizer that goes far.
    fn check_magnitudes(
        &self,
        policy: &exchange::Policy,
        scheme: &dyn Scheme,
    ) -> anyhow::Result<()> {
        let outer = self.outer.unwrap_or_default();
        let far = self.is_local()
            && (outer.momentum > 0.0 || outer.learning_rate > LARGEST_WITHOUT_MAGNITUDE);
        let unfit = policy.schemes(scheme).find(|one| far && has_no_magnitude(*one));
        refuse(unfit.is_some(), || {
            format!(
                "what scheme {} sends has no magnitude: with outer.learning_rate = {} and outer.momentum = {} every round \
                 moves a weight as far as any other, however far ranks have come. Write outer.momentum = 0 and a small \
                 outer.learning_rate, such as 0.001 (at most {LARGEST_WITHOUT_MAGNITUDE}), or a scheme that sends \
                 magnitudes (signsgd with magnitude = \"mean\")",
                unfit.unwrap_or(scheme).about().name,
                outer.learning_rate,
                outer.momentum
            )
        })
    }

    /// Refuses what does not go with local steps or the outer optimizer.
    fn check_outer(&self, policy: &exchange::Policy) -> anyhow::Result<()> {
        let outer = self.outer.unwrap_or_default();
        let several = outer.fragments > 1;
        refuse(several && policy.clip_norm.is_some_and(|clip| clip > 0.0), || {
            "outer.fragments sends one part of the progress at a time, and policy.clip_norm needs the norm of all \
             of it; write one or the other"
                .into()
        })?;
        refuse(several && self.exchange.downlink == Some(exchange::Downlink::Compressed), || {
            "outer.fragments sends one part of the progress at a time, and a compressed downlink is about all of \
             it; leave exchange.downlink out, or write outer.fragments = 1"
                .into()
        })?;
        refuse(outer.streams() && matches!(self.average, average::Config::Lookahead(_)), || {
            "average.kind = \"lookahead\" changes weights that all ranks have, which they never have with \
             outer.fragments or outer.delay; write average.kind = \"ema\", or neither of them"
                .into()
        })?;
        refuse(outer.delay > 0 && self.local.state == InnerState::Averaged, || {
            "local.state = \"averaged\" waits for the ranks, and outer.delay does not; write local.state = \
             \"own\", or outer.delay = 0"
                .into()
        })
    }

    /// Checks that this program and this machine have the device and the kernels: asked where a run begins or goes on,
    /// while the records of one are read anywhere.
    ///
    /// # Errors
    /// A sentence that names the key and what to write instead.
    pub fn fits_machine(&self) -> anyhow::Result<()> {
        self.check_device()?;
        self.kernels()?;
        Ok(())
    }

    fn check_device(&self) -> anyhow::Result<()> {
        self.device.validate().map_err(anyhow::Error::msg)?;
        if self.device != Device::Cpu {
            self.device.gpu(0, gpu::count()?).map_err(anyhow::Error::msg)?;
        }
        Ok(())
    }

    /// The recipe with a device and kernels that this machine has, in place of its own where it has not those: a saved
    /// model is read anywhere.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        if self.check_device().is_err() {
            (self.device, self.tf32) = (Device::Cpu, false);
        }
        let emulated = Self { precision: Precision::Bf16Emulated, ..self.clone() };
        if self.kernels().is_err() && emulated.kernels().is_ok() {
            return emulated;
        }
        self
    }

    /// Checks what no run may begin with, though earlier versions let it: their records are still read,
    /// and their runs go on.
    ///
    /// # Errors
    /// A sentence that names the key and what to write instead.
    pub fn may_run(&self) -> anyhow::Result<()> {
        self.may_run_with(&self.policy(), self.optimizer.definition(), &self.scheme)
    }

    /// As [`may_run`](Self::may_run), with an optimizer and a scheme that may be a program's own.
    ///
    /// # Errors
    /// As [`may_run`](Self::may_run).
    pub fn may_run_with(
        &self,
        policy: &exchange::Policy,
        optimizer: &dyn optimizer::Definition,
        scheme: &dyn Scheme,
    ) -> anyhow::Result<()> {
        self.check_magnitudes(policy, scheme)?;
        self.check_momenta(policy, optimizer)?;
        let (needed, name) = (optimizer.policy(), optimizer.about().name);
        refuse(needed.clone().or(policy.clone()) != *policy, || {
            let keys = toml::Table::try_from(&needed).unwrap_or_default().into_iter();
            let keys: Vec<_> = keys.map(|(key, value)| format!("policy.{key} = {value}")).collect();
            format!(
                "optimizer.kind = \"{name}\" needs {}, and the recipe says something else; leave these keys out, or \
                 write another optimizer, such as \"adamw\"",
                keys.join(" and ")
            )
        })?;
        refuse(needed.feedback.is_some() && self.is_local(), || {
            format!(
                "optimizer.kind = \"{name}\" exchanges its momentum at every step, and local steps exchange weights; \
                 write optimizer.kind = \"adamw\", or local.steps = 1 and no outer optimizer"
            )
        })?;
        let clip = policy.clip_norm.unwrap_or(0.0);
        refuse(clip > 0.0 && self.is_local() && self.exchanges_gradients(), || {
            let feeds_back = policy.schemes(scheme).any(|scheme| scheme.feedback());
            format!(
                "policy.clip_norm = {clip} would clip gradients up to step local.after = {}, and then how far ranks have \
                 come; write local.after = 0{}",
                self.local.after,
                match feeds_back {
                    true => String::new(),
                    false =>
                        format!(", or train.clip_norm = {clip}, which clips gradients throughout"),
                }
            )
        })?;
        let around = !matches!(
            self.exchange.topology,
            exchange::Topology::Allgather | exchange::Topology::Sharded
        );
        refuse(self.is_local() && self.local.state == InnerState::Averaged && around, || {
            "local.state = \"averaged\" goes from every rank to all, past a server and past groups; write \
             local.state = \"own\", or exchange.topology = \"allgather\" or \"sharded\""
                .into()
        })?;
        let correction = policy.momentum();
        let followed = optimizer.follows_correction();
        refuse(correction > 0.0 && followed.is_err() && !self.is_local(), || {
            format!(
                "policy.momentum_correction = {correction}{} does not go with optimizer.kind = \
                 \"{}\", which {}; write policy.momentum_correction = 0, or optimizer.kind = \"sgd\" \
                 and optimizer.momentum = 0",
                match self.policy.momentum_correction {
                    Some(_) => String::new(),
                    None => format!(", the default of scheme {},", scheme.about().name),
                },
                optimizer.about().name,
                followed.err().unwrap_or_default()
            )
        })?;
        if let exchange::Topology::TwoLevel { group } = self.exchange.topology {
            refuse(!self.workers.is_multiple_of(group.max(1)), || {
                format!(
                    "exchange.topology.group = {group} does not divide workers = {}; write a group \
                     that does, or workers = {}",
                    self.workers,
                    self.workers.next_multiple_of(group.max(1))
                )
            })?;
            refuse(self.faults.on_worker_loss == OnWorkerLoss::Shrink, || {
                "faults.on_worker_loss = \"shrink\" goes on with one worker less, which \
                 exchange.topology = { kind = \"two-level\" } cannot divide into groups; write \
                 faults.on_worker_loss = \"restart\""
                    .into()
            })?;
        }
        let saves = self.checkpoint.keep_best || self.checkpoint.every_steps > 0;
        refuse(saves && self.checkpoint.keep_last == 0, || {
            "checkpoint.keep_last = 0 keeps no checkpoint, and checkpoint.keep_best and checkpoint.every_steps ask for some; \
             write checkpoint.keep_last = 2, or leave them out"
                .into()
        })?;
        let goes_on = self.faults.on_worker_loss != OnWorkerLoss::Stop;
        refuse(goes_on && self.checkpoint.keep_last == 0, || {
            "faults.on_worker_loss goes on from the last checkpoint, and checkpoint.keep_last = 0 keeps \
             none; write checkpoint.keep_last = 2, or faults.on_worker_loss = \"stop\""
                .into()
        })?;
        let clip = self.train.clip_norm.filter(|clip| clip.is_finite() && *clip > 0.0);
        // In local steps a rank clips its own gradient.
        let clip = clip.filter(|_| self.exchanges_gradients());
        let feeds_back = policy.schemes(scheme).find(|scheme| scheme.feedback());
        let cuts = clip.is_some() && feeds_back.is_some() && !policy.force;
        refuse(cuts, || {
            format!(
                "train.clip_norm = {clip} clips the mean of what ranks sent, and with error feedback \
                 of scheme {} that is also what comes late: what is cut off is lost for ever. Write \
                 policy.clip_norm = {:.4} in its place, with which every rank clips its gradient to \
                 {clip} before it joins the residual (Lin et al. 2018, section 3.2); or policy.force = \
                 true to clip all the same",
                feeds_back.unwrap_or(scheme).about().name,
                clip.unwrap_or_default() * (self.workers as f64).sqrt(),
                clip = clip.unwrap_or_default()
            )
        })?;
        refuse(clip.is_some() && policy.shares_momentum(), || {
            let clip = clip.unwrap_or_default();
            format!(
                "train.clip_norm = {clip} would clip the momentum that ranks share, and they would go on with the whole \
                 of it; write train.clip_norm = 0, and policy.clip_norm = {:.4} to clip every rank's gradient",
                clip * (self.workers as f64).sqrt()
            )
        })
    }

    /// Refuses a model on data that it cannot read, naming models that can.
    fn fits(&self) -> anyhow::Result<()> {
        let holds = holds(&self.dataset);
        let reads = self.model.input_kind();
        let fitting = || {
            let all = models::Config::all();
            let fit = all.iter().filter(|model| model.input_kind() == holds);
            fit.map(models::Config::name).collect::<Vec<_>>().join(", ")
        };
        refuse(reads != holds, || {
            format!(
                "model {} reads {reads} but dataset {} holds {holds}; models for it: {}",
                self.model.name(),
                self.dataset.name(),
                fitting()
            )
        })
    }
}

/// The largest outer learning rate for a scheme whose every element moves a weight by as much.
const LARGEST_WITHOUT_MAGNITUDE: f64 = 0.1;

/// Whether what a scheme makes of a gradient is the same for one that is a thousand times as large.
fn has_no_magnitude(scheme: &dyn Scheme) -> bool {
    let mean = |scale: f32| -> Option<Vec<f32>> {
        let mut gradient = [0.5, -0.25, 1.0, -2.0, 0.75, -1.5, 0.125, -0.625].map(|v| v * scale);
        let layout = exchange::Layout::new([("weight".to_string(), gradient.len())]).ok()?;
        let policy = exchange::Policy { warmup_steps: Some(0), ..Default::default() };
        let alone = Box::new(exchange::Solo);
        let exchanged = exchange::Exchange::new(scheme, policy, layout, 0, alone);
        exchanged.ok()?.allreduce(1, &mut gradient).ok()?;
        Some(gradient.to_vec())
    };
    mean(1.0).is_some_and(|one| one.iter().any(|v| *v != 0.0) && mean(1024.0) == Some(one))
}

fn refuse(bad: bool, message: impl FnOnce() -> String) -> anyhow::Result<()> {
    if bad { Err(anyhow::Error::msg(message())) } else { Ok(()) }
}
