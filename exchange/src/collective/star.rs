//! Threads of one process around a server: a thread of its own that hears every rank and answers
//! all of them.
//!
//! The server joins one message of every rank into a round. A round in which every rank asks is
//! given to a [`Serve`], whose one answer goes to all; any other round, and one that it declines,
//! is an allgather: everybody's messages go to everybody. So ranks that do different things at the
//! same time, refuse or give up find out as they do over a [`mesh`](super::mesh()).

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::{Collective, Payload};
use crate::error::Awaited;
use crate::{Error, Result};

/// What a server does with the messages of a round.
pub trait Serve: Send {
    /// Writes the answer to the messages of all ranks, in order of rank, or declines: then the
    /// messages themselves go to every rank.
    fn serve(&mut self, messages: &[Payload], answer: &mut Vec<u8>) -> bool;
}

/// What became of a message that asked.
#[derive(Debug)]
pub enum Answer {
    /// The server's answer, the same for every rank, and this rank's own message back.
    Served {
        /// What this rank sent.
        mine: Payload,
        /// What the server sent.
        answer: Payload,
    },
    /// Everybody's messages, in order of rank: the server declined, or not every rank asked.
    Declined(Vec<Payload>),
}

/// A collective with a server in its middle.
pub trait Central {
    /// Installs what the server does; before it, every round is an allgather. One rank calls it,
    /// before its first message.
    fn install(&mut self, serve: Box<dyn Serve>);

    /// Sends `mine` to the server and returns its answer.
    ///
    /// # Errors
    /// As [`Collective::allgather`].
    fn ask(&mut self, mine: Vec<u8>) -> Result<Answer>;
}

/// One rank's end of a [`star()`].
#[derive(Debug)]
pub struct Spoke {
    rank: usize,
    world_size: usize,
    timeout: Duration,
    server: Sender<Up>,
    answers: Receiver<Down>,
    /// The error after which this end fails every call: a late answer would be taken for that of a
    /// later round.
    broken: Option<Error>,
}

/// From a rank to the server.
enum Up {
    Message { rank: usize, payload: Payload, asks: bool },
    Install(Box<dyn Serve>),
    Gone { rank: usize },
}

/// From the server to a rank.
#[derive(Debug, Clone)]
enum Down {
    All(Vec<Payload>),
    Answer(Payload),
    /// The round cannot be completed: this rank is gone.
    Lost(usize),
    /// The round was not completed in time: this rank was silent.
    Silent(usize),
}

/// Starts a server's thread for `world_size` ranks and returns their ends in order of rank, one
/// for each thread.
///
/// A round fails when not everybody is heard within `timeout` of its first message, and when an
/// end has been dropped without a message for it. The server ends with the first failure, which
/// every rank is told, and when all ends have been dropped.
///
/// # Errors
/// [`Error::ServerStart`] when the thread cannot be started.
pub fn star(world_size: usize, timeout: Duration) -> Result<Vec<Spoke>> {
    let (server, inbox) = channel();
    let (answers, ends): (Vec<_>, Vec<_>) = (0..world_size).map(|_| channel()).unzip();
    let hub = Hub {
        inbox,
        answers,
        timeout,
        heard: (0..world_size).map(|_| None).collect(),
        gone: vec![false; world_size],
        serve: None,
        sent: Vec::new(),
    };
    std::thread::Builder::new()
        .name("server".to_string())
        .spawn(move || hub.run())
        .map_err(|error| Error::ServerStart { problem: error.to_string() })?;
    let spoke = |(rank, answers)| {
        let server = server.clone();
        Spoke { rank, world_size, timeout, server, answers, broken: None }
    };
    Ok(ends.into_iter().enumerate().map(spoke).collect())
}

impl Spoke {
    fn round(&mut self, payload: Payload, asks: bool) -> Result<Down> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let answer = self.asked(payload, asks);
        self.broken = answer.as_ref().err().cloned();
        answer
    }

    fn asked(&mut self, payload: Payload, asks: bool) -> Result<Down> {
        let (by, awaited) = (self.rank, Awaited::Message);
        // The server's own diagnosis comes first; this is for a server that says nothing.
        let patience = self.timeout.saturating_mul(2);
        // A server that is gone may have left word why: receiving decides.
        let _ = self.server.send(Up::Message { rank: by, payload, asks });
        match self.answers.recv_timeout(patience) {
            Ok(Down::Lost(rank)) => Err(Error::PeerLost { rank, by, awaited }),
            Ok(Down::Silent(rank)) => {
                Err(Error::Timeout { rank, by, awaited, after: self.timeout })
            }
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => Err(Error::ServerLost { by, awaited }),
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::ServerSilent { by, awaited, after: patience })
            }
        }
    }
}

