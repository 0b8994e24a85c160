//! One step: check, correct, encode, allgather, decode, average.

use std::time::Instant;

use crate::bucket::Bucket;
use crate::collective::{Collective, Payload};
use crate::compress::{Compressor, Encoded, Feedback, Round, Scheme, Seat, dense::Dense};
use crate::error::{Awaited, Quantity};
use crate::layout::{Layout, Part};
use crate::measure::Distortion;
use crate::wire::{Frame, Header, Kind, Reader, floats, frame};
use crate::{Entry, Error, Gauge, Policy, Result, State, Traffic};

/// Elements that a bucket may have, so that its message is surely shorter than 4 GiB.
const MAX_BUCKET: usize = 1 << 29;

/// Turns each rank's gradient into the mean over ranks, bit-identical on all of them.
///
/// One exchange belongs to one rank; all ranks make the same calls in the same order, with the
/// same scheme, policy and layout.
///
/// When a call fails, the residual is what it was before, and after [`Error::NonFinite`] and
/// [`Error::Aborted`] (which reach every rank alike) so is the gradient, but for local clipping
/// without feedback, which scales it in place; the group can go
/// on. After any other error the group is broken: drop the exchange, which tells the peers.
pub struct Exchange {
    layout: Layout,
    policy: Policy,
    buckets: Vec<Bucket>,
    feedback: Option<Feedback>,
    collective: Box<dyn Collective>,
    /// The last messages sent, oldest first. The older of two has been read by all ranks when
    /// the younger is answered, so that two buffers go round for ever.
    sent: Vec<Payload>,
    distortion: Distortion,
}

impl Exchange {
    /// Builds this rank's compressors over a collective that all ranks share. What `policy`
    /// leaves out is the scheme's habit.
    ///
    /// # Errors
    /// What [`Policy::validate`] refuses; [`Error::Bucketing`] when a bucket would have more than
    /// 2²⁹ elements; [`Error::WorldSize`].
    pub fn new(
        scheme: &Scheme,
        policy: impl Into<Policy>,
        layout: Layout,
        seed: u64,
        collective: Box<dyn Collective>,
    ) -> Result<Self> {
        let policy = policy.into().or(scheme.habits());
        policy.validate(scheme)?;
        let (rank, world_size) = (collective.rank(), collective.world_size());
        if world_size == 0 || world_size > usize::from(u16::MAX) {
            return Err(Error::WorldSize { world_size });
        }
        let bucketing = policy.bucketing.clone().unwrap_or_default();
        let parts = bucketing.parts(&layout, policy.dense_below.unwrap_or(0));
        if let Some(part) = parts.iter().find(|part| part.length() > MAX_BUCKET) {
            let problem = format!(
                "a bucket of {} elements is too large; write `parameter` or `bytes = {}`",
                part.length(),
                MAX_BUCKET
            );
            return Err(Error::Bucketing { problem });
        }
        let build = |(bucket, part): (usize, &Part)| {
            let parameters = part.ranges.iter().map(std::ops::Range::len).collect();
            let seat = Seat { length: part.length(), parameters, rank, bucket, seed };
            let dense = part.dense || matches!(scheme, Scheme::Dense(_)) || seat.length == 0;
            Bucket::new(part, (!dense).then(|| scheme.build(&seat)))
        };
        let feedback = scheme.feedback().then(|| Feedback::new(layout.len(), policy.momentum()));
        let buckets = parts.iter().enumerate().map(build).collect();
        Ok(Self {
            layout,
            policy,
            buckets,
            feedback,
            collective,
            sent: Vec::with_capacity(2),
            distortion: Distortion::default(),
        })
    }

