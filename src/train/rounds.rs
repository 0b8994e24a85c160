//! Rounds of local steps: a rank updates its weights by its own gradient; at the end of a round the ranks
//! exchange how far they have come, and go on from what the outer optimizer makes of the mean.
//!
//! Between two exchanges the ranks' weights differ. The outer weights, those of the last exchange, are the
//! same on all ranks, bit for bit: they are what is compared, evaluated, averaged over steps and saved.

use crate::recipe::local::InnerState;
use crate::train::optim::{Optimizer, norm};
use crate::train::overlap::Overlapped;
use crate::train::position::Phase;
use crate::train::timer::StepTimer;
use crate::train::worker::Worker;
use anyhow::Result;
use gradwire_exchange::{Collective, Gauge, Leg, Operation, Traffic};
use std::time::Instant;

impl Worker {
    /// At the end of a step that this rank has taken by itself: where a round ends with it, exchanges how far the
    /// ranks have come, updates the outer weights, and goes on from them. What that cost.
    ///
    /// # Errors
    /// Those of the exchange.
    pub(super) fn end_local_step(
        &mut self,
        step: u64,
        timer: &mut StepTimer,
    ) -> Result<Overlapped> {
        let Self { gradient, optimizer, replica, position, session, local, .. } = self;
        let (Some(local), true) = (local, session.steps.meets(step)) else {
            return Ok(self.gradient.nothing_sent());
        };
        position.enter(Phase::Exchange);
        let began = Instant::now();
        local.progress(&replica.params, &mut gradient.flat)?;
        let mut traffic = gradient.exchange.allreduce(step, &mut gradient.flat[..])?;
        if local.state == InnerState::Averaged {
            average(optimizer, &mut *gradient.exchange.collective(), &mut traffic)?;
        }
        let exposed = began.elapsed();
        timer.add_exchange(&traffic, exposed);
        traffic.gauges.push(Gauge::sum("progress_norm", norm(&gradient.flat)));
        position.enter(Phase::Optimizer);
        let (flat, support) = (&mut gradient.flat, &gradient.support);
        let update = || local.update(&replica.params, flat, support);
        timer.time(|p| &mut p.optimizer, update)?;
        Ok(Overlapped { traffic, exposed, ready: Vec::new(), laid: Vec::new() })
    }

    /// Before the first step that a rank takes by itself after some that exchanged gradients: the outer weights are
    /// those that all ranks have, and what was not sent of gradients will be sent as progress.
    ///
    /// # Errors
    /// As [`Local::begin`](crate::train::local::Local::begin).
    pub(super) fn begin_local_steps(&mut self, step: u64, learning_rate: f64) -> Result<()> {
        let first = step > 1 && self.session.steps.is_local(step);
        match &mut self.local {
            Some(local) if first && !self.session.steps.is_local(step - 1) => {
                self.gradient.exchange.rescale(learning_rate as f32);
                local.begin(&self.replica.params)
            }
            _ => Ok(()),
        }
    }

    /// Puts what is evaluated and saved in the weights' place, after `step`: their average if there is one, or the
    /// outer weights within a round. Called again it puts the weights back.
    ///
    /// # Errors
    /// As [`Local::begin`](crate::train::local::Local::begin).
    pub(super) fn swap_shown(&mut self, step: u64) -> Result<()> {
        let within = !self.session.steps.meets(step);
        match (&mut self.average, &mut self.local) {
            (Some(average), _) if average.updates > 0 => average.swap(&self.replica),
            (_, Some(local)) if within => local.swap(&self.replica.params),
            _ => Ok(()),
        }
    }
}

/// Averages the vectors of the ranks' optimizers, and counts what that sends.
fn average(
    optimizer: &mut Optimizer,
    collective: &mut dyn Collective,
    traffic: &mut Traffic,
) -> Result<()> {
    let group = traffic.legs.last().map_or(0, |leg| leg.group + 1);
    for vector in optimizer.vectors_mut() {
        let (sent, mut leg) = (Instant::now(), Leg::default());
        collective.mean_f32(vector)?;
        (leg.group, leg.operation) = (group, Operation::Allreduce);
        (leg.wire_bytes, leg.wait) = (size_of_val(&vector[..]) as u64, sent.elapsed());
        traffic.wire_bytes += leg.wire_bytes;
        traffic.wait += leg.wait;
        traffic.legs.push(leg);
    }
    Ok(())
}
