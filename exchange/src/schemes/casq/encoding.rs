//! What a message is made of, so that it has the size that it should have.

use super::clusters::{MOST_CLUSTERS, Members};
use super::sketch::Tables;
use super::{Config, Preset};
use crate::wire::{codes, count_bytes, huffman};

/// What a message will be made of.
pub(super) struct Encoding {
    pub(super) tables: Tables,
    /// The ids' code, if it is shorter than plain ids.
    pub(super) code: Option<huffman::Code>,
    /// Bytes of the ids.
    pub(super) id_bytes: u64,
    /// Whether the centres are sent along.
    pub(super) model: bool,
}

impl Config {
    /// How the message for `length` elements will be made up; `model` when there is one to send.
    pub(super) fn encoding(&self, length: usize, members: &[Members], model: bool) -> Encoding {
        let clusters = members.len();
        let mut counts = [0; MOST_CLUSTERS];
        for (count, members) in counts.iter_mut().zip(members) {
            *count = members.count;
        }
        let counts = &counts[..clusters];
        let mut id_bytes = codes::bytes(length, self.bits) as u64;
        let mut code = None;
        let (mut budget, mut carries) = (self.most_cells(length), model);
        if self.preset == Preset::Lean {
            let best = huffman::Code::new(counts);
            if best.bytes(counts) < id_bytes {
                (id_bytes, code) = (best.bytes(counts), Some(best));
            }
            let each = self.format().bytes() as u64;
            let room =
                |taken: u64| self.lean_bytes(length).saturating_sub(1 + id_bytes + taken) / each;
            // As many bytes for each table's size as the whole of the cells may need.
            let sizes = |cells: u64| (clusters * count_bytes(cells as u32)) as u64;
            let centres = 4 * clusters as u64;
            carries = model && room(centres + sizes(clusters as u64)) >= clusters as u64;
            let taken = if carries { centres } else { 0 };
            budget = room(taken + sizes(room(taken)));
        }
        let sizes = self.allocation.share(members, budget);
        Encoding { tables: Tables::new(&sizes[..clusters]), code, id_bytes, model: carries }
    }
}
