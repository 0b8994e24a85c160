//! Rounds of local steps: a rank updates its weights by its own gradient; at the end of a round the ranks
//! exchange how far they have come, and go on from what the outer optimizer makes of the mean.
//!
//! With fragments the weights are exchanged one part at a time, and with a delay beside the steps that follow
//! (Streaming DiLoCo: Douillard et al. 2025, arXiv 2501.18512, algorithm 2): a thread has the exchange meanwhile, and
//! whoever else needs it waits ([`Worker::land`]). When the mean is taken depends on the number of the step alone.
//!
//! Between two exchanges the ranks' weights differ. The outer weights, those of the last exchange, are the
//! same on all ranks, bit for bit: they are what is compared, evaluated, averaged over steps and saved.

use crate::recipe::local::InnerState;
use crate::train::optim::{Optimizer, norm};
use crate::train::overlap::Overlapped;
use crate::train::position::Phase;
use crate::train::report::Report;
use crate::train::timer::StepTimer;
use crate::train::worker::Worker;
use anyhow::Result;
use gradwire_exchange::wire::frame::HEADER_BYTES;
use gradwire_exchange::{Collective, Leg, Operation, Traffic, thread_time};
use std::ops::Range;
use std::time::{Duration, Instant};

impl Worker {
    /// At the end of a step that this rank has taken by itself: updates the outer weights by what now arrives, and
    /// exchanges how far the ranks have come with the fragments that now leave, or begins to. What that cost.
    pub(super) fn end_local_step(
        &mut self,
        step: u64,
        timer: &mut StepTimer,
    ) -> Result<Overlapped> {
        if let Some(fragment) = self.session.steps.arrives(step) {
            timer.wall.wait += self.land()?.as_secs_f64();
            self.position.enter(Phase::Optimizer);
            timer.time(|p| &mut p.optimizer, || self.take_received(fragment))?;
        }
        let Self { gradient, optimizer, replica, position, session, local, .. } = self;
        let (Some(local), Some(leaving)) = (local, session.steps.leaves(step)) else {
            return Ok(self.gradient.nothing_sent());
        };
        position.enter(Phase::Exchange);
        let (place, turn) = (local.place(&leaving), session.steps.turn(step));
        if session.steps.delay(step) > 0 {
            let mut progress = std::mem::take(&mut local.on_its_way);
            progress.resize(gradient.flat.len(), 0.0);
            let measure = || local.progress(&replica.params, &place, &mut progress);
            timer.time(|p| &mut p.optimizer, measure)?;
            gradient.send(turn, leaving.start, progress)?;
            return Ok(gradient.nothing_sent());
        }
        let mut flat = std::mem::take(&mut gradient.flat);
        timer.time(|p| &mut p.optimizer, || local.progress(&replica.params, &place, &mut flat))?;
        let began = Instant::now();
        let exchange = gradient.exchange_mut();
        let mut traffic = match leaving.len() == exchange.groups().len() {
            true => exchange.allreduce(turn, &mut flat[..])?,
            false => exchange.allreduce_group(turn, leaving.start, &mut flat)?,
        };
        if local.state == InnerState::Averaged {
            average(optimizer, &place, exchange.collective(), &mut traffic)?;
        }
        gradient.flat = flat;
        gradient.complete_progress(&mut traffic, norm(&gradient.flat));
        let exposed = began.elapsed();
        timer.add_exchange(&traffic, exposed);
        position.enter(Phase::Optimizer);
        let mean = (&mut gradient.flat[..], &gradient.support);
        let update = || local.update(&replica.params, mean, place, false);
        timer.time(|p| &mut p.optimizer, update)?;
        Ok(Overlapped { traffic, exposed, ready: Vec::new(), laid: Vec::new() })
    }

