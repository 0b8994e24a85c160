//! Ranks around a server: a thread of its own that takes a message of every rank and answers all of
//! them.
//!
//! The server joins one message of every rank into a round. A round in which every rank asks for an
//! answer is given to an [`Aggregate`], whose one answer goes to all; any other round, and one that
//! it declines, is an allgather: everybody's messages go to everybody. So ranks that do different
//! things at the same time, refuse or give up find out as they do over a [`mesh`](super::mesh()).
//!
//! Between processes the server's thread is in process 0, and the messages go through
//! [`Remote`](super::cluster::Remote).

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::cluster::Remote;
use super::mesh::Missing;
use super::{Collective, Payload};
use crate::error::Awaited;
use crate::{Error, Result};

/// What a server does with the messages of a round.
#[doc(hidden)]
pub trait Aggregate: Send {
    /// Writes the answer to the messages of all ranks, in order of rank, or declines: then the
    /// messages themselves go to every rank.
    fn aggregate(&mut self, messages: &[Payload], answer: &mut Vec<u8>) -> bool;
}

/// What a server sends back to a rank that asked.
#[derive(Debug)]
#[doc(hidden)]
pub enum Reply {
    /// The server's answer, the same for every rank, and this rank's own message back.
    Answer {
        /// What this rank sent.
        mine: Payload,
        /// What the server sent.
        answer: Payload,
    },
    /// Everybody's messages, in order of rank: the server declined, or not every rank asked.
    Messages(Vec<Payload>),
}

/// The server in the middle of a collective, as a rank reaches it.
#[doc(hidden)]
pub trait Server {
    /// Installs what the server does; before it, every round is an allgather. Rank 0 calls it,
    /// before its first message.
    fn install(&mut self, aggregate: Box<dyn Aggregate>);

    /// Sends `mine` to the server and returns what comes back.
    ///
    /// # Errors
    /// As [`Collective::allgather`].
    fn ask(&mut self, mine: Vec<u8>) -> Result<Reply>;
}

/// One rank's end of a [`star()`].
#[derive(Debug)]
pub(crate) struct Star {
    rank: usize,
    world_size: usize,
    timeout: Duration,
    server: Uplink,
    replies: Receiver<Down>,
    /// Whether all ranks are threads of one process.
    shares_memory: bool,
    /// The error after which this end fails every call: a late reply would be taken for that of a
    /// later round.
    broken: Option<Error>,
}

/// What a rank reaches the server by.
#[derive(Debug)]
pub(super) enum Uplink {
    /// The server is a thread of this process.
    Thread(Sender<Up>),
    /// It is in process 0.
    Process(Remote),
}

/// From a rank to the server.
pub(super) enum Up {
    Message { rank: usize, payload: Payload, asks: bool },
    Install(Box<dyn Aggregate>),
    End { rank: usize, why: Missing },
}

/// From the server to a rank.
#[derive(Debug, Clone)]
pub(super) enum Down {
    Messages(Vec<Payload>),
    Answer(Payload),
    /// The round will not be complete.
    Missing(Missing),
}

/// What the server sends to all ranks.
pub(super) enum Out {
    Messages(Vec<Payload>),
    Answer(Vec<u8>),
    Missing(Missing),
}

/// Sends to all ranks; an answer back, so that its buffer can be used again.
pub(super) type Broadcast = Box<dyn FnMut(Out) -> Option<Payload> + Send>;

