//! Buckets, and one group of them on its way: the message that this rank sends about it, what all ranks
//! sent, and the mean that comes of it.

use std::ops::Range;
use std::sync::Arc;

use crate::collective::{Collective, Payload, Spare};
use crate::compress::{Built, Compressor, Feedback};
use crate::error::Awaited;
use crate::layout::BucketRange;
use crate::reducer::Mail;
use crate::refusal;
use crate::support::{KnownZeros, Touched};
use crate::traffic::{Leg, Stopwatch};
use crate::wire::frame::Unchecked;
use crate::wire::{Frame, Header, Kind, Reader, floats};
use crate::{Error, Gauge, Layout, Result, State};

/// What one rank has of the exchange: its buckets, its residual, its end of the collective.
pub(crate) struct Member {
    pub(crate) layout: Layout,
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) feedback: Option<Feedback>,
    pub(crate) collective: Ranks,
    pub(crate) zeros: KnownZeros,
    /// Of each group, the buffers of its last messages.
    pub(crate) buffers: Vec<Buffers>,
}

/// All ranks, in groups of the same size that speak as one (`levels.rs`); of one each where every rank
/// speaks for itself.
pub(crate) struct Ranks {
    /// Every rank by itself.
    pub(crate) all: Box<dyn Collective>,
    /// How many ranks speak as one; 1 where each speaks for itself.
    pub(crate) ranks_per_group: usize,
    /// Bytes that this rank has sent within its group since they were last asked for.
    pub(crate) sent_within: u64,
}

impl Ranks {
    /// Whether this rank sends what its group has to say.
    pub(crate) fn speaks(&self) -> bool {
        self.all.rank().is_multiple_of(self.ranks_per_group)
    }
}

/// The collective between groups: `rank` is the group's number, `world_size` the number of groups.
impl Collective for Ranks {
    fn rank(&self) -> usize {
        self.all.rank() / self.ranks_per_group
    }

    fn world_size(&self) -> usize {
        self.all.world_size() / self.ranks_per_group
    }

    fn shares_memory(&self) -> bool {
        self.all.shares_memory()
    }

    fn divides(&self) -> bool {
        self.all.divides()
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        if self.ranks_per_group == 1 { self.all.allgather(mine) } else { self.between(mine) }
    }

    fn alltoall(&mut self, mine: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        if self.ranks_per_group == 1 { self.all.alltoall(mine) } else { self.across(mine) }
    }
}

/// A bucket of one rank: parameters that are reduced as one.
pub(crate) struct Bucket {
    /// Its elements in the flat gradient.
    pub(crate) range: Range<usize>,
    /// What its gradient is reduced by.
    pub(crate) engine: Built,
    /// What its reducer posts in a round, if it has one, and what came of it.
    pub(crate) mail: Mail,
    /// What its last messages spoke of, if they can be read by blocks.
    pub(crate) touched: Option<Touched>,
    /// Whether what it leaves unsent is kept as its residual, where the exchange keeps one; else it is dropped.
    pub(crate) feeds_back: bool,
}

impl Bucket {
    pub(crate) fn new(place: &BucketRange, built: Built, feeds_back: bool) -> Self {
        let range = place.range.clone();
        let engine = if range.is_empty() { Built::Plain } else { built };
        let (mail, touched) = (Mail::default(), None);
        let mut bucket = Self { range, engine, mail, touched, feeds_back };
        if bucket.codec_mut().is_some_and(|compressor| compressor.sparse_blocks().is_some()) {
            bucket.touched = Some(Touched::new(bucket.length()));
        }
        bucket
    }

    /// Elements.
    pub(crate) fn length(&self) -> usize {
        self.range.len()
    }

