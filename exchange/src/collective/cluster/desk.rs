//! What a courier thinks: whose messages are there, what goes to whom, who is missing.
//!
//! Knows no transport. Whoever moves parcels calls [`look`](Desk::look) often, moves what is
//! [`outgoing`](Desk::outgoing), and hands in what [`arrived`](Desk::arrived).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use super::bundle::{Parcel, Said};
use super::{Broken, Letters, NOTES, Notes};
use crate::collective::{Payload, Serve};
use crate::wire::Fault;

/// What the ranks and the process ask of the courier.
pub(super) enum Call {
    Letter { to: usize, letter: Vec<u8> },
    Connect { central: bool, timeout: Duration, notes: Arc<dyn Notes>, answers: Vec<Sender<Reply>> },
    Said { seat: usize, said: Said },
    Install(Box<dyn Serve>),
    Left { seat: usize },
    Leave,
    Abort(i32),
}

/// What a rank is told.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    All(Vec<Payload>),
    Served(Payload),
    Broken(Broken),
}

/// Parcels of one lane arrive in the order sent; lanes do not wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::collective) enum Lane {
    Rounds = 0,
    Letters = 1,
}

/// A parcel on its way to another process.
#[derive(Debug, Clone)]
pub(in crate::collective) struct Shipment {
    pub(in crate::collective) to: usize,
    pub(in crate::collective) lane: Lane,
    pub(in crate::collective) bytes: Arc<Vec<u8>>,
}

/// What is asked of whoever moves parcels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::collective) enum Next {
    GoOn,
    /// Nothing more will be sent: end when what is outgoing is out.
    Leave,
    /// End all processes at once, with this code.
    Abort(i32),
}

/// A courier's state.
pub(in crate::collective) struct Desk {
    process: usize,
    processes: usize,
    inbox: Receiver<Call>,
    letters: Letters,
    outgoing: Vec<Shipment>,
    /// Of each process, its parts in rounds that are not complete, oldest first.
    heard: Vec<VecDeque<Parcel>>,
    /// Of each process, why nothing more is to be heard of it. What it sent before counts.
    ended: Vec<Option<Broken>>,
    broken: Option<Broken>,
    /// Notes that came before there was somebody to hear them.
    early: Vec<(usize, [u64; NOTES])>,
    group: Option<Group>,
    next: Next,
    /// The process whose part in a round is missing, for whoever asks.
    awaited: Arc<AtomicUsize>,
    /// Dropped at the end.
    _ended: Sender<Infallible>,
}

/// The ranks of this process.
struct Group {
    central: bool,
    timeout: Duration,
    notes: Arc<dyn Notes>,
    answers: Vec<Sender<Reply>>,
    said: Vec<Option<Said>>,
    left: Vec<bool>,
    /// Whether the other processes know of those that have left, and of what is broken.
    told: bool,
    /// When the round's first message was heard.
    began: Option<Instant>,
    /// Whether this process's part in the round is out.
    sent: bool,
    serve: Option<Box<dyn Serve>>,
}

impl Desk {
    pub(super) fn new(
        (process, processes): (usize, usize),
        inbox: Receiver<Call>,
        letters: Letters,
        awaited: Arc<AtomicUsize>,
        ended: Sender<Infallible>,
    ) -> Self {
        Self {
            process,
            processes,
            inbox,
            letters,
            outgoing: Vec::new(),
            heard: (0..processes).map(|_| VecDeque::new()).collect(),
            ended: vec![None; processes],
            broken: None,
            early: Vec::new(),
            group: None,
            next: Next::GoOn,
            awaited,
            _ended: ended,
        }
    }

    /// Attends to what this process's ranks have asked since, and to what has arrived.
    pub(in crate::collective) fn look(&mut self) -> Next {
        while let Ok(call) = self.inbox.try_recv() {
            self.take(call);
        }
        if let Some(mut group) = self.group.take() {
            self.advance(&mut group);
            let awaited = if group.sent { self.lacking(&group) } else { None };
            self.awaited.store(awaited.unwrap_or(usize::MAX), Ordering::Relaxed);
            self.group = Some(group);
        }
        self.next
    }