    /// Overwrites `gradient` by its mean over ranks: what the ranks' messages say, added in order
    /// of rank, times 1/N.
    ///
    /// # Errors
    /// [`Error::GradientLength`] before anything is sent; [`Error::NonFinite`] on every rank when
    /// one rank's gradient (or gradient plus residual) is not finite; [`Error::NonFiniteMean`] on
    /// every rank when the mean overflows; [`Error::Aborted`] when a peer gave up;
    /// [`Error::PeerLost`], [`Error::Timeout`], [`Error::OutOfStep`] and [`Error::Message`] when
    /// a peer is gone, silent, elsewhere, or not understood.
    pub fn allreduce(&mut self, step: u64, gradient: &mut [f32]) -> Result<Traffic> {
        if gradient.len() != self.layout.len() {
            return Err(Error::GradientLength {
                expected: self.layout.len(),
                found: gradient.len(),
            });
        }
        let start = Instant::now();
        let dense_bytes = 4 * gradient.len() + frame::HEADER_BYTES * self.buckets.len();
        let mut traffic = Traffic {
            dense_bytes: dense_bytes as u64,
            parameters: gradient.len() as u64,
            ..Traffic::default()
        };
        if self.is_dense() && self.collective.world_size() == 1 && self.policy.clip_norm.is_none() {
            // The mean over one rank is its gradient: nothing to copy.
            if !floats::all_finite(gradient) {
                return Err(self.non_finite(step, gradient));
            }
            traffic.wire_bytes = traffic.dense_bytes;
            traffic.encode = start.elapsed();
            return Ok(traffic);
        }

        let mut mine = self.spare_buffer();
        mine.clear();
        mine.reserve(if self.is_dense() { dense_bytes } else { 0 });
        if !self.encode(step, gradient, &mut traffic, &mut mine) {
            let own = self.non_finite(step, gradient);
            return Err(self.refuse(step, own));
        }
        traffic.wire_bytes = mine.len() as u64;
        let encoded = Instant::now();

        let awaited = Awaited::Gradient { step };
        let messages = self.collective.allgather(mine).map_err(|error| error.awaiting(awaited))?;
        let received = Instant::now();

        let frames = self.open(step, &messages)?;
        self.average(step, &frames, gradient)?;
        if let Some(feedback) = &mut self.feedback {
            feedback.commit();
        }
        self.observe(step, &frames, gradient, &mut traffic.gauges)?;
        drop(frames);
        self.sent.extend(messages.into_iter().nth(self.collective.rank()));
        if let Some(feedback) = &self.feedback {
            traffic.gauges.push(Gauge::sum("residual_norm", floats::norm(feedback.residual())));
        }
        traffic.encode = (encoded - start).saturating_sub(self.distortion.spent());
        self.distortion.end(&mut traffic.gauges);
        traffic.wait = received - encoded;
        traffic.decode = received.elapsed();
        Ok(traffic)
    }

    /// Tells the compressors what all ranks said, and asks them for their gauges.
    fn observe(
        &mut self,
        step: u64,
        frames: &[Frame<'_>],
        gradient: &[f32],
        gauges: &mut Vec<Gauge>,
    ) -> Result<()> {
        let buckets = self.buckets.len();
        let mut said = Vec::with_capacity(self.collective.world_size());
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            let (mean, Some(compressor)) = bucket.view(gradient) else { continue };
            said.clear();
            said.extend(
                frames
                    .iter()
                    .skip(number)
                    .step_by(buckets)
                    .map(|frame| (frame.header.kind == Kind::Compressed).then_some(frame.payload)),
            );
            compressor.observe(&Round { step, messages: &said, mean })?;
            Gauge::merge_into(gauges, compressor.gauges());
        }
        Ok(())
    }

    /// Gives up: every rank's next or present call, whatever it is, fails with the returned
    /// error. Waits for the others to make that call, no longer than the collective waits.
    ///
    /// If a rank of lower number refuses at the same time, its error is everybody's.
    pub fn abort(&mut self, step: u64, reason: &str) -> Error {
        let (rank, reason) = (self.collective.rank(), frame::cut(reason).to_string());
        self.refuse(step, Error::Aborted { rank, step, reason })
    }

