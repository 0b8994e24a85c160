//! A scheme of one's own, outside of the crate: of every run of `KEEP` elements the largest is sent, and
//! four threads train a line with it. It keeps the crate's laws; `contract::check` says so.
use std::time::Duration;

use gradwire_exchange::wire::Fault;
use gradwire_exchange::{
    Bucketing, Built, Compressor, Encoded, Error, Exchange, Law, Layout, Properties, Result,
    Scheme, Seat, Soundness, Topology, contract, mesh,
};

const KEEP: usize = 8;

/// The largest of every eight elements: one byte for its place, four for its value.
struct Blocks;

impl Compressor for Blocks {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        for block in gradient.chunks(KEEP) {
            let larger = |a: &usize, b: &usize| block[*a].abs().total_cmp(&block[*b].abs());
            let at = (0..block.len()).max_by(larger).unwrap_or(0);
            out.push(at as u8);
            out.extend(block[at].to_le_bytes());
        }
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let (expected, found) = (5 * sum.len().div_ceil(KEEP), wire.len());
        if found != expected {
            return Err(Error::Wire(Fault::Length { expected, found }));
        }
        for (block, decoded) in sum.chunks_mut(KEEP).zip(wire.as_chunks::<5>().0) {
            let fault = Fault::Field { field: "place", found: decoded[0].into() };
            let element = block.get_mut(usize::from(decoded[0])).ok_or(fault)?;
            *element +=
                weight * f32::from_le_bytes([decoded[1], decoded[2], decoded[3], decoded[4]]);
        }
        Ok(())
    }
}

struct LargestOfEight;

impl Scheme for LargestOfEight {
    fn properties(&self) -> Properties {
        Properties {
            name: "largest-of-eight",
            line: "the largest of every eight",
            paper: "",
            law: Law::Contraction,
            soundness: Soundness::Sound,
            feedback: true,
        }
    }

    fn build(&self, _seat: &Seat) -> Built {
        Built::Codec(Box::new(Blocks))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    contract::check(&LargestOfEight)?;
    let train = |rank: usize, end| -> Result<f32> {
        let layout = Layout::new([("weights".to_string(), 64)])?;
        let mut exchange =
            Exchange::with(&LargestOfEight, Topology::default(), Bucketing::Whole, layout, 0, end)?;
        let mut weights = [0f32; 64];
        for step in 1..=1000 {
            // Each rank pulls towards its own target; their mean is where all should end.
            let mut gradient: Vec<f32> = weights
                .iter()
                .enumerate()
                .map(|(i, w)| w - (i * (rank + 1)) as f32 * 0.01)
                .collect();
            exchange.allreduce(step, &mut gradient)?;
            weights.iter_mut().zip(&gradient).for_each(|(w, g)| *w -= 0.01 * g);
        }
        let target = |i: usize| i as f32 * 0.025;
        Ok(weights.iter().enumerate().map(|(i, w)| (w - target(i)).abs()).fold(0.0, f32::max))
    };
    let ends = mesh(4, Duration::from_secs(10)).into_iter().enumerate();
    let threads: Vec<_> =
        ends.map(|(rank, end)| std::thread::spawn(move || train(rank, end))).collect();
    for (rank, thread) in threads.into_iter().enumerate() {
        let error = thread.join().expect("no thread panics")?;
        println!("rank {rank}: largest error after 1,000 steps {error:.4}");
        assert!(error < 0.05, "the ranks did not converge");
    }
    Ok(())
}