    /// Waits for the exchange that is under way beside the steps, if one is, keeps the mean until its time comes, and
    /// reports the steps since it began. How long it has waited.
    pub(super) fn land(&mut self) -> Result<Duration> {
        let Some(((mean, traffic), waited)) = self.gradient.land() else {
            return Ok(Duration::ZERO);
        };
        let mut held = std::mem::take(&mut self.held);
        let mut traffic = traffic?;
        self.gradient.complete_progress(&mut traffic, norm(&mean));
        if let Some(local) = &mut self.local {
            local.received = Some(mean);
        }
        if let Some(sent) = held.first_mut() {
            (sent.traffic, sent.exposed) = (traffic, waited.as_secs_f64());
        }
        held.into_iter().try_for_each(|step| self.report(Report::Step(Box::new(step))))?;
        Ok(waited)
    }

    /// Updates the outer weights of a fragment by the mean that has been received.
    fn take_received(&mut self, fragment: usize) -> Result<()> {
        let Some(local) = &mut self.local else { return Ok(()) };
        let Some(mut mean) = local.received.take() else { return Ok(()) };
        let place = local.place(&(fragment..fragment + 1));
        let late = (&mut mean[..], &self.gradient.support);
        local.update(&self.replica.params, late, place, true)?;
        local.on_its_way = mean;
        Ok(())
    }

    /// Stops every rank before an update by this rank's own gradient if that is not finite, as an exchange of it would.
    ///
    /// # Errors
    /// With the parameter and its element.
    pub(super) fn refuse_unless_gradient_is_finite(&mut self) -> Result<()> {
        let Some(position) = self.gradient.flat.iter().position(|value| !value.is_finite()) else {
            return Ok(());
        };
        self.land()?;
        let (parameter, element) = self.gradient.exchange().layout().name(position);
        let reason = format!("non-finite gradient: parameter `{parameter}`, element {element}");
        Err(self.gradient.abort(&reason))
    }

    /// Before the first step that a rank takes by itself after some that exchanged gradients: the outer weights are
    /// those that all ranks have, and what was not sent of gradients will be sent as progress.
    pub(super) fn begin_local_steps(&mut self, step: u64, learning_rate: f64) -> Result<()> {
        let first = step > 1 && self.session.steps.is_local(step);
        match &mut self.local {
            Some(local) if first && !self.session.steps.is_local(step - 1) => {
                self.gradient.exchange_mut().rescale(learning_rate as f32);
                local.begin(&self.replica.params)
            }
            _ => Ok(()),
        }
    }

    /// Puts what is evaluated and saved in the weights' place, after `step`: their average if there is one, or the
    /// outer weights within a round. Called again it puts the weights back.
    pub(super) fn swap_evaluated_weights(&mut self, step: u64) -> Result<()> {
        match &mut self.average {
            Some(average) if average.updates > 0 => average.swap(),
            _ => self.swap_outer(step),
        }
    }

    /// Puts the outer weights in the weights' place where they differ after `step`. Called again it puts the weights
    /// back.
    pub(super) fn swap_outer(&mut self, step: u64) -> Result<()> {
        match &mut self.local {
            Some(local) if !self.session.steps.is_whole(step) => local.swap(&self.replica.params),
            _ => Ok(()),
        }
    }
}

/// Averages a place of the vectors of the ranks' optimizers, and counts what that sends.
fn average(
    optimizer: &mut Optimizer,
    place: &Range<usize>,
    collective: &mut dyn Collective,
    traffic: &mut Traffic,
) -> Result<()> {
    let group = traffic.legs.last().map_or(0, |leg| leg.group + 1);
    optimizer.change(|vector| {
        let (began, computed, mut leg) = (Instant::now(), thread_time(), Leg::default());
        let vector = &mut vector[place.clone()];
        collective.mean_f32(vector)?;
        (leg.group, leg.operation) = (group, Operation::Allreduce);
        leg.wire_bytes = (HEADER_BYTES + size_of_val(vector)) as u64;
        // Reading and adding what came; the rest was waiting.
        leg.decode_cpu = thread_time().saturating_sub(computed);
        leg.decode = leg.decode_cpu;
        leg.wait = began.elapsed().saturating_sub(leg.decode);
        traffic.wire_bytes += leg.wire_bytes;
        traffic.wait += leg.wait;
        traffic.decode += leg.decode;
        traffic.legs.push(leg);
        Ok(())
    })
}