impl Collective for Spoke {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        match self.round(Payload::from(mine), false)? {
            Down::All(messages) => Ok(messages),
            _ => unreachable!("invariant: a round in which one rank does not ask is not served"),
        }
    }

    fn central(&mut self) -> Option<&mut dyn Central> {
        Some(self)
    }

    fn shares_memory(&self) -> bool {
        true
    }
}

impl Central for Spoke {
    fn install(&mut self, serve: Box<dyn Serve>) {
        // If the server is gone, the first message will tell.
        let _ = self.server.send(Up::Install(serve));
    }

    fn ask(&mut self, mine: Vec<u8>) -> Result<Answer> {
        let mine = Payload::from(mine);
        Ok(match self.round(mine.clone(), true)? {
            Down::All(messages) => Answer::Declined(messages),
            Down::Answer(answer) => Answer::Served { mine, answer },
            Down::Lost(_) | Down::Silent(_) => unreachable!("invariant: these are errors"),
        })
    }
}

impl Drop for Spoke {
    fn drop(&mut self) {
        let _ = self.server.send(Up::Gone { rank: self.rank });
    }
}

/// The server's thread.
struct Hub {
    inbox: Receiver<Up>,
    answers: Vec<Sender<Down>>,
    timeout: Duration,
    /// Of each rank, its message for the round under way, and whether it asks.
    heard: Vec<Option<(Payload, bool)>>,
    gone: Vec<bool>,
    serve: Option<Box<dyn Serve>>,
    /// Answers that went out. When a round is complete, those of the step before have been read.
    sent: Vec<Payload>,
}

impl Hub {
    fn run(mut self) {
        // Between rounds nobody waits for the server, and it waits for whoever comes first.
        while let Ok(up) = self.inbox.recv() {
            self.take(up);
            if self.heard.iter().all(Option::is_none) {
                if self.gone.iter().all(|gone| *gone) {
                    return;
                }
                continue;
            }
            match self.gather() {
                Ok(()) => self.answer(),
                Err(broken) => return self.tell_all(&broken),
            }
        }
    }

    fn take(&mut self, up: Up) {
        match up {
            Up::Message { rank, payload, asks } => self.heard[rank] = Some((payload, asks)),
            Up::Install(serve) => self.serve = Some(serve),
            Up::Gone { rank } => self.gone[rank] = true,
        }
    }

    /// Waits until every rank has been heard.
    fn gather(&mut self) -> Result<(), Down> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let missing = |rank: &usize| self.heard[*rank].is_none();
            let Some(first) = (0..self.heard.len()).find(missing) else { return Ok(()) };
            if let Some(lost) = (0..self.heard.len()).find(|rank| missing(rank) && self.gone[*rank])
            {
                return Err(Down::Lost(lost));
            }
            match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(up) => self.take(up),
                Err(RecvTimeoutError::Timeout) => return Err(Down::Silent(first)),
                Err(RecvTimeoutError::Disconnected) => return Err(Down::Lost(first)),
            }
        }
    }

    /// Ends a round that is complete.
    fn answer(&mut self) {
        let heard = self.heard.iter_mut().filter_map(Option::take);
        let (messages, asks): (Vec<Payload>, Vec<bool>) = heard.unzip();
        if let Some(serve) = self.serve.as_mut().filter(|_| asks.iter().all(|asks| *asks)) {
            let spare = self.sent.iter().position(Payload::is_unshared);
            let spare = spare.and_then(|at| self.sent.swap_remove(at).reclaim());
            let mut answer = spare.unwrap_or_default();
            answer.clear();
            if serve.serve(&messages, &mut answer) {
                drop(messages);
                let answer = Payload::from(answer);
                self.sent.push(answer.clone());
                return self.tell_all(&Down::Answer(answer));
            }
        }
        self.tell_all(&Down::All(messages));
    }

    fn tell_all(&self, down: &Down) {
        for answers in &self.answers {
            // Who is gone need not be told.
            let _ = answers.send(down.clone());
        }
    }
}
