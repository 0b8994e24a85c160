//! Processes that a launcher has started, joined by MPI.
//!
//! One thread in each process, the courier, is the only one that calls MPI, from beginning to end
//! (`MPI_THREAD_SERIALIZED` is all that is asked for): the messages between ranks go through its
//! desk. The courier makes no blocking calls: it starts to send and receive, asks whether that is
//! done, and attends to the desk meanwhile. So the desk's clock detects a process that is stopped
//! or gone, and every wait is bounded; MPI's own waits at the beginning and at the end are bounded
//! by [`join`] and [`Cluster::leave`].
//!
//! A buffer must live until its message has been sent or received; rsmpi's scopes ensure that. When
//! the courier starts to send while it is still sending something else, the new scope therefore
//! lies within the earlier one: such transfers are nested calls, each on its own part of the stack.
//! Receiving never nests, and waits for nothing but a message that is already on its way: MPI moves
//! that message whenever its sender calls any function of MPI, which a courier does all the time.
//! So a courier goes on receiving everything that it is sent, whatever it is sending itself, and no
//! two couriers wait for each other.
//!
//! Sums are not made by MPI: no order is promised for those of `MPI_Allreduce`, and replicas must
//! stay the same, bit for bit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use ::mpi::environment::Universe;
use ::mpi::point_to_point::{Message, Status};
use ::mpi::request::{LocalScope, Request, scope};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, Equivalence, Source};
use ::mpi::{Tag, Threading};

use super::cluster::desk::{Desk, Lane, Next, Shipment};
use super::cluster::{Cluster, Letters, courier};
use crate::{Error, Result};

/// The longest message that MPI is given, in bytes; longer ones are sent in pieces.
///
/// MPI sends a short message at once; before a longer one it asks the receiver whether it may.
/// Where both directions share a TCP connection, the receiver's answer queues behind everything
/// that the receiver is sending itself: two processes that send each other long messages at the
/// same time would do so one after the other, at half the link's speed. Open MPI's and MPICH's
/// limit over TCP is 64 KiB, header included.
pub const LONGEST: usize = 60 << 10;

/// How many times sending may be nested; more waits for one of these to end.
const DEEPEST: usize = 48;

/// How many messages from one process are received before others have their turn.
const AT_A_TIME: usize = 16;

/// While something is expected, the courier only yields the processor between two looks, until
/// nothing has moved for this long; after that it naps between them.
const KEEN: Duration = Duration::from_micros(200);
const SHORT_NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(2);

/// A process's place on its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Here {
    /// Which of the machine's processes this is, counted from 0.
    pub index: usize,
    /// How many of them there are.
    pub processes: usize,
}

/// Joins the processes that the launcher (`mpirun`, `srun`) has started.
///
/// # Errors
/// [`Error::Transport`] when MPI cannot be set up, or takes longer than `patience`: then this
/// process should exit, which tells the launcher.
pub fn join(patience: Duration, letters: Letters) -> Result<(Cluster, Here)> {
    join_in_pieces(patience, LONGEST, letters)
}

/// The same, with another longest message.
///
/// # Errors
/// As [`join`].
pub fn join_in_pieces(
    patience: Duration,
    longest: usize,
    letters: Letters,
) -> Result<(Cluster, Here)> {
    let (ready, joined) = channel();
    let begin = move || {
        let Some((universe, threading)) = ::mpi::initialize_with_threading(Threading::Serialized)
        else {
            let problem = "MPI is in use already in this process".to_string();
            return drop(ready.send(Err(Error::Transport { problem })));
        };
        if threading < Threading::Funneled {
            let problem = format!(
                "this MPI library allows no threads beside the one that calls it ({threading:?})"
            );
            return drop(ready.send(Err(Error::Transport { problem })));
        }
        let world = universe.world();
        // What MPI has made must be gone before MPI is.
        let here = {
            let machine = world.split_shared(world.rank());
            Here { index: machine.rank() as usize, processes: machine.size() as usize }
        };
        let (desk, cluster) = courier(world.rank() as usize, world.size() as usize, letters);
        // If nobody takes it, nobody will ever call.
        let _ = ready.send(Ok((cluster, here)));
        let lanes = [world.duplicate(), world.duplicate()];
        Transport::new(lanes, desk, longest.clamp(1, LONGEST)).run(universe);
    };
    let cannot = |problem: String| Error::Transport { problem };
    thread::Builder::new()
        .name("courier".to_string())
        .stack_size(16 << 20)
        .spawn(begin)
        .map_err(|error| cannot(error.to_string()))?;
    joined.recv_timeout(patience).map_err(|_| {
        cannot(format!("MPI was not set up within {patience:?}: did all processes start?"))
    })?
}

/// Pieces on their way to one process on one lane, and their tags.
type Line<'a> = VecDeque<(&'a [u8], Tag)>;

/// What moves a desk's parcels.
struct Transport {
    /// A communicator for each lane: within one, messages arrive in the order sent.
    lanes: [SimpleCommunicator; 2],
    desk: Desk,
    longest: usize,
    /// Whether pieces of parcels are still to be sent: other parcels wait, so that all stay in order.
    cutting: bool,
    /// Of each process and lane, the pieces of a parcel that have arrived.
    pieces: Vec<[Vec<u8>; 2]>,
    /// When something last moved.
    moved: Instant,
}

