//! Processes that a launcher has started, joined by MPI: each is one rank.
//!
//! One thread in each process is the only one that calls MPI, from beginning to end
//! (`MPI_THREAD_SERIALIZED` is all that is asked for); the rank's thread hands it what is to be sent.
//! It makes no blocking calls: it starts to send and receive, asks whether that is done, and takes
//! orders meanwhile. Who waits for a rank has a clock of its own, so every wait is bounded; MPI's own
//! waits at the beginning and at the end are bounded by [`join`] and [`Cluster::leave`].
//!
//! A buffer must live until its message has been sent or received; rsmpi's scopes ensure that. When
//! MPI's thread starts to send while it is still sending something else, the new scope therefore
//! lies within the earlier one: such transfers are nested calls, each on its own part of the stack.
//! Receiving never nests, and waits for nothing but a message that is already on its way: MPI moves
//! that message whenever its sender calls any function of MPI, which MPI's thread does all the time.
//! So it goes on receiving everything that it is sent, whatever it is sending itself, and no two
//! processes wait for each other.
//!
//! Sums are not made by MPI: no order is promised for those of `MPI_Allreduce`, and replicas must
//! stay the same, bit for bit.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use ::mpi::environment::Universe;
use ::mpi::point_to_point::{Message, Status};
use ::mpi::request::{LocalScope, Request, scope};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, Equivalence, Source};
use ::mpi::{Tag, Threading};

use super::cluster::{Cluster, Inbox, Lane, OnControl, Transport};
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

/// While something is expected, MPI's thread only yields the processor between two looks, until
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
pub fn join(patience: Duration, on_control: OnControl) -> Result<(Cluster, Here)> {
    join_in_pieces(patience, LONGEST, on_control)
}

/// The same, with another longest message.
///
/// # Errors
/// As [`join`].
pub fn join_in_pieces(
    patience: Duration,
    longest: usize,
    on_control: OnControl,
) -> Result<(Cluster, Here)> {
    let inbox = Arc::new(Inbox::new(on_control));
    let (orders, ordered) = channel();
    let (ending, ended) = channel();
    let (ready, joined) = channel();
    let arriving = inbox.clone();
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
        // If nobody takes it, nobody will ever send.
        let _ = ready.send(Ok((world.rank() as usize, world.size() as usize, here)));
        let lanes = [world.duplicate(), world.duplicate()];
        let longest = longest.clamp(1, LONGEST);
        Mover::new(lanes, arriving, ordered, longest, ending).run(universe);
    };
    let cannot = |problem: String| Error::Transport { problem };
    let thread = thread::Builder::new()
        .name("mpi".to_string())
        .stack_size(16 << 20)
        .spawn(begin)
        .map_err(|error| cannot(error.to_string()))?;
    let (rank, world_size, here) = joined.recv_timeout(patience).map_err(|_| {
        cannot(format!("MPI was not set up within {patience:?}: did all processes start?"))
    })??;
    let mpi = Mpi { orders, thread: thread.thread().clone(), ended: Mutex::new(ended) };
    Ok((Cluster::new((rank, world_size), inbox, Arc::new(mpi)), here))
}

/// What is asked of MPI's thread.
enum Order {
    Send(Shipment),
    /// End when everything before is sent.
    Leave,
    /// End all processes at once, with this code.
    Abort(i32),
}

/// Bytes on their way to another process.
struct Shipment {
    to: usize,
    lane: Lane,
    bytes: Arc<Vec<u8>>,
}

/// What the other threads of the process reach MPI's thread by.
struct Mpi {
    orders: Sender<Order>,
    thread: Thread,
    ended: Mutex<Receiver<Infallible>>,
}

impl Mpi {
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.thread.unpark();
    }

    fn has_ended_within(&self, patience: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing is ever sent: the thread's end drops when it has ended.
        ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Transport for Mpi {
    fn send(&self, to: usize, lane: Lane, bytes: Arc<Vec<u8>>) {
        self.order(Order::Send(Shipment { to, lane, bytes }));
    }

    fn leave(&self, patience: Duration) -> bool {
        self.order(Order::Leave);
        self.has_ended_within(patience)
    }

    fn abort(&self, code: i32, patience: Duration) {
        self.order(Order::Abort(code));
        self.has_ended_within(patience);
    }
}

/// Pieces on their way to one process on one lane, and their tags.
type Line<'a> = VecDeque<(&'a [u8], Tag)>;

