//! Several "processes" within one, for tests of what is sent between processes.

use std::sync::Arc;
use std::time::Duration;

use super::{Cluster, Inbox, Lane, OnControl, Transport};

/// Joins as many processes as there are handlers of control messages, within this process: a rank is
/// whichever thread uses its [`Cluster`]. [`abort`](Cluster::abort) does nothing.
pub fn in_memory(on_control: Vec<OnControl>) -> Vec<Cluster> {
    let inboxes: Arc<[Arc<Inbox>]> =
        on_control.into_iter().map(|on_control| Arc::new(Inbox::new(on_control))).collect();
    let cluster = |(rank, inbox): (usize, &Arc<Inbox>)| {
        let transport = Arc::new(MemoryTransport { rank, inboxes: inboxes.clone() });
        Cluster::new((rank, inboxes.len()), inbox.clone(), transport)
    };
    inboxes.iter().enumerate().map(cluster).collect()
}

struct MemoryTransport {
    rank: usize,
    inboxes: Arc<[Arc<Inbox>]>,
}

impl Transport for MemoryTransport {
    fn send(&self, to: usize, lane: Lane, bytes: Arc<Vec<u8>>) {
        self.inboxes[to].arrived(self.rank, lane, bytes);
    }

    fn leave(&self, _patience: Duration) -> bool {
        true
    }

    fn abort(&self, _code: i32, _patience: Duration) {}
}
