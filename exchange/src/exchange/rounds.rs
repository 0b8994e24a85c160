//! The rounds of reducers: all buckets of a group post, one collective carries what they posted, all
//! of them read what came of it, until the last is done.

use super::Exchange;
use crate::collective::Collective;
use crate::compress::{Built, Feedback};
use crate::group::{Bucket, Item, StepContext};
use crate::reducer::{BucketGradient, Next, Round};
use crate::traffic::{Leg, Operation, Stopwatch};
use crate::wire::{Frame, Kind, Reader, floats};
use crate::{Error, Result, Traffic};

/// Items that were posted, and the message about them.
type Posted = (Vec<Item>, Vec<u8>);

impl Exchange {
    /// Runs the rounds of some buckets of a group. What they post is sent and charged as it is:
    /// values as an allreduce, bytes as an allgather. `leg` is the first that goes out, with what
    /// was computed so far.
    pub(super) fn run_rounds(
        &mut self,
        context: StepContext,
        reduced: &[usize],
        gradient: &mut [f32],
        mut leg: Leg,
        traffic: &mut Traffic,
    ) -> Result<()> {
        let group = leg.group;
        for number in reduced {
            let bucket = &mut self.member.buckets[*number];
            // What a reducer writes may lie anywhere in its bucket.
            self.member.zeros.note(&bucket.range, None);
            bucket.mail.begin();
        }
        let due = self.note_due(reduced, gradient);
        for round in 0..=u8::MAX {
            let computing = Stopwatch::start();
            let turned = self.turn(context, reduced, round, gradient);
            let written = turned
                .and_then(|again| Ok((again, self.write_posts(context, group, reduced, round)?)));
            let (again, [values, bytes]) = match written {
                Ok(written) => written,
                Err(own) => return Err(self.refuse(context, own)),
            };
            leg.add_encode(computing);
            if !again {
                self.measure_rounds(reduced, &due, gradient);
                // What the last round computed follows the last collective.
                match traffic.legs.last_mut().filter(|_| round > 0) {
                    Some(last) => {
                        last.decode += leg.encode;
                        last.decode_cpu += leg.encode_cpu;
                        traffic.decode += leg.encode;
                    }
                    None => traffic.add(leg),
                }
                return Ok(());
            }
            if let Some((items, values)) = values {
                let mine = std::mem::replace(&mut leg, Leg { group, ..Leg::default() });
                self.carry_values(context, &items, values, gradient, mine, traffic)?;
            }
            if let Some((items, bytes)) = bytes {
                let mine = std::mem::replace(&mut leg, Leg { group, ..Leg::default() });
                self.carry_bytes(context, &items, bytes, mine, traffic)?;
            }
        }
        let (rank, step) = (self.member.collective.all.rank(), context.step);
        let reason = "a reducer wants more than 256 rounds".to_string();
        Err(self.refuse(context, Error::Aborted { rank, step, reason }))
    }

    /// Calls every reducer that is not done; whether one wants another round.
    fn turn(
        &mut self,
        context: StepContext,
        reduced: &[usize],
        round: u8,
        gradient: &mut [f32],
    ) -> Result<bool> {
        let StepContext { rank, world_size, exchange, .. } = context;
        let mut again = false;
        for number in reduced {
            let due = self.member.feedback.as_mut().map(Feedback::due_mut);
            let Bucket { engine, mail, range, .. } = &mut self.member.buckets[*number];
            let Built::Reducer(reducer) = engine else { continue };
            if mail.done {
                continue;
            }
            mail.clear_posts();
            let due = due.map(|due| &mut due[range.clone()]);
            let mut values = BucketGradient::new(&mut gradient[range.clone()], due);
            let mut turn = Round { step: exchange, number: round, rank, world_size, mail };
            match reducer.reduce(&mut values, &mut turn)? {
                Next::Again => again = true,
                Next::Done => {
                    mail.clear_posts();
                    mail.done = true;
                    self.check_mean(context, *number, gradient)?;
                }
            }
        }
        Ok(again)
    }

    /// Refuses a mean that is not finite. It has the same bits on every rank, so that every rank does.
    fn check_mean(&mut self, context: StepContext, number: usize, gradient: &[f32]) -> Result<()> {
        let bucket = &self.member.buckets[number];
        let Some(element) = floats::first_non_finite(bucket.elements(gradient)) else {
            return Ok(());
        };
        let (parameter, index) = self.member.layout.name(bucket.range.start + element);
        Err(Error::NonFiniteMean { step: context.step, parameter, index })
    }