    /// The collective, for everything that is not a gradient: sums of an evaluation, averaged
    /// statistics, comparing replicas.
    pub fn collective(&mut self) -> &mut dyn Collective {
        &mut *self.collective
    }

    /// How the flat gradient is laid out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What surrounds the scheme: what was given, and the scheme's habits where it was silent.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// With error feedback: what this rank has not said yet, in the gradient's layout.
    pub fn residual(&self) -> Option<&[f32]> {
        self.feedback.as_ref().map(Feedback::residual)
    }

    /// Everything of this rank that later messages depend on: `residual` (the flat one, whatever
    /// the bucketing) and the compressors' own entries under `bucket.N/`.
    pub fn save(&self) -> State {
        let mut state = State::default();
        if let Some(residual) = self.residual() {
            state.insert("residual", Entry::F32(residual.to_vec()));
        }
        if let Some(velocity) = self.feedback.as_ref().and_then(Feedback::velocity) {
            state.insert("velocity", Entry::F32(velocity.to_vec()));
        }
        for (number, bucket) in self.buckets.iter().enumerate() {
            if let Some(compressor) = &bucket.compressor {
                let mut inner = State::default();
                compressor.save(&mut inner);
                state.insert_scope(&format!("bucket.{number}"), inner);
            }
        }
        state
    }

