//! Ranks that are processes: what a rank sends to the others, over any transport between processes.
//!
//! A transport moves bytes to other processes and hands in what arrives: MPI, or, for tests, calls
//! within one process ([`in_memory`]). Ranks get what a [`mesh`](super::mesh()) of threads would
//! have given them, or a [`star`](super::star()) whose server's thread is in process 0.
//!
//! Beside the rounds of messages, on a lane of their own, processes send each other control
//! messages: bytes whose meaning is their own business. With every round travel a few [`Notes`].

mod memory;
mod packet;
mod peers;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use self::packet::{Numbers, Packet};
use self::peers::Peers;
use super::mesh::{Mailbox, Missing};
use super::star::{self, Down, Out, Star, Up, Uplink};
use super::{Collective, Payload};
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

    /// Tells that a rank is waited for from now on, so that what arrives is wanted at once.
    fn wake(&self) {}

    /// Ends when everything has been sent; whether that was within `patience`.
    fn leave(&self, patience: Duration) -> bool;

    /// Ends all processes with this exit code, or returns when it could not within `patience`.
    fn abort(&self, code: i32, patience: Duration);
}

/// What takes a packet of a round, or the reason why there are no more.
type Deliver = Box<dyn FnMut(usize, Packet) + Send>;

/// Where what other processes send arrives.
pub(super) struct Inbox {
    on_control: Mutex<OnControl>,
    rounds: Mutex<Rounds>,
    /// Tells the rank that this process waits for in a round, if there is one.
    awaited: Mutex<Box<dyn Fn() -> Option<usize> + Send>>,
}

enum Rounds {
    /// Other processes may be quicker to connect; what they have sent waits.
    Early(Vec<(usize, Arc<Vec<u8>>)>),
    Connected {
        notes: Arc<dyn Notes>,
        deliver: Deliver,
    },
}

impl Inbox {
    pub(super) fn new(on_control: OnControl) -> Self {
        let rounds = Mutex::new(Rounds::Early(Vec::new()));
        let awaited = Mutex::new(Box::new(|| None) as _);
        Self { on_control: Mutex::new(on_control), rounds, awaited }
    }

    /// The rank that this process waits for in a round, if there is one.
    pub(super) fn awaited(&self) -> Option<usize> {
        lock(&self.awaited)()
    }

    /// Takes what process `from` has sent.
    pub(super) fn arrived(&self, from: usize, lane: Lane, bytes: Arc<Vec<u8>>) {
        match lane {
            Lane::Control => lock(&self.on_control)(from, Arc::unwrap_or_clone(bytes)),
            Lane::Rounds => lock(&self.rounds).arrived(from, bytes),
        }
    }

    fn connect(&self, notes: Arc<dyn Notes>, deliver: Deliver) {
        let mut rounds = lock(&self.rounds);
        let before = std::mem::replace(&mut *rounds, Rounds::Connected { notes, deliver });
        if let Rounds::Early(early) = before {
            early.into_iter().for_each(|(from, bytes)| rounds.arrived(from, bytes));
        }
    }
}