/// Starts a server's thread for `world_size` ranks and returns their ends in order of rank, one
/// for each thread.
///
/// A round fails when a message of some rank has not come within `timeout` of the first, and when an
/// end has been dropped without a message for it. The server ends with the first failure, which
/// every rank is told, and when all ends have been dropped.
///
/// # Errors
/// [`Error::Invalid`] when the thread cannot be started.
#[doc(hidden)]
pub fn star(world_size: usize, timeout: Duration) -> Result<Vec<impl Collective + Server + use<>>> {
    let (replies, ends): (Vec<_>, Vec<_>) = (0..world_size).map(|_| channel()).unzip();
    let broadcast = move |out| {
        let (down, answer) = match out {
            Out::Messages(messages) => (Down::Messages(messages), None),
            Out::Missing(missing) => (Down::Missing(missing), None),
            Out::Answer(answer) => {
                let answer = Payload::from(answer);
                (Down::Answer(answer.clone()), Some(answer))
            }
        };
        // A rank that is gone takes nothing.
        replies.iter().for_each(|to| drop(to.send(down.clone())));
        answer
    };
    let server = start(world_size, timeout, Box::new(broadcast), Box::new(|_| ()))?;
    let star = |(rank, replies)| {
        let mut end =
            Star::new((rank, world_size), timeout, Uplink::Thread(server.clone()), replies);
        end.shares_memory = true;
        end
    };
    Ok(ends.into_iter().enumerate().map(star).collect())
}

/// Is told of the rank that the server waits for, and when it waits for none.
pub(super) type OnWait = Box<dyn Fn(Option<usize>) + Send>;

/// Starts a server's thread; what ranks send goes to the returned end of its channel.
pub(super) fn start(
    world_size: usize,
    timeout: Duration,
    broadcast: Broadcast,
    on_wait: OnWait,
) -> Result<Sender<Up>> {
    let (server, inbox) = channel();
    let hub = Hub {
        inbox,
        broadcast,
        timeout,
        received: (0..world_size).map(|_| None).collect(),
        ended: vec![None; world_size],
        aggregate: None,
        sent: Vec::new(),
        on_wait,
    };
    std::thread::Builder::new().name("server".to_string()).spawn(move || hub.run()).map_err(
        |error| Error::Invalid {
            problem: format!("the server's thread cannot be started: {error}"),
        },
    )?;
    Ok(server)
}

impl Star {
    pub(super) fn new(
        (rank, world_size): (usize, usize),
        timeout: Duration,
        server: Uplink,
        replies: Receiver<Down>,
    ) -> Self {
        Self { rank, world_size, timeout, server, replies, shares_memory: false, broken: None }
    }

    fn round(&mut self, mine: Vec<u8>, asks: bool) -> Result<Reply> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let reply = self.exchange(mine, asks);
        self.broken = reply.as_ref().err().cloned();
        reply
    }

    fn exchange(&mut self, mine: Vec<u8>, asks: bool) -> Result<Reply> {
        let (rank, by, awaited) = (self.rank, self.rank, Awaited::Message);
        // The server's own diagnosis comes first; this is for a server that says nothing.
        let patience = self.timeout.saturating_mul(2);
        let mine = match &self.server {
            Uplink::Thread(server) => {
                let mine = Payload::from(mine);
                // A server that is gone may have left word why: receiving decides.
                let _ = server.send(Up::Message { rank, payload: mine.clone(), asks });
                mine
            }
            Uplink::Process(server) => server.send_to_server(mine, asks),
        };
        let reply = self.replies.recv_timeout(patience);
        if let Uplink::Process(server) = &self.server {
            server.has_replied();
        }
        match (reply, &self.server) {
            (Ok(Down::Missing(missing)), _) => Err(missing.error(by, self.timeout)),
            (Ok(Down::Messages(messages)), _) => Ok(Reply::Messages(messages)),
            (Ok(Down::Answer(answer)), _) => Ok(Reply::Answer { mine, answer }),
            (Err(RecvTimeoutError::Timeout), Uplink::Process(_)) => {
                Err(Missing::Silent(0).error(by, patience))
            }
            (Err(RecvTimeoutError::Timeout), Uplink::Thread(_)) => {
                Err(Error::ServerLost { by, awaited, after: Some(patience) })
            }
            (Err(RecvTimeoutError::Disconnected), _) => {
                Err(Error::ServerLost { by, awaited, after: None })
            }
        }
    }
}