/// The tag of a parcel or its last piece, and that of a piece before the last.
const LAST: Tag = 0;
const PIECE: Tag = 1;

impl Transport {
    fn new(lanes: [SimpleCommunicator; 2], desk: Desk, longest: usize) -> Self {
        let processes = lanes[0].size() as usize;
        Self {
            lanes,
            desk,
            longest,
            cutting: false,
            pieces: vec![Default::default(); processes],
            moved: Instant::now(),
        }
    }

    /// Works until the process takes its leave, then leaves MPI.
    fn run(mut self, universe: Universe) {
        while self.progress(0) == Next::GoOn {
            self.rest(self.desk.is_waiting());
        }
        let Self { lanes, desk, .. } = self;
        drop(lanes);
        // This may wait for the others; the desk's end says that it is over.
        drop(universe);
        drop(desk);
    }

    /// Does whatever can be done without waiting; at the end, everything that is still to be sent.
    fn progress(&mut self, depth: usize) -> Next {
        let here = self.lanes[0].rank() as usize;
        for process in (0..self.pieces.len()).filter(|process| *process != here) {
            for lane in [Lane::Rounds, Lane::Letters] {
                self.receive(process, lane);
            }
        }
        let next = self.look();
        if depth < DEEPEST && !self.cutting {
            let shipments = self.desk.outgoing();
            if !shipments.is_empty() {
                self.send(&shipments, depth);
            }
        }
        next
    }

    /// Attends to what the ranks have asked, such as to end all.
    fn look(&mut self) -> Next {
        let next = self.desk.look();
        if let Next::Abort(code) = next {
            self.lanes[0].abort(code);
        }
        next
    }

    /// Receives messages that are there, if any.
    fn receive(&mut self, process: usize, lane: Lane) {
        let at = lane as usize;
        for _ in 0..AT_A_TIME {
            let source = self.lanes[at].process_at_rank(process as i32);
            let Some((message, status)) = source.immediate_matched_probe() else { return };
            let mut parcel = std::mem::take(&mut self.pieces[process][at]);
            self.take(message, &status, &mut parcel);
            if status.tag() == PIECE {
                self.pieces[process][at] = parcel;
            } else {
                self.desk.arrived(process, lane, parcel);
            }
        }
    }

    /// Appends the bytes of a message that has been matched. Does not return before they are there,
    /// nor sends or receives anything else meanwhile.
    fn take(&mut self, message: Message, status: &Status, parcel: &mut Vec<u8>) {
        let before = parcel.len();
        let count = status.count(u8::equivalent_datatype());
        parcel.resize(before + count as usize, 0);
        scope(|scope| {
            let mut request = message.immediate_matched_receive_into(scope, &mut parcel[before..]);
            while let Err(under_way) = request.test() {
                request = under_way;
                self.look();
                self.rest(true);
            }
            self.moved = Instant::now();
        });
    }

    /// Sends parcels: to all processes and on both lanes at the same time, within a lane one after
    /// the other.
    fn send(&mut self, shipments: &[Shipment], depth: usize) {
        let mut lines: BTreeMap<(usize, usize), Line<'_>> = BTreeMap::new();
        for Shipment { to, lane, bytes } in shipments {
            let line = lines.entry((*to, *lane as usize)).or_default();
            let last = bytes.len().saturating_sub(1) / self.longest * self.longest;
            let pieces = bytes[..last].chunks(self.longest).map(|piece| (piece, PIECE));
            line.extend(pieces.chain([(&bytes[last..], LAST)]));
        }
        scope(|scope| {
            let mut requests = VecDeque::new();
            self.cutting = true;
            while !lines.is_empty() {
                lines.retain(|(to, lane), line| {
                    let to = self.lanes[*lane].process_at_rank(*to as i32);
                    let next = line.pop_front();
                    let send = |(piece, tag)| to.immediate_send_with_tag(scope, piece, tag);
                    requests.extend(next.map(send));
                    !line.is_empty()
                });
                // What comes the other way does not wait until everything is sent.
                self.progress(depth + 1);
            }
            self.cutting = false;
            self.finish(requests, depth);
        });
    }

    /// Waits until all requests are done, and does what else there is to do meanwhile.
    fn finish<'s>(
        &mut self,
        mut requests: VecDeque<Request<'s, [u8], &LocalScope<'s>>>,
        depth: usize,
    ) {
        loop {
            while let Some(oldest) = requests.pop_front() {
                if let Err(oldest) = oldest.test() {
                    requests.push_front(oldest);
                    break;
                }
                self.moved = Instant::now();
            }
            if requests.is_empty() {
                return;
            }
            self.progress(depth + 1);
            self.rest(true);
        }
    }

    /// Gives the processor to others for a moment: the shorter, the sooner something is expected.
    fn rest(&self, expecting: bool) {
        let still = self.moved.elapsed();
        match (expecting, still < KEEN) {
            (true, true) => thread::yield_now(),
            (true, false) => thread::park_timeout(SHORT_NAP),
            (false, _) => thread::park_timeout(LONG_NAP),
        }
    }
}
