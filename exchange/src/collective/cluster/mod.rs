//! Ranks in several processes: the threads of one process are ranks, and a courier carries between
//! processes what they say to each other.
//!
//! Rank = process · W + thread, with W ranks in every process. Each process has one more thread,
//! the *courier*, which alone sends and receives. Its desk decides what is sent to whom; a
//! transport moves the parcels: MPI, or, for tests, channels between threads ([`channels`]). The
//! courier gathers the messages of its process's ranks and sends them together, one parcel to each
//! process. Ranks get what a [`mesh`](super::mesh()) of all ranks would have given them.
//!
//! Beside the rounds, on a lane of their own, processes write each other letters: bytes whose
//! meaning is their own business. And with every round travel a few [`Notes`].

mod bundle;
mod channels;
pub(super) mod desk;
mod member;

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use self::desk::{Call, Desk};
use crate::collective::Collective;
use crate::error::{Awaited, Error, Result};
use crate::wire::Fault;

pub use channels::channels;
pub use member::Member;

/// How many numbers travel as notes.
pub const NOTES: usize = 3;

/// What processes tell each other along with every round, at no cost of their own: a few numbers
/// that are read when a parcel is written, and heard before the round's messages are handed out.
pub trait Notes: Send + Sync {
    /// What this process tells.
    fn tell(&self) -> [u64; NOTES];

    /// What process `from` has told.
    fn hear(&self, from: usize, notes: [u64; NOTES]);
}

/// What takes the letters of other processes: the sender's number, and the bytes. Called on the
/// courier's thread: it should do nothing but pass them on.
pub type Letters = Box<dyn FnMut(usize, Vec<u8>) + Send>;

/// Why a round cannot be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// This rank is gone.
    Lost(usize),
    /// This rank, or the first of its process, was silent for too long.
    Silent(usize),
    /// What the process of this rank sent means nothing.
    Garbled(usize, Fault),
}

impl Broken {
    fn error(self, by: usize, after: Duration) -> Error {
        let awaited = Awaited::Message;
        match self {
            Broken::Lost(rank) => Error::PeerLost { rank, by, awaited },
            Broken::Silent(rank) => Error::Timeout { rank, by, awaited, after },
            Broken::Garbled(rank, fault) => Error::Message { rank, awaited, fault },
        }
    }
}

/// What the ranks of a process reach their courier by.
#[derive(Debug, Clone)]
struct Calls {
    inbox: Sender<Call>,
    courier: Thread,
}

impl Calls {
    /// Never waits. A courier that is gone hears nothing, which whoever waits for it will notice.
    fn send(&self, call: Call) {
        let _ = self.inbox.send(call);
        self.courier.unpark();
    }
}

/// One process among several that train together: what it reaches the others by.
pub struct Cluster {
    process: usize,
    processes: usize,
    calls: Calls,
    awaited: Arc<AtomicUsize>,
    ended: Mutex<Receiver<Infallible>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({} of {})", self.process, self.processes)
    }
}

impl Cluster {
    /// This process, counted from 0.
    pub fn process(&self) -> usize {
        self.process
    }

    /// The number of processes.
    pub fn processes(&self) -> usize {
        self.processes
    }

    /// The process that this one's ranks wait for in a round, if there is one.
    pub fn awaited(&self) -> Option<usize> {
        Some(self.awaited.load(Ordering::Relaxed)).filter(|process| *process < self.processes)
    }

    /// Writes a letter to another process. Never waits.
    pub fn send(&self, to: usize, letter: Vec<u8>) {
        self.calls.send(Call::Letter { to, letter });
    }

    /// Joins the `workers` ranks of this process with those of the others, who do the same, and
    /// returns their ends in order of rank, one for each thread; with `central`, around a server
    /// ([`Central`](super::Central)), whose place is the courier of process 0.
    ///
    /// A round fails when a rank has not been heard within `timeout` of this process's first
    /// message in it, and when it is gone: ends that are dropped are told of, in every process.
    /// After one failure every round fails alike. A cluster is connected once.
    ///
    /// # Errors
    /// [`Error::WorldSize`] when there are more ranks than a frame can name.
    pub fn connect(
        &self,
        central: bool,
        workers: usize,
        timeout: Duration,
        notes: Arc<dyn Notes>,
    ) -> Result<Vec<Box<dyn Collective>>> {
        let world_size = self.processes.saturating_mul(workers);
        if world_size == 0 || world_size > usize::from(u16::MAX) {
            return Err(Error::WorldSize { world_size });
        }
        let (answers, ends): (Vec<_>, Vec<_>) = (0..workers).map(|_| channel()).unzip();
        self.calls.send(Call::Connect { central, timeout, notes, answers });
        let neighbours = super::mesh(workers, timeout);
        let first = self.process * workers;
        let member = |(answers, neighbours): (_, super::Mesh)| {
            let rank = first + neighbours.rank();
            let calls = self.calls.clone();
            let member = Member {
                rank,
                world_size,
                timeout,
                calls,
                answers,
                neighbours,
                central,
                first,
                broken: None,
            };
            Box::new(member) as _
        };
        Ok(ends.into_iter().zip(neighbours).map(member).collect())
    }

    /// Leaves when everything has been sent; waits for that no longer than `patience`.
    ///
    /// # Errors
    /// [`Error::Transport`] when it takes longer: then the process should [`abort`](Self::abort).
    pub fn leave(&self, patience: Duration) -> Result<()> {
        self.calls.send(Call::Leave);
        if self.has_ended_within(patience) {
            return Ok(());
        }
        let problem = format!("the other processes did not take leave within {patience:?}");
        Err(Error::Transport { problem })
    }

    /// Ends all processes at once, with this exit code, as far as the transport can; returns when
    /// it could not within `patience`.
    pub fn abort(&self, code: i32, patience: Duration) {
        self.calls.send(Call::Abort(code));
        self.has_ended_within(patience);
    }

    fn has_ended_within(&self, patience: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing is ever sent: the courier's end drops when it has ended.
        ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Makes, on the courier's own thread, the courier's desk and the [`Cluster`] through which its
/// process reaches it. Dropping the desk tells the process that the courier has ended.
pub(super) fn courier(process: usize, processes: usize, letters: Letters) -> (Desk, Cluster) {
    let (inbox, called) = channel();
    let (ended, end) = channel();
    let ended_of = Mutex::new(end);
    let courier = std::thread::current();
    let awaited = Arc::new(AtomicUsize::new(usize::MAX));
    let desk = Desk::new((process, processes), called, letters, awaited.clone(), ended);
    let calls = Calls { inbox, courier };
    (desk, Cluster { process, processes, calls, awaited, ended: ended_of })
}