impl Rounds {
    fn arrived(&mut self, from: usize, bytes: Arc<Vec<u8>>) {
        match self {
            Rounds::Early(early) => early.push((from, bytes)),
            Rounds::Connected { notes, deliver } => match packet::read(&bytes) {
                Ok((numbers, packet)) => {
                    notes.hear(from, numbers);
                    deliver(from, packet);
                }
                Err(fault) => deliver(from, Packet::End(Missing::Unreadable(from, fault))),
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

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({} of {})", self.rank, self.world_size)
    }
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

    /// Joins this process with the others, who do the same, and returns its end; with `server`,
    /// around a server ([`Server`](super::Server)), whose thread is in process 0.
    ///
    /// A round fails when a message of some rank has not come within `timeout` of sending this
    /// rank's own, and when a rank is gone: every process is told of ends that are dropped, and why
    /// others fail. After one failure every round fails alike. A cluster is connected once.
    pub(crate) fn connect(
        &self,
        server: bool,
        timeout: Duration,
        notes: Arc<dyn Notes>,
    ) -> Result<Box<dyn Collective>> {
        let (rank, world_size) = (self.rank, self.world_size);
        if world_size == 0 || world_size > usize::from(u16::MAX) {
            return Err(Error::world_size(world_size));
        }
        let remote = Remote {
            rank,
            world_size,
            transport: self.transport.clone(),
            notes: notes.clone(),
            awaited: Arc::new(AtomicUsize::new(usize::MAX)),
        };
        if server {
            return self.connect_to_server(remote, timeout);
        }
        let mailbox = Arc::new(Mailbox::new(rank, world_size));
        let (awaited, arriving) = (mailbox.clone(), mailbox.clone());
        *lock(&self.inbox.awaited) = Box::new(move || awaited.awaited());
        let deliver = move |from, packet| match packet {
            Packet::Message { payload, .. } => arriving.put(from, payload),
            Packet::End(why) => arriving.end(from, why),
            Packet::Answer(_) | Packet::All(_) => arriving.end(from, unexpected(from)),
        };
        self.inbox.connect(notes, Box::new(deliver));
        Ok(Box::new(Peers::new(remote, mailbox, timeout)))
    }

    fn connect_to_server(&self, remote: Remote, timeout: Duration) -> Result<Box<dyn Collective>> {
        let (rank, world_size, notes) = (self.rank, self.world_size, remote.notes.clone());
        let awaited = remote.awaited.clone();
        *lock(&self.inbox.awaited) = Box::new(move || remote_awaited(&awaited));
        let (replies, end) = channel();
        if rank != 0 {
            let deliver = move |from, packet| {
                let down = match packet {
                    Packet::Answer(answer) if from == 0 => Down::Answer(answer),
                    Packet::All(messages) if from == 0 && messages.len() == world_size => {
                        Down::Messages(messages)
                    }
                    Packet::End(why) => Down::Missing(why),
                    _ => Down::Missing(unexpected(from)),
                };
                // An end that is gone takes nothing.
                let _ = replies.send(down);
            };
            self.inbox.connect(notes, Box::new(deliver));
            let star = Star::new((rank, world_size), timeout, Uplink::Process(remote), end);
            return Ok(Box::new(star));
        }
        let (awaited, transport) = (remote.awaited.clone(), self.transport.clone());
        let on_wait = move |rank: Option<usize>| {
            let before = awaited.swap(rank.unwrap_or(usize::MAX), Ordering::Relaxed);
            if before == usize::MAX && rank.is_some() {
                transport.wake();
            }
        };
        let alarm = Alarm(remote);
        let broadcast = move |out| {
            let Alarm(remote) = &alarm;
            let numbers = remote.notes.tell();
            let (down, packet) = match out {
                Out::Missing(why) => (Down::Missing(why), packet::end(why, numbers)),
                Out::Messages(messages) => {
                    let packet = packet::all(&messages, numbers);
                    (Down::Messages(messages), packet)
                }
                Out::Answer(answer) => {
                    let (packet, answer) = packet::answer(answer, numbers);
                    (Down::Answer(answer), packet)
                }
            };
            let answer = if let Down::Answer(answer) = &down { Some(answer.clone()) } else { None };
            remote.send_to_all(&packet);
            let _ = replies.send(down);
            answer
        };
        let server = star::start(world_size, timeout, Box::new(broadcast), Box::new(on_wait))?;
        let arriving = server.clone();
        let deliver = move |rank, packet| {
            let up = match packet {
                Packet::Message { payload, asks } => Up::Message { rank, payload, asks },
                Packet::End(why) => Up::End { rank, why },
                Packet::Answer(_) | Packet::All(_) => Up::End { rank, why: unexpected(rank) },
            };
            // A server that has ended has told everybody why.
            let _ = arriving.send(up);
        };
        self.inbox.connect(notes, Box::new(deliver));
        Ok(Box::new(Star::new((rank, world_size), timeout, Uplink::Thread(server), end)))
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
    /// The rank that is waited for where there is a server, or a number that is none.
    awaited: Arc<AtomicUsize>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({} of {})", self.rank, self.world_size)
    }
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

    /// Sends a message to the server; the message back.
    pub(super) fn send_to_server(&self, mine: Vec<u8>, asks: bool) -> Payload {
        self.awaited.store(0, Ordering::Relaxed);
        let (packet, mine) = packet::message(mine, asks, self.notes());
        self.send(0, packet);
        mine
    }

    /// The server is no longer waited for.
    pub(super) fn has_replied(&self) {
        self.awaited.store(usize::MAX, Ordering::Relaxed);
    }

    /// Tells the server that this rank sends nothing more.
    pub(super) fn end(&self, why: Missing) {
        self.send(0, packet::end(why, self.notes()));
    }
}

/// Tells the other processes when the server's thread panics.
struct Alarm(Remote);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self(remote) = self;
            remote.send_to_all(&packet::end(Missing::Gone(remote.rank), remote.notes()));
        }
    }
}

/// A packet that does not belong to where it arrived.
fn unexpected(from: usize) -> Missing {
    Missing::Unreadable(from, packet::field(0))
}

fn remote_awaited(awaited: &AtomicUsize) -> Option<usize> {
    Some(awaited.load(Ordering::Relaxed)).filter(|rank| *rank != usize::MAX)
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
        for server in [false, true] {
            let clusters = in_memory((0..3).map(|_| Box::new(|_, _| ()) as OnControl).collect());
            let connect = |cluster: &Cluster| {
                cluster.connect(server, Duration::from_secs(20), Arc::new(Silence)).unwrap()
            };
            let ends: Vec<_> = clusters.iter().map(connect).collect();
            clusters[0].inbox.arrived(1, Lane::Rounds, Arc::new(vec![3, 1, 2]));
            let fail = |mut end: Box<dyn Collective>| loop {
                if let Err(error) = end.allgather(vec![7]) {
                    return error;
                }
            };
            let errors: Vec<Error> = thread::scope(|scope| {
                let ranks: Vec<_> =
                    ends.into_iter().map(|end| scope.spawn(move || fail(end))).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            for error in errors {
                let fault = Fault::Truncated { needed: 8, left: 2 };
                let awaited = crate::Awaited::Message;
                assert_eq!(error, Error::Message { rank: 1, awaited, fault }, "server {server}");
            }
        }
    }
}
