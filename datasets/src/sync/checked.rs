//! A channel on the model checker's lock, in place of crossbeam's: same calls, same meaning, one
//! sender and one receiver. Its clock stands still: what waits is woken, or it is a deadlock.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crossbeam::channel::{RecvTimeoutError, SendError, TryRecvError};
#[cfg(feature = "loom")]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "loom"))]
use shuttle::sync::{Condvar, Mutex, MutexGuard};

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    sender: bool,
    receiver: bool,
}

impl<T> Shared<T> {
    fn open(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Sender<T>(Arc<Shared<T>>);

pub(crate) struct Receiver<T>(Arc<Shared<T>>);

pub(crate) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), capacity, sender: true, receiver: true };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (Sender(shared.clone()), Receiver(shared))
}

pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    bounded(usize::MAX)
}

impl<T> Sender<T> {
    pub(crate) fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.open();
        while state.receiver && state.queue.len() >= state.capacity {
            state = self.0.wait(state);
        }
        if !state.receiver {
            return Err(SendError(value));
        }
        state.queue.push_back(value);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.open();
        let value = state.queue.pop_front();
        self.0.changed.notify_all();
        match value {
            Some(value) => Ok(value),
            None if state.sender => Err(TryRecvError::Empty),
            None => Err(TryRecvError::Disconnected),
        }
    }

    pub(crate) fn recv_timeout(&self, _patience: Duration) -> Result<T, RecvTimeoutError> {
        let mut state = self.0.open();
        loop {
            if let Some(value) = state.queue.pop_front() {
                self.0.changed.notify_all();
                return Ok(value);
            }
            if !state.sender {
                return Err(RecvTimeoutError::Disconnected);
            }
            state = self.0.wait(state);
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.open().sender = false;
        self.0.changed.notify_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.open().receiver = false;
        self.0.changed.notify_all();
    }
}
