//! A scheme of one's own, outside of the crate: the largest of every eight elements, a byte for its place and four
//! for its value. `contract::check` tries the laws; four ranks pull weights to targets of their own, and so to the mean.
use gradwire_exchange::{wire::Fault, wire::Reader, *};
use std::{array, thread, time::Duration};

struct LargestOfEight;

impl Scheme for LargestOfEight {
    fn properties(&self) -> Properties {
        let (name, line, paper) = ("largest-of-eight", "the largest of every eight", "");
        let (law, soundness) = (Law::Contraction, Soundness::Sound);
        Properties { name, line, paper, law, soundness, feedback: true }
    }
    fn build(&self, _seat: &Seat) -> Built {
        Built::Codec(Box::new(LargestOfEight))
    }
}

impl Compressor for LargestOfEight {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        for block in gradient.chunks(8) {
            let largest = (0..block.len()).max_by_key(|i| block[*i].abs().to_bits()).unwrap_or(0);
            out.push(largest as u8);
            out.extend(block[largest].to_le_bytes());
        }
        Encoded::Message
    }
    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let mut reader = Reader::new(wire);
        for block in sum.chunks_mut(8) {
            let (place, value) = (reader.u8()?, f32::from_bits(reader.u32()?));
            let fault = Fault::Field { field: "place", found: place.into() };
            *block.get_mut(usize::from(place)).ok_or(fault)? += weight * value;
        }
        Ok(reader.finish()?)
    }
}

fn train(rank: usize, end: Box<dyn Collective>) -> Result<f32> {
    let (topology, layout) = (Topology::default(), Layout::new([("weights".to_string(), 64)])?);
    let mut exchange = Exchange::with(&LargestOfEight, topology, Bucketing::Whole, layout, 0, end)?;
    let mut weights = [0f32; 64];
    for step in 1..=1000 {
        let mut gradient: [f32; 64] = array::from_fn(|i| weights[i] - 0.01 * (i * rank) as f32);
        exchange.allreduce(step, &mut gradient)?;
        weights.iter_mut().zip(gradient).for_each(|(weight, mean)| *weight -= 0.01 * mean);
    }
    Ok((0..64).map(|i| (weights[i] - 0.015 * i as f32).abs()).fold(0.0, f32::max))
}

pub(crate) fn main() {
    contract::check(&LargestOfEight).expect("it keeps the laws");
    let ends = mesh(4, Duration::from_secs(10)).into_iter().enumerate();
    let threads: Vec<_> = ends.map(|(rank, end)| thread::spawn(move || train(rank, end))).collect();
    for thread in threads {
        let error = thread.join().expect("no thread panics").expect("no rank is lost");
        assert!(error < 0.05, "the largest error is {error}");
        println!("the largest error of a weight after 1,000 steps is {error:.4}");
    }
}