    /// Its elements of a flat vector.
    pub(crate) fn elements<'a>(&self, flat: &'a [f32]) -> &'a [f32] {
        &flat[self.range.clone()]
    }

    /// Its elements of a flat vector, to be changed.
    pub(crate) fn elements_mut<'a>(&self, flat: &'a mut [f32]) -> &'a mut [f32] {
        &mut flat[self.range.clone()]
    }

    /// What encodes and decodes it, if that is one message.
    pub(crate) fn codec(&self) -> Option<&dyn Compressor> {
        match &self.engine {
            Built::Codec(compressor) => Some(&**compressor),
            _ => None,
        }
    }

    /// Whether its values travel as f32 at every step.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.engine, Built::Plain)
    }

    /// The same as [`codec`](Self::codec), to encode with or to learn.
    pub(crate) fn codec_mut(&mut self) -> Option<&mut (dyn Compressor + 'static)> {
        match &mut self.engine {
            Built::Codec(compressor) => Some(&mut **compressor),
            _ => None,
        }
    }

    /// Where the mean of what its reducer posted goes: so many zeros.
    pub(crate) fn posted_mean(&mut self, length: usize) -> &mut [f32] {
        self.mail.mean.clear();
        self.mail.mean.resize(length, 0.0);
        &mut self.mail.mean
    }

    /// What its compressor or reducer tells about the last step.
    pub(crate) fn gauges(&self) -> &[Gauge] {
        match &self.engine {
            Built::Plain => &[],
            Built::Codec(compressor) => compressor.gauges(),
            Built::Reducer(reducer) => reducer.gauges(),
        }
    }

    /// Ends a step's feedback: what buckets that feed back have left unsent is their residual now, and what others
    /// have is dropped.
    pub(crate) fn keep_unsent(buckets: &[Bucket], feedback: &mut Feedback) {
        for bucket in buckets.iter().filter(|bucket| !bucket.feeds_back) {
            bucket.elements_mut(feedback.due_mut()).fill(0.0);
        }
        feedback.commit();
    }

    /// Puts the entries of every compressor and reducer of those that are `owned` into `state`, under
    /// `bucket.N/`.
    pub(crate) fn save_all(buckets: &[Bucket], owned: &[bool], state: &mut State) {
        for (number, bucket) in buckets.iter().enumerate().filter(|(number, _)| owned[*number]) {
            let mut inner = State::default();
            match &bucket.engine {
                Built::Plain => continue,
                Built::Codec(compressor) => compressor.save(&mut inner),
                Built::Reducer(reducer) => reducer.save(&mut inner),
            }
            state.insert_scope(&format!("bucket.{number}"), inner);
        }
    }

    /// Takes up what [`save_all`](Self::save_all) put there.
    pub(crate) fn restore_all(buckets: &mut [Bucket], owned: &[bool], state: &State) -> Result<()> {
        for (number, bucket) in buckets.iter_mut().enumerate().filter(|(number, _)| owned[*number])
        {
            let inner = || state.scope(&format!("bucket.{number}"));
            match &mut bucket.engine {
                Built::Plain => {}
                Built::Codec(compressor) => compressor.restore(&inner())?,
                Built::Reducer(reducer) => reducer.restore(&inner())?,
            }
        }
        Ok(())
    }
}

/// What one frame of a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) bucket: usize,
    /// Elements.
    pub(crate) length: usize,
    /// What place the frame has: `Dense` for a bucket's gradient (its frame may be `Compressed`), `Values` or `Bytes` for what
    /// its reducer posted.
    pub(crate) kind: Kind,
    /// The round of the step.
    pub(crate) round: u8,
    /// Whether no compressor reads the frames: they hold f32 values, or bytes that a reducer reads.
    pub(crate) plain: bool,
}

impl Item {
    /// A bucket's gradient.
    pub(crate) fn gradient(bucket: usize, held: &Bucket, plain: bool) -> Self {
        let plain = plain || held.is_plain();
        Self { bucket, length: held.length(), kind: Kind::Dense, round: 0, plain }
    }

