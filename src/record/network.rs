//! `network.jsonl`: of every step, what each rank computed and sent: enough to tell how long the
//! same run would have taken on any network.
//!
//! The first line is a [`Header`], every other a [`Row`], or another header where the run was resumed,
//! perhaps by another number of ranks; rows follow one another without a gap.
//! Times are nanoseconds, sizes are bytes, lists run over ranks and, within them, over the collectives
//! of the step in their order: one for each group of buckets and kind of message.

use crate::disk::Disk;
use anyhow::{Context, Result, ensure};
use gradwire_exchange::network::Pattern;
use gradwire_exchange::{Operation, Topology};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file's name in a run's folder.
pub const FILE: &str = "network.jsonl";

/// The most ranks that a record may be of.
const MAX_RANKS: usize = u16::MAX as usize;

/// The largest record that is read: a thousand bytes for each of four million steps.
const MAX_BYTES: u64 = 1 << 32;

/// A header, and the steps that were taken under it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// What holds for all of the steps.
    pub header: Header,
    /// The steps, in order.
    pub rows: Vec<Row>,
}

/// What holds for all steps of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of this format: 1.
    pub network: u32,
    /// World size.
    pub ranks: usize,
    /// Compute threads of each rank.
    pub threads: usize,
    /// What computing is measured by.
    pub clock: Meter,
    /// The scheme with its settings.
    pub scheme: String,
    /// Whether messages can be summed on the way, as a ring allreduce does.
    pub summable: bool,
    /// How messages travelled: `allgather`, `server`, `sharded`, `two-level of 4`.
    pub topology: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// What every random stream of the run derives from.
    pub seed: u64,
}

/// [`Topology::pattern`] by what a record calls the topology; `None` for no such topology.
pub fn pattern(topology: &str) -> Option<Pattern> {
    Topology::named(topology).map(Topology::pattern)
}

/// What computing is measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Meter {
    /// The worker's own processor time: other workers on the same cores are not charged.
    Cpu,
    /// The time that passed: a worker of several threads, or one whose device computes, has no clock of
    /// its own, so the record is only as good as the machine was quiet. Encoding and decoding, which one
    /// thread does, are still that thread's processor time.
    Wall,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The step, 1-based.
    pub step: u64,
    /// Of each rank: data, forward pass, backward pass, and what follows the exchange.
    pub compute: Vec<[u64; 4]>,
    /// Of each rank and collective: encoding.
    pub encode: Vec<Vec<u64>>,
    /// Of each rank and collective: decoding and averaging.
    pub decode: Vec<Vec<u64>>,
    /// Of each rank and collective: bytes sent.
    pub up: Vec<Vec<u64>>,
    /// Of each rank and collective: bytes that came back from the server, or of the reduced share that
    /// the rank passed on. Absent where the topology has neither.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<Vec<u64>>,
    /// Of each rank and collective: bytes to other ranks of its group. Absent where ranks speak one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub local: Vec<Vec<u64>>,
    /// Of each collective: what the server took to aggregate. Absent where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregate: Vec<u64>,
    /// Of each rank: what compressors learnt after the last collective.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learn: Vec<u64>,
    /// Of each collective: bytes of what it is about as plain f32; 0 for a later round about the same.
    /// Absent where one collective is about the whole gradient.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense: Vec<u64>,
    /// Of each collective: which one it was. Absent where all are messages that travel as the
    /// header's topology has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<Operation>,
    /// Of each collective: how much of the backward pass was over when its gradient was final, 0 to 1.
    /// Absent where the exchange followed the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ready: Vec<f64>,
    /// Steps that follow this one before the ranks wait for what it sent, if any do.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Row {
    /// Checks that it has a place for every rank and group.
    fn check(&self, ranks: usize, after: u64) -> Result<()> {
        ensure!(
            self.step == after + 1,
            "step {} does not follow step {after}: lines are missing or out of order",
            self.step
        );
        let of_ranks = [("compute", self.compute.len(), false), ("learn", self.learn.len(), true)];
        for (name, length, optional) in of_ranks {
            ensure!(
                length == ranks || (optional && length == 0),
                "`{name}` is of {length} ranks, the run of {ranks}"
            );
        }
        let groups = self.up.first().map_or(0, Vec::len);
        let lists = [
            ("encode", &self.encode, false),
            ("decode", &self.decode, false),
            ("up", &self.up, false),
            ("down", &self.down, true),
            ("local", &self.local, true),
        ];
        for (name, list, optional) in lists {
            let fits = list.len() == ranks && list.iter().all(|of| of.len() == groups);
            ensure!(
                fits || (optional && list.is_empty()),
                "`{name}` does not hold {groups} collectives of {ranks} ranks"
            );
        }
        let Self { aggregate, dense, ready, operations, .. } = self;
        let lengths = [aggregate.len(), dense.len(), ready.len(), operations.len()];
        ensure!(
            lengths.into_iter().all(|length| length == 0 || length == groups),
            "`aggregate`, `dense`, `ready` or `operations` does not hold {groups} collectives"
        );
        ensure!(
            ready.iter().all(|share| (0.0..=1.0).contains(share)),
            "`ready` holds what is no share of the backward pass, 0 to 1"
        );
        Ok(())
    }
}

/// Reads the record of the run in `folder`. A last line that was never finished, as a killed run
/// leaves it, does not count.
///
/// # Errors
/// When there is no such record, or a line is damaged: with file and line.
pub fn read(disk: &Disk, folder: &Path) -> Result<Vec<Stretch>> {
    let path = folder.join(FILE);
    let bytes = disk.read(&path, MAX_BYTES).with_context(|| {
        format!(
            "cannot read {}: is {} the folder of a run, recorded without record.network=false?",
            path.display(),
            folder.display()
        )
    })?;
    parse(&bytes, &path)
}

