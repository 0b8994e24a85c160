//! The end of a step: what is learnt from what all ranks said.

use super::{Exchange, Underway};
use crate::cpu::Stopwatch;
use crate::incoming::Place;
use crate::topology::{Heard, Said};
use crate::wire::floats;
use crate::{Error, Gauge, Result, Traffic};

impl Exchange {
    /// Ends the step: takes up the new residual, lets the compressors learn from what all ranks
    /// said, and tells what the step cost. `gradient` is the mean that the groups came to.
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
        let heard: Vec<Heard> = heard.into_iter().flatten().collect();
        let start = Stopwatch::start();
        if let Some(feedback) = &mut self.feedback {
            feedback.commit();
        }
        self.observe(self.place(step), &heard, gradient, &mut traffic.gauges)?;
        let rank = self.collective.rank();
        for (sent, heard) in self.sent.iter_mut().zip(heard) {
            sent.extend(heard.into_mine(rank).map(|message| (message, self.standing.take())));
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

    /// Tells the compressors, in order of bucket, what all ranks said, and asks them for their
    /// gauges.
    fn observe(
        &mut self,
        place: Place,
        heard: &[Heard],
        gradient: &[f32],
        gauges: &mut Vec<Gauge>,
    ) -> Result<()> {
        if self.is_dense() {
            return Ok(());
        }
        let said = self.groups.iter().zip(heard).map(|(group, heard)| heard.open(place, group));
        let said = said.collect::<Result<Vec<Said<'_>>>>()?;
        let mut places = vec![(0, 0); self.buckets.len()];
        for (group, buckets) in self.groups.iter().enumerate() {
            buckets.iter().enumerate().for_each(|(index, bucket)| places[*bucket] = (group, index));
        }
        for (bucket, (group, index)) in self.buckets.iter_mut().zip(places) {
            let (mean, Some(compressor)) = bucket.view(gradient) else { continue };
            said[group].tell(place, index, mean, &mut **compressor)?;
            Gauge::merge_into(gauges, compressor.gauges());
        }
        Ok(())
    }
}