    /// What a bucket's reducer posted in a round.
    pub(crate) fn values(bucket: usize, length: usize, round: u8) -> Self {
        Self { bucket, length, kind: Kind::Values, round, plain: true }
    }

    /// Bytes that a bucket's reducer posted in a round.
    pub(crate) fn bytes(bucket: usize, round: u8) -> Self {
        Self { bucket, length: 0, kind: Kind::Bytes, round, plain: true }
    }

    /// What reads messages about it; `None` when there are only plain ones.
    pub(crate) fn decoder(self, buckets: &[Bucket]) -> Option<&dyn Compressor> {
        buckets[self.bucket].codec().filter(|_| !self.plain)
    }
}

/// One message about a group of buckets that is being exchanged.
pub(crate) struct GroupExchange<'a> {
    pub(crate) member: &'a mut Member,
    pub(crate) context: StepContext,
    /// What the message is about.
    pub(crate) items: &'a [Item],
    pub(crate) gradient: &'a mut [f32],
    pub(crate) leg: &'a mut Leg,
}

/// What a rank has received about the items of a message, kept until the step is finished.
pub(crate) enum Received {
    /// Every rank's message, its own included, in order of rank.
    Messages(Vec<Payload>),
    /// Its own message, and what the owner of each bucket says of the mean.
    Mean { mine: Payload, answers: Vec<Payload>, owners: Arc<[usize]> },
    /// At most its own: nobody receives whole messages, and nobody learns from them.
    Own(Option<Payload>),
}

impl Received {
    /// What rank `rank` sent, when it was this one.
    pub(crate) fn into_mine(self, rank: usize) -> Option<Payload> {
        match self {
            Received::Messages(messages) => messages.into_iter().nth(rank),
            Received::Mean { mine, .. } => Some(mine),
            Received::Own(mine) => mine,
        }
    }
}

impl GroupExchange<'_> {
    /// Gives `mine` to every rank, and overwrites the items by the mean of what all of them sent.
    pub(crate) fn allgather_mean(&mut self, mine: Vec<u8>) -> Result<Received> {
        let messages = self.allgather(mine)?;
        let received = Stopwatch::start();
        self.mean_of_messages(&messages)?;
        self.leg.add_decode(received);
        Ok(Received::Messages(messages))
    }

    /// Gives `mine` to every rank and takes everybody's.
    pub(crate) fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let (sent, awaited) = (Stopwatch::start(), self.context.awaited());
        let messages = self.member.collective.allgather(mine);
        let messages = messages.map_err(|error| error.awaiting(awaited))?;
        self.leg.add_wait(sent);
        let (found, ranks) = (messages.len(), self.context.world_size);
        if found != ranks {
            let problem = format!("an allgather of {ranks} ranks gave {found} messages");
            return Err(Error::Transport { problem });
        }
        Ok(messages)
    }

    /// The buffers of the group.
    pub(crate) fn buffers(&mut self) -> &mut Buffers {
        &mut self.member.buffers[self.leg.group]
    }

    /// What reads messages about an item.
    pub(crate) fn decoder(&self, item: Item) -> Option<&dyn Compressor> {
        item.decoder(&self.member.buckets)
    }

    /// Overwrites all items by the mean of what the messages say.
    pub(crate) fn mean_of_messages(&mut self, messages: &[Payload]) -> Result<()> {
        let (context, items) = (self.context, self.items);
        let as_sent = self.member.feedback.is_none();
        let frames = context.open(items, messages)?;
        for (index, item) in items.iter().enumerate() {
            let of_ranks = frames[index..].iter().step_by(items.len());
            let bucket = &mut self.member.buckets[item.bucket];
            let averaged = match item.kind {
                Kind::Values => context.mean_of_values(of_ranks, bucket.posted_mean(item.length)),
                _ => context.mean_of_bucket(bucket, *item, of_ranks, as_sent, self.gradient),
            };
            if let Some(element) = averaged? {
                return Err(self.overflow(*item, element));
            }
            self.note_zeros(*item);
        }
        Ok(())
    }

    /// Overwrites elements of an item's mean, from `start` on.
    pub(crate) fn put(&mut self, item: Item, start: usize, values: &[[u8; 4]]) {
        let bucket = &mut self.member.buckets[item.bucket];
        match item.kind {
            Kind::Values => {
                bucket.mail.mean.resize(item.length, 0.0);
                floats::copy(values, &mut bucket.mail.mean[start..]);
            }
            _ => self.member.zeros.put(bucket.range.start + start, values, self.gradient),
        }
    }

    /// Notes where the mean of an item may be other than zero.
    pub(crate) fn note_zeros(&mut self, item: Item) {
        let bucket = &self.member.buckets[item.bucket];
        if item.kind == Kind::Dense {
            self.member.zeros.note(&bucket.range, bucket.touched.as_ref());
        }
    }

    /// The mean of this element of an item is not finite.
    pub(crate) fn overflow(&self, item: Item, element: usize) -> Error {
        let start = self.member.buckets[item.bucket].range.start;
        let gradient = item.kind == Kind::Dense;
        let (mut parameter, mut index) =
            self.member.layout.name(start + if gradient { element } else { 0 });
        if !gradient {
            index = element;
            parameter = format!("{parameter} (values of round {} of its bucket)", item.round);
        }
        Error::NonFiniteMean { step: self.context.step, parameter, index }
    }
}