    /// Writes what was posted: the items that are values, and those that are bytes, each with their
    /// message.
    fn write_posts(
        &mut self,
        context: StepContext,
        group: usize,
        reduced: &[usize],
        round: u8,
    ) -> Result<[Option<Posted>; 2]> {
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        let buffers = &mut self.member.buffers[group];
        let mails = || reduced.iter().map(|number| &self.member.buckets[*number].mail);
        let (posts_values, posts_bytes) =
            (mails().any(|mail| mail.posts_values), mails().any(|mail| mail.posts_bytes));
        let mut floats_out = if posts_values { buffers.plain.take() } else { Vec::new() };
        let mut bytes_out = if posts_bytes { buffers.bytes.take() } else { Vec::new() };
        for number in reduced {
            let mail = &mut self.member.buckets[*number].mail;
            if mail.posts_values {
                let item = Item::values(*number, mail.values.len(), round);
                let open = context.header_of(Kind::Values, item).open(&mut floats_out);
                let Some(checksum) = floats::put_checked(&mail.values, |_| false, &mut floats_out)
                else {
                    let reason = format!(
                        "what is to be averaged in round {round} of bucket {number} is not finite"
                    );
                    let (rank, step) = (self.member.collective.all.rank(), context.step);
                    return Err(Error::Aborted { rank, step, reason });
                };
                open.close_with(Kind::Values, &checksum, &mut floats_out);
                mail.mean.clear();
                mail.mean.resize(item.length, 0.0);
                values.push(item);
            }
            if mail.posts_bytes {
                let item = Item::bytes(*number, round);
                let open = context.header_of(Kind::Bytes, item).open(&mut bytes_out);
                bytes_out.extend_from_slice(&mail.bytes);
                open.close(Kind::Bytes, &mut bytes_out);
                bytes.push(item);
            }
        }
        let posted = |items: Vec<Item>, out| (!items.is_empty()).then_some((items, out));
        Ok([posted(values, floats_out), posted(bytes, bytes_out)])
    }

    /// Averages posted values over ranks.
    fn carry_values(
        &mut self,
        context: StepContext,
        items: &[Item],
        mine: Vec<u8>,
        gradient: &mut [f32],
        mut leg: Leg,
        traffic: &mut Traffic,
    ) -> Result<()> {
        leg.operation = Operation::Allreduce;
        let group = leg.group;
        let received = self.carry(context, items, mine, gradient, &mut leg)?;
        self.member.buffers[group].plain.keep(received.into_mine(context.rank));
        traffic.add(leg);
        Ok(())
    }

    /// Gives posted bytes to every rank.
    fn carry_bytes(
        &mut self,
        context: StepContext,
        items: &[Item],
        mine: Vec<u8>,
        mut leg: Leg,
        traffic: &mut Traffic,
    ) -> Result<()> {
        leg.operation = Operation::Allgather;
        leg.wire_bytes = self.charged(&mine);
        self.count_by_rule(items, &mine);
        let sent = Stopwatch::start();
        let all =
            self.member.collective.allgather(mine).map_err(|e| e.awaiting(context.awaited()))?;
        leg.add_wait(sent);
        let received = Stopwatch::start();
        if self.route.is_served() {
            leg.downlink_bytes = all.iter().map(|message| message.len() as u64).sum();
        }
        context.open(items, &all)?;
        for item in items {
            self.member.buckets[item.bucket].mail.messages.clear();
        }
        for message in &all {
            let mut reader = Reader::new(message);
            for item in items {
                let payload = Frame::split(&mut reader)?.frame.payload.len();
                let end = message.len() - reader.rest().len();
                let messages = &mut self.member.buckets[item.bucket].mail.messages;
                messages.push(message.slice(end - payload..end));
            }
        }
        self.member.buffers[leg.group].bytes.keep(all.into_iter().nth(context.rank));
        leg.add_decode(received);
        traffic.add(leg);
        Ok(())
    }

    /// At a step at which the compression error is measured: what each bucket has to send.
    fn note_due(&self, reduced: &[usize], gradient: &[f32]) -> Vec<Vec<f32>> {
        if self.distortion.is_none() {
            return Vec::new();
        }
        let due = self.member.feedback.as_ref().map_or(gradient, Feedback::due);
        reduced.iter().map(|number| self.member.buckets[*number].elements(due).to_vec()).collect()
    }

    /// Measures how much of that, where it was noted, was left unsent.
    fn measure_rounds(&mut self, reduced: &[usize], due: &[Vec<f32>], gradient: &[f32]) {
        let Some(distortion) = &mut self.distortion else { return };
        let left = self.member.feedback.as_ref().map(Feedback::due);
        for (number, due) in reduced.iter().zip(due) {
            let bucket = &self.member.buckets[*number];
            match left {
                Some(left) => {
                    let left = bucket.elements(left);
                    distortion.add(*number, due, |unsent| unsent.copy_from_slice(left));
                }
                None => {
                    let mean = bucket.elements(gradient);
                    distortion.add(*number, due, |unsent| {
                        unsent.iter_mut().zip(mean).for_each(|(unsent, mean)| *unsent -= mean);
                    });
                }
            }
        }
    }
}