impl Collective for Star {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        match self.round(mine, false)? {
            Reply::Messages(messages) => Ok(messages),
            Reply::Answer { .. } => Err(Error::Transport {
                problem: "the server answered a round in which not every rank had asked"
                    .to_string(),
            }),
        }
    }

    fn server(&mut self) -> Option<&mut dyn Server> {
        Some(self)
    }

    fn shares_memory(&self) -> bool {
        self.shares_memory
    }
}

impl Server for Star {
    fn install(&mut self, aggregate: Box<dyn Aggregate>) {
        if let Uplink::Thread(server) = &self.server {
            // If the server is gone, the first message will tell.
            let _ = server.send(Up::Install(aggregate));
        }
    }

    fn ask(&mut self, mine: Vec<u8>) -> Result<Reply> {
        self.round(mine, true)
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        let (rank, why) = (self.rank, Missing::Gone(self.rank));
        match &self.server {
            Uplink::Thread(server) => drop(server.send(Up::End { rank, why })),
            Uplink::Process(server) => server.end(why),
        }
    }
}

/// The server's thread.
struct Hub {
    inbox: Receiver<Up>,
    broadcast: Broadcast,
    timeout: Duration,
    /// Of each rank, its message for the round under way, and whether it asks.
    received: Vec<Option<(Payload, bool)>>,
    ended: Vec<Option<Missing>>,
    aggregate: Option<Box<dyn Aggregate>>,
    /// Answers that went out. When a round is complete, those of the step before have been read.
    sent: Vec<Payload>,
    on_wait: OnWait,
}

impl Hub {
    fn run(mut self) {
        // Between rounds nobody waits for the server, and it waits for whoever comes first.
        while let Ok(up) = self.inbox.recv() {
            self.take(up);
            if self.received.iter().all(Option::is_none) {
                if self.ended.iter().all(Option::is_some) {
                    return;
                }
                continue;
            }
            let gathered = self.gather();
            (self.on_wait)(None);
            if let Err(missing) = gathered {
                return drop((self.broadcast)(Out::Missing(missing)));
            }
            self.answer();
        }
    }

    fn take(&mut self, up: Up) {
        match up {
            Up::Message { rank, payload, asks } => self.received[rank] = Some((payload, asks)),
            Up::Install(aggregate) => self.aggregate = Some(aggregate),
            Up::End { rank, why } => {
                self.ended[rank].get_or_insert(why);
            }
        }
    }

    /// Waits until there is a message of every rank.
    fn gather(&mut self) -> Result<(), Missing> {
        let began = Instant::now();
        loop {
            let missing = |rank: &usize| self.received[*rank].is_none();
            let ranks = 0..self.received.len();
            let Some(first) = ranks.clone().find(missing) else { return Ok(()) };
            if let Some(why) = ranks.filter(missing).find_map(|rank| self.ended[rank]) {
                return Err(why);
            }
            (self.on_wait)(Some(first));
            match self.inbox.recv_timeout(self.timeout.saturating_sub(began.elapsed())) {
                Ok(up) => self.take(up),
                Err(RecvTimeoutError::Timeout) => return Err(Missing::Silent(first)),
                Err(RecvTimeoutError::Disconnected) => return Err(Missing::Gone(first)),
            }
        }
    }

    /// Ends a round that is complete.
    fn answer(&mut self) {
        let received = self.received.iter_mut().filter_map(Option::take);
        let (messages, asks): (Vec<Payload>, Vec<bool>) = received.unzip();
        if let Some(aggregate) = self.aggregate.as_mut().filter(|_| asks.iter().all(|asks| *asks)) {
            let spare = self.sent.iter().position(Payload::is_unshared);
            let spare = spare.and_then(|at| self.sent.swap_remove(at).reclaim());
            let mut answer = spare.unwrap_or_default();
            answer.clear();
            if aggregate.aggregate(&messages, &mut answer) {
                drop(messages);
                self.sent.extend((self.broadcast)(Out::Answer(answer)));
                return;
            }
        }
        (self.broadcast)(Out::Messages(messages));
    }
}
