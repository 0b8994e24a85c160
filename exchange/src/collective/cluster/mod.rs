//! Ranks that are processes: what a rank sends to the others, over any transport between processes.
//!
//! A transport moves bytes to other processes and hands in what arrives: MPI, or, for tests, calls
//! within one process ([`in_memory`]). Ranks get what a [`mesh`](super::mesh()) of threads would
//! have given them.
//!
//! Beside the rounds of messages, on a lane of their own, processes send each other control
//! messages: bytes whose meaning is their own business. With every round travel a few [`Notes`].

mod memory;
mod packet;
mod peers;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::packet::{Numbers, Packet};
use self::peers::Peers;
use super::Collective;
use super::mesh::{Mailbox, Missing};
use crate::error::{Error, Result};

pub use memory::in_memory;

/// How many numbers travel as notes.
pub(crate) const NOTES: usize = 3;

/// What processes tell each other along with every round, at no cost of their own: a few numbers
/// that are read when a message is sent, and handed over before the messages of the round are.
pub trait Notes: Send + Sync {
    /// What this process tells.
    fn tell(&self) -> [u64; 3];

    /// What process `from` has told.
    fn hear(&self, from: usize, notes: [u64; 3]);
}

/// What takes the control messages of other processes: the sender's number, and the bytes. Called on
/// the transport's thread: it should do nothing but pass them on.
pub type OnControl = Box<dyn FnMut(usize, Vec<u8>) + Send>;

/// Messages of one lane arrive in the order sent; lanes do not wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Rounds = 0,
    Control = 1,
}

/// What moves bytes between processes. What arrives it hands to the process's [`Inbox`].
pub(super) trait Transport: Send + Sync {
    /// Sends to another process. Never waits; a process that is gone gets nothing, which whoever
    /// waits for it will notice.
    fn send(&self, to: usize, lane: Lane, bytes: Arc<Vec<u8>>);

    /// Ends when everything has been sent; whether that was within `patience`.
    fn leave(&self, patience: Duration) -> bool;

    /// Ends all processes with this exit code, or returns when it could not within `patience`.
    fn abort(&self, code: i32, patience: Duration);
}

/// Where what other processes send arrives.
pub(super) struct Inbox {
    on_control: Mutex<OnControl>,
    rounds: Mutex<Rounds>,
}

enum Rounds {
    /// Other processes may be quicker to connect; what they have sent waits.
    Early(Vec<(usize, Arc<Vec<u8>>)>),
    Connected {
        notes: Arc<dyn Notes>,
        mailbox: Arc<Mailbox>,
    },
}

impl Inbox {
    pub(super) fn new(on_control: OnControl) -> Self {
        let rounds = Mutex::new(Rounds::Early(Vec::new()));
        Self { on_control: Mutex::new(on_control), rounds }
    }

    /// The rank that this process waits for in a round, if there is one.
    pub(super) fn awaited(&self) -> Option<usize> {
        match &*lock(&self.rounds) {
            Rounds::Early(_) => None,
            Rounds::Connected { mailbox, .. } => mailbox.awaited(),
        }
    }

    /// Takes what process `from` has sent.
    pub(super) fn arrived(&self, from: usize, lane: Lane, bytes: Arc<Vec<u8>>) {
        match lane {
            Lane::Control => lock(&self.on_control)(from, Arc::unwrap_or_clone(bytes)),
            Lane::Rounds => lock(&self.rounds).arrived(from, bytes),
        }
    }

    fn connect(&self, notes: Arc<dyn Notes>, mailbox: Arc<Mailbox>) {
        let mut rounds = lock(&self.rounds);
        let before = std::mem::replace(&mut *rounds, Rounds::Connected { notes, mailbox });
        if let Rounds::Early(early) = before {
            early.into_iter().for_each(|(from, bytes)| rounds.arrived(from, bytes));
        }
    }
}

impl Rounds {
    fn arrived(&mut self, from: usize, bytes: Arc<Vec<u8>>) {
        match self {
            Rounds::Early(early) => early.push((from, bytes)),
            Rounds::Connected { notes, mailbox } => match packet::read(&bytes) {
                Ok((numbers, packet)) => {
                    notes.hear(from, numbers);
                    match packet {
                        Packet::Message(payload) => mailbox.put(from, payload),
                        Packet::End(why) => mailbox.end(from, why),
                    }
                }
                Err(fault) => mailbox.end(from, Missing::Unreadable(from, fault)),
            },
        }
    }
}

