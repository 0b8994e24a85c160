//! The end of a step: what is learnt from what all ranks said, and what lasts of it.

use super::{Exchange, Underway};
use crate::bucket::Engine;
use crate::bucket::Item;
use crate::cpu::Stopwatch;
use crate::incoming::Place;
use crate::topology::{Heard, Received};
use crate::wire::floats;
use crate::{Error, Gauge, Result, Traffic};

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
        self.learn_from_messages(place, &heard, gradient)?;
        // From here on nothing can fail.
        self.commit(place, gradient, &mut traffic.gauges);
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
        means: &[f32],
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
        for (bucket, heard) in self.buckets.iter_mut().zip(places) {
            let mean = bucket.elements(means);
            let Some(compressor) = bucket.codec_mut() else { continue };
            match heard {
                Some((group, index)) => {
                    received[group].tell(place, index, mean, compressor)?;
                }
                None => Received::Plain.tell(place, 0, mean, compressor)?,
            }
        }
        Ok(())
    }

    /// Makes what the step has prepared last: residual, and what compressors and reducers learnt. Gauges are of
    /// messages: steps of a warm-up have none.
    fn commit(&mut self, place: Place, means: &[f32], gauges: &mut Vec<Gauge>) {
        use crate::compress::StepEnd;

        if let Some(feedback) = &mut self.feedback {
            feedback.commit();
        }
        let warm = self.is_warm(place.step);
        for bucket in &mut self.buckets {
            let mean = bucket.elements(means);
            if let Some(compressor) = bucket.codec_mut() {
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
