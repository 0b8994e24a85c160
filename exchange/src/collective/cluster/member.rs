//! One rank's end of a cluster.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::Calls;
use super::bundle::Said;
use super::desk::{Call, Reply};
use crate::collective::{Alltoall, Answer, Central, Collective, Mesh, Payload, Serve};
use crate::error::{Error, Result};

/// One rank's end of a [`Cluster`](super::Cluster).
pub struct Member {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) timeout: Duration,
    pub(super) calls: Calls,
    pub(super) answers: Receiver<Reply>,
    /// The ranks of the same process.
    pub(super) neighbours: Mesh,
    /// The first of them.
    pub(super) first: usize,
    /// Whether there is a server.
    pub(super) central: bool,
    /// The error after which this end fails every call: a late reply would be taken for that of a
    /// later call.
    pub(super) broken: Option<Error>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({} of {})", self.rank, self.world_size)
    }
}

impl Member {
    fn round(&mut self, said: Said) -> Result<Reply> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let reply = self.asked(said);
        self.broken = reply.as_ref().err().cloned();
        reply
    }

    fn asked(&mut self, said: Said) -> Result<Reply> {
        self.calls.send(Call::Said { seat: self.rank - self.first, said });
        // The courier's own diagnosis comes first; this is for a courier that says nothing.
        let patience = self.timeout.saturating_mul(5) / 2;
        let reply = self.answers.recv_timeout(patience);
        match reply {
            Ok(Reply::Broken(broken)) => Err(broken.error(self.rank, self.timeout)),
            Ok(reply) => Ok(reply),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Transport { problem: "this process's courier has ended".to_string() })
            }
            Err(RecvTimeoutError::Timeout) => {
                let problem = format!("this process's courier was silent for {patience:?}");
                Err(Error::Transport { problem })
            }
        }
    }

    fn all(&mut self, said: Said) -> Result<Vec<Payload>> {
        match self.round(said)? {
            Reply::All(messages) => Ok(messages),
            Reply::Served(_) | Reply::Broken(_) => Err(Error::Transport {
                problem: "a server answered where no rank had asked".to_string(),
            }),
        }
    }
}

impl Collective for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        self.all(Said::All(Payload::from(mine)))
    }

    fn neighbours(&mut self) -> Option<&mut dyn Collective> {
        Some(&mut self.neighbours)
    }

    fn central(&mut self) -> Option<&mut dyn Central> {
        if self.central { Some(self) } else { None }
    }

    fn alltoall(&mut self) -> Option<&mut dyn Alltoall> {
        if self.central { None } else { Some(self) }
    }
}

impl Alltoall for Member {
    fn alltoall(&mut self, mine: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        let found = mine.len();
        if found != self.world_size {
            let problem = format!("{found} parts of a message for {} ranks", self.world_size);
            return Err(Error::Transport { problem });
        }
        self.all(Said::Each(mine.into_iter().map(Payload::from).collect()))
    }
}

impl Central for Member {
    fn install(&mut self, serve: Box<dyn Serve>) {
        self.calls.send(Call::Install(serve));
    }

    fn ask(&mut self, mine: Vec<u8>) -> Result<Answer> {
        let mine = Payload::from(mine);
        Ok(match self.round(Said::Ask(mine.clone()))? {
            Reply::Served(answer) => Answer::Served { mine, answer },
            Reply::All(messages) => Answer::Declined(messages),
            Reply::Broken(broken) => return Err(broken.error(self.rank, self.timeout)),
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.calls.send(Call::Left { seat: self.rank - self.first });
    }
}