    /// Takes up what [`save`](Self::save) returned.
    ///
    /// # Errors
    /// [`Error::State`] when an entry is missing or does not fit, or when there is a residual
    /// that this scheme would silently lose.
    pub fn restore(&mut self, state: &State) -> Result<()> {
        let corrects = self.feedback.as_ref().is_some_and(Feedback::momentum_is_on);
        for (entry, kept, without) in [
            ("residual", self.feedback.is_some(), "error feedback"),
            ("velocity", corrects, "momentum correction"),
        ] {
            if !kept && state.contains(entry) {
                return Err(Error::State {
                    entry: entry.to_string(),
                    problem: format!("would be lost: this exchange runs without {without}"),
                });
            }
        }
        let entry = |name, kept: bool| match kept {
            true => state.f32s(name, self.layout.len()),
            false => Ok(&[][..]),
        };
        let residual = entry("residual", self.feedback.is_some())?;
        let velocity = entry("velocity", corrects)?;
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            if let Some(compressor) = &mut bucket.compressor {
                compressor.restore(&state.scope(&format!("bucket.{number}")))?;
            }
        }
        if let Some(feedback) = &mut self.feedback {
            feedback.set(residual, velocity);
        }
        Ok(())
    }

    fn is_dense(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.compressor.is_none())
    }

    fn header(&self, kind: Kind, step: u64, bucket: usize) -> Header {
        let (rank, world_size) =
            (self.collective.rank() as u16, self.collective.world_size() as u16);
        Header { kind, rank, world_size, step, bucket: bucket as u32 }
    }

    fn spare_buffer(&mut self) -> Vec<u8> {
        if self.sent.len() < 2 {
            return Vec::new();
        }
        self.sent.remove(0).reclaim().unwrap_or_default()
    }

    /// Writes one frame for each bucket, and prepares the new residual. Returns false when the
    /// gradient is not finite; then nothing that lasts has been touched.
    fn encode(
        &mut self,
        step: u64,
        gradient: &mut [f32],
        traffic: &mut Traffic,
        mine: &mut Vec<u8>,
    ) -> bool {
        let scale = self.clipping(gradient);
        let finite = match &mut self.feedback {
            Some(feedback) => feedback.correct(gradient, scale),
            // Plain frames are checked while they are copied.
            None => {
                if scale != 1.0 {
                    gradient.iter_mut().for_each(|value| *value *= scale);
                }
                self.is_dense() || floats::all_finite(gradient)
            }
        };
        if !finite {
            return false;
        }
        let warm = step > self.policy.warmup_steps.unwrap_or(0);
        let measures = self.policy.measures(step);
        let masks = self.policy.momentum() > 0.0 && self.policy.momentum_masking.unwrap_or(true);
        let header = self.header(Kind::Dense, step, 0);
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            let corrected = self.feedback.as_ref().map(Feedback::corrected);
            let (source, compressor) = bucket.view(corrected.unwrap_or(gradient));
            let open = Header { bucket: number as u32, ..header }.open(mine);
            let payload_at = open.payload_at();
            let mut kind = Kind::Dense;
            if let Some(compressor) = compressor.filter(|_| warm) {
                let encoded = compressor.encode(source, step, mine);
                if encoded == Encoded::Dense || mine.len() - payload_at > size_of_val(source) {
                    mine.truncate(payload_at);
                    traffic.dense_fallbacks += 1;
                } else {
                    kind = Kind::Compressed;
                }
                if measures {
                    self.distortion.add(&**compressor, source, &mine[payload_at..]);
                }
            }
            if kind == Kind::Dense && !floats::put_checked(source, mine) {
                return false;
            }
            if let Some(feedback) = &mut self.feedback {
                let message = (kind == Kind::Compressed).then(|| &mine[payload_at..]);
                take_off(feedback, bucket, message, masks);
            }
            open.close(kind, mine);
        }
        true
    }

    /// What local clipping multiplies this rank's gradient by.
    fn clipping(&self, gradient: &[f32]) -> f32 {
        let Some(limit) = self.policy.clip_norm.filter(|limit| *limit > 0.0) else { return 1.0 };
        let limit = limit / (self.collective.world_size() as f64).sqrt();
        let norm = floats::norm(gradient);
        if norm > limit { (limit / norm) as f32 } else { 1.0 }
    }

    /// Where this rank's gradient, or its sum with the residual, is not finite.
    fn non_finite(&self, step: u64, gradient: &[f32]) -> Error {
        let corrected = self.feedback.as_ref().map(Feedback::corrected);
        let places =
            [(Quantity::Gradient, gradient), (Quantity::Corrected, corrected.unwrap_or(&[]))];
        let (quantity, position) = places
            .into_iter()
            .find_map(|(quantity, values)| Some((quantity, floats::first_non_finite(values)?)))
            .expect("invariant: a value was seen to be non-finite");
        let (parameter, index) = self.place(position);
        Error::NonFinite { rank: self.collective.rank(), step, quantity, parameter, index }
    }

    /// The parameter that holds a position of the gradient, and the element in it.
    fn place(&self, position: usize) -> (String, usize) {
        let (parameter, index) =
            self.layout.locate(position).expect("invariant: every position lies in a parameter");
        (frame::cut(&parameter.name).to_string(), index)
    }

    /// Tells every rank this rank's own error instead of what they await, and returns the error
    /// that all of them return.
    fn refuse(&mut self, step: u64, own: Error) -> Error {
        let mut mine = Vec::new();
        frame::write_refusal(self.header(Kind::Abort, step, 0), &own, &mut mine);
        match self.collective.allgather(mine) {
            Ok(messages) => first_refusal(&messages).unwrap_or(own),
            Err(_) => own,
        }
    }

    /// The frames of all messages, by rank and then by bucket, each checked to be in its place.
    fn open<'a>(&self, step: u64, messages: &'a [Payload]) -> Result<Vec<Frame<'a>>> {
        if let Some(refusal) = first_refusal(messages) {
            return Err(refusal);
        }
        let awaited = Awaited::Gradient { step };
        let mut frames = Vec::with_capacity(messages.len() * self.buckets.len());
        for (from, message) in messages.iter().enumerate() {
            let mut reader = Reader::new(message);
            for bucket in 0..self.buckets.len() {
                let expected = self.header(Kind::Dense, step, bucket).from_rank(from);
                let frame = Frame::expect(&mut reader, expected, self.collective.rank());
                frames.push(frame.map_err(|error| error.sent_by(from, awaited))?);
            }
            reader.finish().map_err(|fault| Error::Message { rank: from, awaited, fault })?;
        }
        Ok(frames)
    }

    /// Overwrites the gradient by the mean of what the frames say.
    fn average(&mut self, step: u64, frames: &[Frame<'_>], gradient: &mut [f32]) -> Result<()> {
        let (rank, ranks, buckets) =
            (self.collective.rank(), self.collective.world_size(), self.buckets.len());
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            let of_ranks = frames[number..].iter().step_by(buckets);
            let finite = bucket.change(gradient, |mean, compressor| {
                let finite = mean_of(rank, step, of_ranks, compressor, 1.0 / ranks as f32, mean)?;
                Ok::<_, Error>(if finite { None } else { floats::first_non_finite(mean) })
            })?;
            if let Some(element) = finite {
                let (parameter, index) = self.place(self.buckets[number].position(element));
                return Err(Error::NonFiniteMean { step, parameter, index });
            }
        }
        Ok(())
    }
}