/// Which rank, of how many, is at which step: what frames of the step are written and checked by. Where
/// ranks speak in groups, a group counts as one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepContext {
    /// The rank that reads.
    pub(crate) rank: usize,
    /// The number of ranks.
    pub(crate) world_size: usize,
    /// The step, and which exchange it has: what compressors count by.
    pub(crate) step: u64,
    pub(crate) exchange: u64,
    /// How many ranks speak as one.
    pub(crate) ranks_per_group: usize,
}

impl StepContext {
    /// The header of a frame that this rank writes about a bucket.
    pub(crate) fn header(self, kind: Kind, bucket: usize) -> Header {
        let world_size = (self.world_size * self.ranks_per_group) as u16;
        let header = Header { kind, rank: 0, world_size, step: self.step, bucket: bucket as u32 };
        self.sent_by(self.rank, header)
    }

    /// The header of a frame of whoever is counted as rank `from`.
    pub(crate) fn sent_by(self, from: usize, header: Header) -> Header {
        header.from_rank(from * self.ranks_per_group)
    }

    /// Tells of an error that it is about what rank `from` has sent.
    pub(crate) fn blame(self, from: usize) -> impl Fn(Error) -> Error {
        move |error| error.sent_by(from * self.ranks_per_group, self.awaited())
    }

    /// The header of a frame that this rank writes about an item.
    pub(crate) fn header_of(self, kind: Kind, item: Item) -> Header {
        self.header(kind, item.bucket).in_round(item.round)
    }

    /// What this rank waits for.
    pub(crate) fn awaited(&self) -> Awaited {
        Awaited::Gradient { step: self.step }
    }