    /// Whether a round is under way, so that parcels are expected at any moment.
    pub(in crate::collective) fn is_waiting(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.began.is_some())
    }

    /// What is to be moved; asked for once.
    pub(in crate::collective) fn outgoing(&mut self) -> Vec<Shipment> {
        std::mem::take(&mut self.outgoing)
    }

    /// Takes what process `from` has sent.
    pub(in crate::collective) fn arrived(&mut self, from: usize, lane: Lane, bytes: Vec<u8>) {
        if lane == Lane::Letters {
            return (self.letters)(from, bytes);
        }
        match Parcel::read(bytes) {
            Ok((notes, parcel)) => {
                match &self.group {
                    Some(group) => group.notes.hear(from, notes),
                    // Others may be quicker to begin.
                    None => self.early.push((from, notes)),
                }
                match parcel {
                    Parcel::Gone(rank) => {
                        self.ended[from].get_or_insert(Broken::Lost(rank));
                    }
                    Parcel::Broken(broken) => {
                        self.ended[from].get_or_insert(broken);
                    }
                    part => self.heard[from].push_back(part),
                }
            }
            Err(fault) => self.garbled(from, fault),
        }
    }

    fn garbled(&mut self, from: usize, fault: Fault) {
        let first = self.group.as_ref().map_or(0, |group| from * group.answers.len());
        self.broken = self.broken.or(Some(Broken::Garbled(first, fault)));
    }

    fn take(&mut self, call: Call) {
        let group = self.group.as_mut();
        match (call, group) {
            (Call::Letter { to, letter }, _) => {
                self.outgoing.push(Shipment { to, lane: Lane::Letters, bytes: Arc::new(letter) });
            }
            (Call::Connect { central, timeout, notes, answers }, _) => {
                let seats = answers.len();
                self.early.drain(..).for_each(|(from, early)| notes.hear(from, early));
                self.group = Some(Group {
                    central,
                    timeout,
                    notes,
                    answers,
                    said: vec![None; seats],
                    left: vec![false; seats],
                    told: false,
                    began: None,
                    sent: false,
                    serve: None,
                });
            }
            (Call::Said { seat, said }, Some(group)) => {
                group.said[seat] = Some(said);
                group.began.get_or_insert_with(Instant::now);
            }
            (Call::Install(serve), Some(group)) => group.serve = Some(serve),
            (Call::Left { seat }, Some(group)) => group.left[seat] = true,
            (Call::Leave, _) if self.next == Next::GoOn => self.next = Next::Leave,
            (Call::Abort(code), _) => self.next = Next::Abort(code),
            // Ends are made by connecting, so that none says anything before.
            _ => {}
        }
    }

    fn advance(&mut self, group: &mut Group) {
        let first = self.process * group.answers.len();
        if self.broken.is_none() && group.began.is_some() {
            if !group.sent && group.said.iter().all(Option::is_some) {
                self.send_round(group);
            }
            if group.sent
                && self.lacking(group).is_none()
                && let Err(broken) = self.complete(group)
            {
                self.broken = Some(broken);
            }
            if self.broken.is_none() && group.began.is_some() {
                self.broken = self.missing(group, first);
            }
        }
        let left =
            (0..group.left.len()).find(|seat| group.left[*seat] && group.said[*seat].is_none());
        if let (false, Some(seat)) = (group.told, left) {
            group.told = true;
            self.tell_all(group, &Parcel::Gone(first + seat));
        }
        if let Some(broken) = self.broken {
            if !group.told {
                group.told = true;
                self.tell_all(group, &Parcel::Broken(broken));
            }
            for (said, answers) in group.said.iter_mut().zip(&group.answers) {
                if said.take().is_some() {
                    // Who is gone need not be told.
                    let _ = answers.send(Reply::Broken(broken));
                }
            }
            group.began = None;
        }
    }

    /// The processes whose part in a round this one waits for.
    fn partners(&self, group: &Group) -> impl Iterator<Item = usize> + use<> {
        let (here, central) = (self.process, group.central);
        (0..self.processes).filter(move |q| *q != here && (!central || here == 0 || *q == 0))
    }

    /// The first process that has not been heard in the round.
    fn lacking(&self, group: &Group) -> Option<usize> {
        self.partners(group).find(|process| self.heard[*process].is_empty())
    }

    /// Why a round that has begun will not be completed.
    fn missing(&self, group: &Group, first: usize) -> Option<Broken> {
        let seats = group.answers.len();
        let is_silent = |seat: &usize| group.said[*seat].is_none();
        if let Some(seat) = (0..seats).find(|seat| is_silent(seat) && group.left[*seat]) {
            return Some(Broken::Lost(first + seat));
        }
        let mut partners = self.partners(group).filter(|q| self.heard[*q].is_empty());
        if let Some(broken) = partners.find_map(|process| self.ended[process]) {
            return Some(broken);
        }
        let waited = group.began?.elapsed();
        if let Some(seat) = (0..seats).find(is_silent) {
            return (waited > group.timeout).then_some(Broken::Silent(first + seat));
        }
        // Who is late in another process is known better there, or by the server: their word comes
        // first.
        let process = self.lacking(group)?;
        let patience = if group.central && self.process != 0 { 1.75 } else { 1.25 };
        (waited > group.timeout.mul_f64(patience)).then_some(Broken::Silent(process * seats))
    }

    /// Sends this process's part in the round.
    fn send_round(&mut self, group: &mut Group) {
        group.sent = true;
        let seats = group.answers.len();
        let said: Vec<&Said> = group.said.iter().flatten().collect();
        let personal = said.iter().any(|said| matches!(said, Said::Each(_)));
        let notes = group.notes.tell();
        if group.central && self.process == 0 {
            return;
        }
        let mut shared = None;
        // Each begins with the next: at no time do all send to the same one.
        let order = (1..self.processes).map(|step| (self.process + step) % self.processes);
        let partners: Vec<usize> = self.partners(group).collect();
        for to in order.filter(|to| partners.contains(to)) {
            let ranks = to * seats..(to + 1) * seats;
            let write = || {
                let said = said.iter().map(|said| said.for_ranks(ranks.clone())).collect();
                Arc::new(Parcel::Round(said).write(notes))
            };
            let bytes = if personal { write() } else { shared.get_or_insert_with(write).clone() };
            self.outgoing.push(Shipment { to, lane: Lane::Rounds, bytes });
        }
    }

    /// Ends a round of which every part is there.
    fn complete(&mut self, group: &mut Group) -> Result<(), Broken> {
        let seats = group.answers.len();
        let mut parts: Vec<(usize, Parcel)> = Vec::new();
        for process in self.partners(group) {
            let part = self.heard[process].pop_front();
            parts.extend(part.map(|part| (process, part)));
        }
        let unlike = |process: usize, expected: usize, found: usize| {
            Broken::Garbled(process * seats, Fault::Length { expected, found })
        };
        let divided = |said: &Said| matches!(said, Said::Each(parts) if parts.len() != seats);
        let mine: Vec<Said> = group.said.iter_mut().filter_map(Option::take).collect();
        (group.began, group.sent) = (None, false);
        if group.central && self.process != 0 {
            let ranks = seats * self.processes;
            match parts.pop() {
                Some((_, Parcel::Answer(answer))) => group.hand_back(&answer),
                Some((_, Parcel::Round(all))) if all.len() == ranks && !all.iter().any(divided) => {
                    group.hand_out(&all);
                }
                _ => return Err(unlike(0, ranks, 0)),
            }
            return Ok(());
        }
        parts.push((self.process, Parcel::Round(Vec::new())));
        parts.sort_by_key(|(process, _)| *process);
        let mut all = Vec::with_capacity(seats * self.processes);
        let mut mine = Some(mine);
        for (process, part) in parts {
            match (part, process == self.process) {
                (_, true) => {
                    let first = process * seats;
                    let own = mine.take().into_iter().flatten();
                    all.extend(own.map(|said| said.for_ranks(first..first + seats)));
                }
                (Parcel::Round(said), _) if said.len() == seats => all.extend(said),
                (Parcel::Round(said), _) => return Err(unlike(process, seats, said.len())),
                _ => return Err(unlike(process, seats, 0)),
            }
        }
        if let Some(rank) = all.iter().position(divided) {
            return Err(unlike(rank / seats, seats, 0));
        }
        if !group.central {
            group.hand_out(&all);
            return Ok(());
        }
        match group.serve(&all) {
            Some(answer) => {
                group.hand_back(&answer);
                self.tell_all(group, &Parcel::Answer(answer));
            }
            None => {
                group.hand_out(&all);
                self.tell_all(group, &Parcel::Round(all));
            }
        }
        Ok(())
    }

    /// Sends a parcel to every other process.
    fn tell_all(&mut self, group: &Group, parcel: &Parcel) {
        let bytes = Arc::new(parcel.write(group.notes.tell()));
        for to in (0..self.processes).filter(|to| *to != self.process) {
            self.outgoing.push(Shipment { to, lane: Lane::Rounds, bytes: bytes.clone() });
        }
    }
}

impl Group {
    /// Gives every rank what all have said, what was divided to each its own part.
    fn hand_out(&self, all: &[Said]) {
        for (seat, answers) in self.answers.iter().enumerate() {
            let part = |said: &Said| match said {
                Said::All(message) | Said::Ask(message) => message.clone(),
                Said::Each(parts) => parts[seat].clone(),
            };
            // Who is gone need not be told.
            let _ = answers.send(Reply::All(all.iter().map(part).collect()));
        }
    }

    /// Gives every rank the server's answer.
    fn hand_back(&self, answer: &Payload) {
        self.answers.iter().for_each(|to| drop(to.send(Reply::Served(answer.clone()))));
    }

    /// The server's answer, if every rank asks for it and it has one.
    fn serve(&mut self, all: &[Said]) -> Option<Payload> {
        let asked = all.iter().map(|said| match said {
            Said::Ask(message) => Some(message.clone()),
            Said::All(_) | Said::Each(_) => None,
        });
        let messages: Vec<Payload> = asked.collect::<Option<_>>()?;
        let mut answer = Vec::new();
        self.serve.as_mut()?.serve(&messages, &mut answer).then(|| Payload::from(answer))
    }
}