/// Takes off a bucket's unsaid part what its message says, or everything if it was sent as it is;
/// with `masks`, the momentum of what a message speaks of ends.
fn take_off(feedback: &mut Feedback, bucket: &mut Bucket, message: Option<&[u8]>, masks: bool) {
    bucket.change(feedback.unsaid(), |unsaid, compressor| match (message, compressor) {
        (Some(message), Some(compressor)) => compressor
            .decode_add(message, -1.0, unsaid)
            .expect("invariant: a compressor reads its own message"),
        _ => unsaid.fill(0.0),
    });
    let sent = bucket.compressor.as_ref().filter(|_| message.is_some()).and_then(|c| c.sent());
    if let Some(sent) = sent.filter(|_| masks) {
        sent.iter().for_each(|element| feedback.mask(bucket.position(*element as usize)));
    }
}

/// Overwrites `mean` by the mean of what the ranks' frames of one bucket say; tells whether all of
/// it is finite. `by` is the rank that reads.
fn mean_of<'a>(
    by: usize,
    step: u64,
    frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
    compressor: Option<&dyn Compressor>,
    scale: f32,
    mean: &mut [f32],
) -> Result<bool> {
    let blame = |rank| move |error: Error| error.sent_by(rank, Awaited::Gradient { step });
    if frames.clone().all(|frame| frame.header.kind == Kind::Dense) {
        let plain = |(rank, frame): (usize, &Frame<'a>)| {
            floats::expect(frame.payload, mean.len()).map_err(Error::from).map_err(blame(rank))
        };
        let parts = frames.enumerate().map(plain).collect::<Result<Vec<_>>>()?;
        return Ok(floats::mean_of(&parts, scale, mean));
    }
    mean.fill(0.0);
    for (rank, Frame { header, payload }) in frames.enumerate() {
        let decoder: &dyn Compressor = match (header.kind, compressor) {
            (Kind::Compressed, Some(compressor)) => compressor,
            (Kind::Compressed, None) => {
                // A compressed frame where this rank has only plain ones.
                let expected = Header { kind: Kind::Dense, ..*header };
                return Err(Error::OutOfStep { by, expected, found: *header });
            }
            _ => &Dense,
        };
        decoder.decode_add(payload, 1.0, mean).map_err(blame(rank))?;
    }
    Ok(floats::scale_checked(mean, scale))
}

/// The error of the lowest rank that refused instead of sending what was awaited.
fn first_refusal(messages: &[Payload]) -> Option<Error> {
    messages.iter().enumerate().find_map(|(from, message)| {
        let frame = Frame::read(&mut Reader::new(message)).ok()?;
        (usize::from(frame.header.rank) == from).then(|| frame.refusal().err())?
    })
}