fn parse(bytes: &[u8], path: &Path) -> Result<Vec<Stretch>> {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let at = |line: usize| format!("{}, line {line}", path.display());
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut last = 0;
    for (number, line) in (1..).zip(bytes[..whole].split(|byte| *byte == b'\n')) {
        if line.is_empty() && number > 1 {
            continue;
        }
        let Some(stretch) = stretches.last_mut().filter(|_| !line.starts_with(b"{\"network\""))
        else {
            let header = header(line).with_context(|| at(number))?;
            stretches.push(Stretch { header, rows: Vec::new() });
            continue;
        };
        let row: Row = serde_json::from_slice(line)
            .with_context(|| format!("{}: this is no step; the record is damaged", at(number)))?;
        row.check(stretch.header.ranks, last).with_context(|| at(number))?;
        last = row.step;
        stretch.rows.push(row);
    }
    stretches.retain(|stretch| !stretch.rows.is_empty());
    Ok(stretches)
}

fn header(line: &[u8]) -> Result<Header> {
    let header: Header = serde_json::from_slice(line).context("no header of a network record")?;
    let Header { network, ranks, .. } = header;
    ensure!(network == 1, "version {network} of the format; this program reads version 1");
    ensure!((1..=MAX_RANKS).contains(&ranks), "{ranks} ranks");
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::super::json_lines::JsonLines;
    use super::*;

    fn header(ranks: usize) -> Header {
        Header {
            network: 1,
            ranks,
            threads: 1,
            clock: Meter::Cpu,
            scheme: "dense".into(),
            summable: true,
            topology: "allgather".into(),
            parameters: 10,
            seed: 1,
        }
    }

    fn row(step: u64) -> Row {
        Row {
            step,
            compute: vec![[1, 2, 3, 4]; 2],
            encode: vec![vec![5, 6]; 2],
            decode: vec![vec![7, 8]; 2],
            up: vec![vec![100, 200]; 2],
            ready: vec![0.5, 1.0],
            learn: vec![9, 10],
            dense: vec![400, 800],
            ..Row::default()
        }
    }

    fn written(rows: &[Row]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut lines = JsonLines::new(&mut bytes);
        lines.write(&header(2)).unwrap();
        rows.iter().for_each(|row| lines.write(row).unwrap());
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let rows: Vec<Row> = (1..=3).map(row).collect();
        let bytes = written(&rows);
        let read = |bytes: &[u8]| parse(bytes, Path::new("f")).unwrap();
        assert_eq!(read(&bytes), [Stretch { header: header(2), rows: rows.clone() }]);
        // A line that was never finished.
        let torn = &bytes[..bytes.len() - 5];
        assert_eq!(read(torn)[0].rows, rows[..2]);
        // Gone on with after step 2, at first in vain, by one rank.
        let end = torn[..torn.len() - 100].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        let mut gone_on = torn[..end].to_vec();
        let mut lines = JsonLines::new(&mut gone_on);
        let one = |lists: &[Vec<u64>]| lists[..1].to_vec();
        let Row { compute, encode, decode, up, .. } = row(3);
        let compute = compute[..1].to_vec();
        let (encode, decode, up) = (one(&encode), one(&decode), one(&up));
        let alone = Row { step: 3, compute, encode, decode, up, ..Row::default() };
        lines.write(&header(5)).unwrap();
        lines.write(&header(1)).unwrap();
        lines.write(&alone).unwrap();
        let both = read(&gone_on);
        assert_eq!((both.len(), both[0].rows.len()), (2, 2), "{both:?}");
        assert_eq!(both[1], Stretch { header: header(1), rows: vec![alone] });
    }

    #[test]
    fn damage_is_told_with_file_and_line() {
        let good = written(&[row(1), row(2)]);
        let text = String::from_utf8(good.clone()).unwrap();
        for (bad, part) in [
            (String::new(), "a/b, line 1"),
            ("{}\n".into(), "line 1: no header"),
            (text.replacen("\"network\":1", "\"network\":9", 1), "version 9"),
            (text.replacen("\"ranks\":2", "\"ranks\":0", 1), "line 1: 0 ranks"),
            (text.replacen("\"ranks\":2", "\"ranks\":3", 1), "line 2: `compute` is of 2 ranks"),
            (text.replacen("\"step\":2", "\"step\":5", 1), "line 3: step 5 does not follow step 1"),
            (
                text.replacen("[[100,200],", "[[100],", 1),
                "line 2: `encode` does not hold 1 collectives",
            ),
            (text.replacen("[0.5,1.0]", "[0.5,7.0]", 1), "line 2: `ready`"),
            (text.replacen("[1,2,3,4]", "[1,2,3,-4]", 1), "line 2: this is no step"),
            (text.replacen("\"up\"", "\"down\"", 1), "line 2"),
            (text.replacen("[9,10]", "[9]", 1), "line 2: `learn` is of 1 ranks"),
            (text.replacen("[400,800]", "[400]", 1), "line 2: `aggregate`, `dense`"),
        ] {
            let error = format!("{:#}", parse(bad.as_bytes(), Path::new("a/b")).unwrap_err());
            assert!(error.contains(part), "{part}: {error}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let _ = parse(&bad, Path::new("a/b"));
        }
    }
}
