//! The end of a step: what is learnt from what all ranks said, and what lasts of it.

use super::{Exchange, Underway};
use crate::bucket::Engine;
use crate::bucket::Item;
use crate::cpu::Stopwatch;
use crate::gradient::Seen;
use crate::incoming::Place;
use crate::topology::{Heard, Received};
use crate::wire::floats;
use crate::{Error, Gauge, Result, Traffic};

/// The mean that the groups of a step came to.
#[derive(Clone, Copy)]
enum Means<'a> {
    Flat(&'a [f32]),
    Buckets(&'a [&'a [f32]]),
}

impl<'a> Means<'a> {
    fn of(self, bucket: usize) -> Seen<'a> {
        match self {
            Means::Flat(values) => Seen::flat(values),
            Means::Buckets(buckets) => Seen { values: buckets[bucket], one: true },
        }
    }
}

impl Exchange {
    /// Ends the step: lets the compressors learn from what all ranks said, takes up the new
    /// residual, and tells what the step cost. `gradient` is the mean that the groups came to.
    /// When it fails, residual and compressors are what they were before the step.
    ///
    /// # Errors
    /// [`Error::GradientLength`]; [`Error::Groups`] when no step has begun or a group is missing;
    /// [`Error::Message`] when a message holds what decoding alone does not look at, and it is
    /// wrong.
    pub fn finish(&mut self, gradient: &[f32]) -> Result<Traffic> {
        if gradient.len() != self.layout.len() {
            let (expected, found) = (self.layout.len(), gradient.len());
            return Err(Error::GradientLength { expected, found });
        }
        self.finish_with(Means::Flat(gradient))
    }

    /// The same for a caller that holds buckets: `means` are what
    /// [`exchange_bucket`](Self::exchange_bucket) left, in the order of [`buckets`](Self::buckets).
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_buckets(&mut self, means: &[&[f32]]) -> Result<Traffic> {
        if means.len() != self.buckets.len() {
            let problem =
                format!("there are {} buckets, and means of {}", self.buckets.len(), means.len());
            return Err(Error::Groups { problem });
        }
        for (bucket, mean) in self.buckets.iter().zip(means) {
            if mean.len() != bucket.length {
                let (expected, found) = (bucket.length, mean.len());
                return Err(Error::GradientLength { expected, found });
            }
        }
        self.finish_with(Means::Buckets(means))
    }

    fn finish_with(&mut self, means: Means<'_>) -> Result<Traffic> {
        let refuse = |problem: String| Err(Error::Groups { problem });
        let Some(Underway { step, mut traffic, heard }) = self.underway.take() else {
            return refuse("no step has begun that could end".to_string());
        };
        if let Some(group) = heard.iter().position(Option::is_none) {
            return refuse(format!("the step ends before group {group} has been exchanged"));
        }
        let heard: Vec<(Vec<Item>, Heard)> = heard.into_iter().flatten().collect();
        let start = Stopwatch::start();
        let place = self.place(step);
        self.learn_from_messages(place, &heard, means)?;
        // From here on nothing can fail.
        self.commit(place, means, &mut traffic.gauges);
        for (buffers, (_, heard)) in self.buffers.iter_mut().zip(heard) {
            buffers.keep_messages(heard.into_mine(place.rank));
        }
        if let Some(feedback) = &self.feedback {
            traffic.gauges.push(Gauge::sum("residual_norm", floats::norm(feedback.residual())));
        }
        self.distortion.end(&mut traffic.gauges);
        let (passed, computed) = start.read();
        traffic.decode += passed;
        traffic.finish_cpu = computed;
        Ok(traffic)
    }

    /// Lets the compressors read, in order of bucket, what all ranks said; nothing lasts yet.
    fn learn_from_messages(
        &mut self,
        place: Place,
        heard: &[(Vec<Item>, Heard)],
        means: Means<'_>,
    ) -> Result<()> {
        if self.is_dense() {
            return Ok(());
        }
        let received = heard.iter().map(|(items, heard)| heard.open(place, items));
        let received = received.collect::<Result<Vec<Received<'_>>>>()?;
        // Of each bucket, where it was heard: the group, and the item of its message.
        let mut places = vec![None; self.buckets.len()];
        for (group, (items, _)) in heard.iter().enumerate() {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(index, item)| {
                places[item.bucket] = Some((group, index));
                Ok::<_, Error>(())
            })?;
        }
        for (number, (bucket, heard)) in self.buckets.iter_mut().zip(places).enumerate() {
            let (mean, Some(compressor)) = bucket.view(means.of(number)) else { continue };
            match heard {
                Some((group, index)) => {
                    received[group].tell(place, index, mean, &mut **compressor)?;
                }
                None => Received::Plain.tell(place, 0, mean, &mut **compressor)?,
            }
        }
        Ok(())
    }

    /// Makes what the step has prepared last: residual, and what compressors and reducers learnt. Gauges are of
    /// messages: steps of a warm-up have none.
    fn commit(&mut self, place: Place, means: Means<'_>, gauges: &mut Vec<Gauge>) {
        use crate::compress::StepEnd;

        if let Some(feedback) = &mut self.feedback {
            feedback.commit();
        }
        let warm = self.is_warm(place.step);
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            if let (mean, Some(compressor)) = bucket.view(means.of(number)) {
                compressor.commit(&StepEnd { step: place.step, ranks: place.world_size, mean });
            }
            if let (Engine::Rounds(reducer, _), true) = (&mut bucket.engine, warm) {
                reducer.commit();
            }
            if warm {
                Gauge::merge_into(gauges, bucket.gauges());
            }
        }
    }
}