    /// The frames of all messages about some items, by rank and then in the items' order, each
    /// checked to be whole and in its place.
    pub(crate) fn open<'a>(
        self,
        items: &[Item],
        messages: &'a [Payload],
    ) -> Result<Vec<Frame<'a>>> {
        let frames = self.split(items, messages)?;
        let check = |(index, unchecked): (usize, &Unchecked<'a>)| {
            unchecked.check().map_err(Error::from).map_err(self.blame(index / items.len()))
        };
        frames.iter().enumerate().map(check).collect()
    }

    /// The same without looking at checksums: for messages of which others check some, or that
    /// have been opened before. Whatever is wrong here is wrong on every rank.
    pub(crate) fn skim<'a>(
        self,
        items: &[Item],
        messages: &'a [Payload],
    ) -> Result<Vec<Frame<'a>>> {
        let frames = self.split(items, messages)?;
        Ok(frames.into_iter().map(|unchecked| unchecked.frame).collect())
    }

    /// The same as [`skim`](Self::skim), each frame with its checksum still to be looked at.
    pub(crate) fn split<'a>(
        self,
        items: &[Item],
        messages: &'a [Payload],
    ) -> Result<Vec<Unchecked<'a>>> {
        if let Some(refusal) = refusal::first(messages, self.ranks_per_group) {
            return Err(refusal);
        }
        let mut frames = Vec::with_capacity(messages.len() * items.len());
        for (from, message) in messages.iter().enumerate() {
            let blame = self.blame(from);
            let mut reader = Reader::new(message);
            for item in items {
                let expected = self.sent_by(from, self.header_of(item.kind, *item));
                let unchecked = Frame::split(&mut reader).map_err(Error::from).map_err(&blame)?;
                let awaited = unchecked.frame.awaited(expected, self.rank).and_then(|frame| {
                    // A scheme's own form where this rank has plain values only.
                    let (by, found) = (self.rank, frame.header);
                    match found.kind == Kind::Compressed && item.plain {
                        true => Err(Error::OutOfStep { by, expected, found }),
                        false => Ok(()),
                    }
                });
                if let Err(error) = awaited {
                    // A damaged header tells of a frame that nobody sent.
                    unchecked.check().map_err(Error::from).map_err(&blame)?;
                    return Err(blame(error));
                }
                frames.push(unchecked);
            }
            reader.finish().map_err(Error::from).map_err(blame)?;
        }
        Ok(frames)
    }

    /// Looks at the checksums of the message of rank `from`.
    pub(crate) fn check(self, from: usize, message: &[u8]) -> Result<()> {
        let mut reader = Reader::new(message);
        while !reader.rest().is_empty() {
            Frame::read(&mut reader).map_err(Error::from).map_err(self.blame(from))?;
        }
        Ok(())
    }

    /// Overwrites a bucket's elements by the mean of what the frames of all ranks say; the first
    /// element of the mean that is not finite. `encoded` is without feedback: then the gradient still holds what this rank
    /// encoded, so that of a sparse message only blocks that some rank sent are visited.
    pub(crate) fn mean_of_bucket<'a>(
        self,
        bucket: &mut Bucket,
        item: Item,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        encoded: bool,
        gradient: &mut [f32],
    ) -> Result<Option<usize>> {
        let mut touched = bucket.touched.take();
        let mean = bucket.elements_mut(gradient);
        let sparse = encoded && frames.clone().all(|frame| frame.header.kind == Kind::Compressed);
        let mut compressor = bucket.codec_mut().filter(|_| !item.plain);
        let blocks = compressor.as_mut().filter(|_| sparse).and_then(|some| some.sparse_blocks());
        let finite = match (blocks, &mut touched) {
            (Some(blocks), Some(touched)) => touched.mean(
                (self.rank, self.world_size),
                |from, error| self.blame(from)(error),
                frames,
                blocks,
                mean,
            ),
            (_, touched) => {
                touched.iter_mut().for_each(|touched| touched.known = false);
                self.mean_of(frames, compressor.as_deref(), mean.len(), 0..mean.len(), mean)
            }
        };
        let overflow =
            finite.map(|finite| if finite { None } else { floats::first_non_finite(mean) });
        bucket.touched = touched;
        overflow
    }

    /// Overwrites `mean` by the mean of plain values; the first element of it that is not finite.
    pub(crate) fn mean_of_values<'a>(
        self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        mean: &mut [f32],
    ) -> Result<Option<usize>> {
        let finite = self.mean_of(frames, None, mean.len(), 0..mean.len(), mean)?;
        Ok(if finite { None } else { floats::first_non_finite(mean) })
    }

    /// Overwrites `mean` by the mean of what the ranks' frames about one item of `length` elements
    /// say of the elements `part`: all of them, unless the decoder reads parts. Tells whether all of
    /// it is finite.
    pub(crate) fn mean_of<'a>(
        self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        decoder: Option<&dyn Compressor>,
        length: usize,
        part: Range<usize>,
        mean: &mut [f32],
    ) -> Result<bool> {
        let scale = 1.0 / self.world_size as f32;
        if let Some(parts) = self.plain(frames.clone(), length, part.clone())? {
            return Ok(floats::mean_of(&parts, scale, mean));
        }
        mean.fill(0.0);
        // A compressor that reads ranges is given messages cut to theirs, too.
        let in_own_terms = decoder.is_some_and(|decoder| !decoder.reads_ranges())
            && frames.clone().all(|frame| frame.header.kind == Kind::Compressed);
        for (rank, Frame { header, payload }) in frames.enumerate() {
            let added = match (header.kind, decoder) {
                (Kind::Compressed, Some(decoder)) if in_own_terms => {
                    decoder.add_to_sum(payload, mean)
                }
                (Kind::Compressed, Some(decoder)) => {
                    decoder.decode_add(payload, part.start, 1.0, mean)
                }
                (Kind::Compressed, None) => {
                    // A compressed frame where this rank has only plain ones.
                    let expected = Header { kind: Kind::Dense, ..*header };
                    return Err(Error::OutOfStep { by: self.rank, expected, found: *header });
                }
                _ => floats::expect(payload, length)
                    .map(|values| floats::add(&values[part.clone()], 1.0, mean))
                    .map_err(Error::from),
            };
            added.map_err(self.blame(rank))?;
        }
        if let Some(decoder) = decoder.filter(|_| in_own_terms) {
            decoder.finish_sum(mean);
        }
        Ok(floats::scale_checked(mean, scale))
    }

    /// Averages the elements `part` of an item and appends the mean as a `Shard` frame; `item.length` is the number of elements
    /// in each rank's frame. Returns the first element, counted from `part.start`, whose mean is not finite.
    pub(crate) fn put_mean<'a>(
        self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        decoder: Option<&dyn Compressor>,
        item: Item,
        part: Range<usize>,
        mean: &mut Vec<f32>,
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>> {
        let (open, length) = (self.header_of(Kind::Shard, item).open(out), item.length);
        let written = match self.plain(frames.clone(), length, part.clone())? {
            Some(parts) => floats::put_mean(&parts, 1.0 / self.world_size as f32, out),
            None => {
                mean.clear();
                mean.resize(part.len(), 0.0);
                self.mean_of(frames, decoder, length, part, mean)?;
                floats::put_checked(mean, |_| false, out)
                    .ok_or_else(|| floats::first_non_finite(mean).unwrap_or(0))
            }
        };
        match written {
            Ok(checksum) => {
                open.close_with(Kind::Shard, &checksum, out);
                Ok(None)
            }
            Err(element) => Ok(Some(element)),
        }
    }

    /// The elements `part` of frames that are all plain f32; `None` when one is not.
    fn plain<'a>(
        self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        length: usize,
        part: Range<usize>,
    ) -> Result<Option<Vec<&'a [[u8; 4]]>>> {
        if frames.clone().any(|frame| frame.header.kind == Kind::Compressed) {
            return Ok(None);
        }
        let plain = |(rank, frame): (usize, &Frame<'a>)| {
            let values = floats::expect(frame.payload, length).map_err(Error::from);
            Ok(&values.map_err(self.blame(rank))?[part.clone()])
        };
        frames.enumerate().map(plain).collect::<Result<_>>().map(Some)
    }
}

/// The buffers of one group of buckets on one rank, by what their messages hold.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) messages: Spare,
    pub(crate) plain: Spare,
    pub(crate) bytes: Spare,
    pub(crate) results: Spare,
    /// The mean of one piece of a shard.
    pub(crate) mean: Vec<f32>,
}