/// One process among several that train together.
pub struct Cluster {
    rank: usize,
    world_size: usize,
    inbox: Arc<Inbox>,
    transport: Arc<dyn Transport>,
}

impl Cluster {
    pub(super) fn new(
        (rank, world_size): (usize, usize),
        inbox: Arc<Inbox>,
        transport: Arc<dyn Transport>,
    ) -> Self {
        Self { rank, world_size, inbox, transport }
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// The rank that this process waits for in a round, if there is one.
    pub fn awaited(&self) -> Option<usize> {
        self.inbox.awaited()
    }

    /// Sends a control message to another process. Never waits.
    pub fn send(&self, to: usize, message: Vec<u8>) {
        self.transport.send(to, Lane::Control, Arc::new(message));
    }

    /// Joins this process with the others, who do the same, and returns its end.
    ///
    /// A round fails when a message of some rank has not come within `timeout` of sending this
    /// rank's own, and when a rank is gone: every process is told of ends that are dropped, and why
    /// others fail. After one failure every round fails alike. A cluster is connected once.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there are more processes than a message can name.
    pub fn connect(&self, timeout: Duration, notes: Arc<dyn Notes>) -> Result<Box<dyn Collective>> {
        let (rank, world_size) = (self.rank, self.world_size);
        if world_size == 0 || world_size > usize::from(u16::MAX) {
            return Err(Error::world_size(world_size));
        }
        let mailbox = Arc::new(Mailbox::new(rank, world_size));
        self.inbox.connect(notes.clone(), mailbox.clone());
        let remote = Remote { rank, world_size, transport: self.transport.clone(), notes };
        Ok(Box::new(Peers::new(remote, mailbox, timeout)))
    }

    /// Leaves when everything has been sent; waits for that no longer than `patience`.
    ///
    /// # Errors
    /// [`Error::Transport`] when it takes longer: then the process should [`abort`](Self::abort).
    pub fn leave(&self, patience: Duration) -> Result<()> {
        if self.transport.leave(patience) {
            return Ok(());
        }
        let problem = format!("the other processes did not take leave within {patience:?}");
        Err(Error::Transport { problem })
    }

    /// Ends all processes at once, with this exit code, as far as the transport can; returns when
    /// it could not within `patience`.
    pub fn abort(&self, code: i32, patience: Duration) {
        self.transport.abort(code, patience);
    }
}

/// What one rank reaches the other processes by.
pub(super) struct Remote {
    rank: usize,
    world_size: usize,
    transport: Arc<dyn Transport>,
    notes: Arc<dyn Notes>,
}

impl Remote {
    fn notes(&self) -> Numbers {
        self.notes.tell()
    }

    fn send(&self, to: usize, packet: Arc<Vec<u8>>) {
        self.transport.send(to, Lane::Rounds, packet);
    }

    /// Sends a packet to every other process. Each begins with the next: at no time do all send to
    /// the same one.
    fn send_to_all(&self, packet: &Arc<Vec<u8>>) {
        let others = (1..self.world_size).map(|step| (self.rank + step) % self.world_size);
        others.for_each(|to| self.send(to, packet.clone()));
    }
}

/// Nothing that holds these locks can panic half-way.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::wire::Fault;

    struct Silence;

    impl Notes for Silence {
        fn tell(&self) -> [u64; NOTES] {
            [0; NOTES]
        }

        fn hear(&self, _from: usize, _notes: [u64; NOTES]) {}
    }

    /// One process cannot read what another sent; all of them fail with that cause.
    #[test]
    fn bytes_that_cannot_be_read_are_the_cause_on_every_rank() {
        let clusters = in_memory((0..3).map(|_| Box::new(|_, _| ()) as OnControl).collect());
        let connect = |cluster: &Cluster| {
            cluster.connect(Duration::from_secs(20), Arc::new(Silence)).unwrap()
        };
        let ends: Vec<_> = clusters.iter().map(connect).collect();
        clusters[0].inbox.arrived(1, Lane::Rounds, Arc::new(vec![3, 1, 2]));
        let fail = |mut end: Box<dyn Collective>| loop {
            if let Err(error) = end.allgather(vec![7]) {
                return error;
            }
        };
        let errors: Vec<Error> = std::thread::scope(|scope| {
            let ranks: Vec<_> =
                ends.into_iter().map(|end| scope.spawn(move || fail(end))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for error in errors {
            let fault = Fault::Truncated { needed: 8, left: 2 };
            let awaited = crate::Awaited::Message;
            assert_eq!(error, Error::Message { rank: 1, awaited, fault });
        }
    }
}