/// MPI's thread.
struct Mover {
    /// A communicator for each lane: within one, messages arrive in the order sent.
    lanes: [SimpleCommunicator; 2],
    inbox: Arc<Inbox>,
    orders: Receiver<Order>,
    /// What is to be sent next.
    outgoing: Vec<Shipment>,
    leaving: bool,
    longest: usize,
    /// Whether pieces of messages are still to be sent: others wait, so that all stay in order.
    cutting: bool,
    /// Of each process and lane, the pieces of a message that have arrived.
    pieces: Vec<[Vec<u8>; 2]>,
    /// When something last moved.
    moved: Instant,
    /// Dropped at the end.
    _ending: Sender<Infallible>,
}

/// The tag of a message or its last piece, and that of a piece before the last.
const LAST: Tag = 0;
const PIECE: Tag = 1;

impl Mover {
    fn new(
        lanes: [SimpleCommunicator; 2],
        inbox: Arc<Inbox>,
        orders: Receiver<Order>,
        longest: usize,
        _ending: Sender<Infallible>,
    ) -> Self {
        let processes = lanes[0].size() as usize;
        Self {
            lanes,
            inbox,
            orders,
            outgoing: Vec::new(),
            leaving: false,
            longest,
            cutting: false,
            pieces: vec![Default::default(); processes],
            moved: Instant::now(),
            _ending,
        }
    }

    /// Works until the process takes its leave, then leaves MPI.
    fn run(mut self, universe: Universe) {
        while !self.leaving || !self.outgoing.is_empty() {
            self.progress(0);
            if !self.leaving {
                self.rest(self.inbox.awaited().is_some());
            }
        }
        let Self { lanes, _ending, .. } = self;
        drop(lanes);
        // This may wait for the others; the end of the channel says that it is over.
        drop(universe);
        drop(_ending);
    }

    /// Does whatever can be done without waiting; at the end, everything that is still to be sent.
    fn progress(&mut self, depth: usize) {
        let here = self.lanes[0].rank() as usize;
        for process in (0..self.pieces.len()).filter(|process| *process != here) {
            for lane in [Lane::Rounds, Lane::Control] {
                self.receive(process, lane);
            }
        }
        self.take_orders();
        if depth < DEEPEST && !self.cutting && !self.outgoing.is_empty() {
            let outgoing = std::mem::take(&mut self.outgoing);
            self.send(&outgoing, depth);
        }
    }

    /// Takes what the other threads have ordered since, such as to end all.
    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Send(shipment) => self.outgoing.push(shipment),
                Order::Leave => self.leaving = true,
                Order::Abort(code) => self.lanes[0].abort(code),
            }
        }
    }

    /// Receives messages that are there, if any.
    fn receive(&mut self, process: usize, lane: Lane) {
        let at = lane as usize;
        for _ in 0..AT_A_TIME {
            let source = self.lanes[at].process_at_rank(process as i32);
            let Some((message, status)) = source.immediate_matched_probe() else { return };
            let mut bytes = std::mem::take(&mut self.pieces[process][at]);
            self.take(message, &status, &mut bytes);
            if status.tag() == PIECE {
                self.pieces[process][at] = bytes;
            } else {
                self.inbox.arrived(process, lane, Arc::new(bytes));
            }
        }
    }

    /// Appends the bytes of a message that has been matched. Does not return before they are there,
    /// nor sends or receives anything else meanwhile.
    fn take(&mut self, message: Message, status: &Status, bytes: &mut Vec<u8>) {
        let before = bytes.len();
        let count = status.count(u8::equivalent_datatype());
        bytes.resize(before + count as usize, 0);
        scope(|scope| {
            let mut request = message.immediate_matched_receive_into(scope, &mut bytes[before..]);
            while let Err(under_way) = request.test() {
                request = under_way;
                self.take_orders();
                self.rest(true);
            }
            self.moved = Instant::now();
        });
    }

    /// Sends messages: to all processes and on both lanes at the same time, within a lane one after
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
