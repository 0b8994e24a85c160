//! Blocks that are not all zeros, as f32: nothing is lost. Or as f16 or bf16, rounded.
//!
//! # Paper
//! Fei, Ho, Sahu, Canini & Sapio 2021 ("Efficient Sparse Collective Communication and its
//! application to Accelerate Distributed Deep Learning", OmniReduce), section 3.1: the gradient is
//! split into blocks, and only blocks with a non-zero element are sent.
//!
//! # Idea
//! A batch of text touches few rows of an embedding table; the gradient of all others is exactly
//! zero. Leaving those out changes no bit of the training and most of what crosses the wire. A
//! convolution's gradient has no such blocks, and is sent as it is.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4 | e, the number of elements sent |
//! | 4·e | the elements of the blocks that are sent, end to end; 2·e of 16 bits |
//! | … | the numbers of these ⌈e/64⌉ blocks (`wire/indices.rs`) |
//!
//! A block is 64 elements; the bucket's last may be shorter.
//!
//! # State
//! None. As f32 nothing is left pending, so there is no error feedback and no key for it. What
//! rounding to 16 bits misses is not made up for either: a residual would fill the blocks.
//!
//! # Where we differ from the paper
//! Its aggregators ask every worker for the next block that any of them has, block by block; here
//! each rank sends its blocks in one message, which any topology carries. Its blocks are of 256
//! elements, for the network cards of its testbed; 64 are half a row of a usual embedding table.
//! Only zeros with a plus sign are left out, so that decoding gives back every bit.
use crate::compress::{Built, Compressor, Encoded, Law, Properties, Seat, Soundness, SparseBlocks};
use crate::simd::wide;
use crate::wire::{Fault, Format, Reader, floats, indices};
use crate::{Result, Scheme, support};

/// Elements of a block: as in a gradient's [`Support`](crate::Support).
const BLOCK: usize = support::BLOCK;

/// Blocks that are looked through at a time.
const GROUP: usize = 64;

settings! {
    /// The settings of `nonzero`.
    pub struct Config {
        /// How elements travel: `f32`; or `bf16` or `f16`, rounded. Default `f32`.
        pub values: Format = Format::F32,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        let exact = self.values == Format::F32;
        Properties {
            name: "nonzero",
            line: "blocks of 64 elements that are not all zeros, as f32: lossless, for embedding tables",
            paper: "Fei et al. 2021 (OmniReduce)",
            law: if exact { Law::Exact } else { Law::Contraction },
            soundness: if exact { Soundness::Lossless } else { Soundness::Sound },
            feedback: false,
        }
    }

    fn build(&self, seat: &Seat) -> Built {
        let blocks = Vec::with_capacity(seat.length.div_ceil(BLOCK));
        Built::codec(Nonzero { length: seat.length, values: self.values, blocks })
    }

    fn examples() -> Vec<Self> {
        vec![Self { values: Format::F16 }, Self { values: Format::Bf16 }]
    }
}

struct Nonzero {
    length: usize,
    values: Format,
    /// The numbers of the blocks of the last message.
    blocks: Vec<u32>,
}

impl Nonzero {
    /// Appends a message of the blocks of the support that are not all zeros; without a support, of
    /// all such blocks.
    fn put(&mut self, gradient: &[f32], support: Option<&[u64]>, out: &mut Vec<u8>) -> Encoded {
        self.blocks.clear();
        let elements_at = out.len();
        out.extend_from_slice(&[0; 4]);
        for (group, elements) in gradient.chunks(GROUP * BLOCK).enumerate() {
            let candidates = support.map_or(u64::MAX, |support| support[group]);
            let mut some = wide!(blocks_with_something(elements, candidates));
            while some != 0 {
                let within = some.trailing_zeros() as usize;
                some &= some - 1;
                let start = within * BLOCK;
                let block = &elements[start..elements.len().min(start + BLOCK)];
                if !floats::all_finite(block) {
                    return Encoded::Dense;
                }
                self.blocks.push((group * GROUP + within) as u32);
                match self.values {
                    Format::F32 => floats::put(block, out),
                    rounded => rounded.put(block.iter().copied(), out),
                }
            }
        }
        let elements = (out.len() - elements_at - 4) / self.values.bytes();
        out[elements_at..elements_at + 4].copy_from_slice(&(elements as u32).to_le_bytes());
        indices::put(&self.blocks, out);
        Encoded::Message
    }
}

impl Compressor for Nonzero {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        self.put(gradient, None, out)
    }

    fn checks(&self) -> bool {
        true
    }

    fn decode_add(&self, wire: &[u8], start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let range = start..start + sum.len();
        let size = self.values.bytes();
        read(wire, self.length, self.values, |first, block| {
            let end = first + block.len() / size;
            let (from, to) = (first.max(range.start), end.min(range.end));
            if from < to {
                let sum = &mut sum[from - range.start..to - range.start];
                let block = &block[size * (from - first)..size * (to - first)];
                match self.values {
                    Format::F32 => floats::add(block.as_chunks().0, weight, sum),
                    rounded => {
                        for (sum, word) in sum.iter_mut().zip(block.chunks_exact(size)) {
                            *sum += weight * rounded.value(word);
                        }
                    }
                }
            }
        })
    }

    fn reads_ranges(&self) -> bool {
        true
    }

    fn sparse_blocks(&mut self) -> Option<&mut dyn SparseBlocks> {
        Some(self)
    }
}

impl SparseBlocks for Nonzero {
    fn encode_within(
        &mut self,
        gradient: &[f32],
        support: &[u64],
        _step: u64,
        out: &mut Vec<u8>,
    ) -> Encoded {
        self.put(gradient, Some(support), out)
    }

    fn each_block(&self, wire: &[u8], visit: &mut dyn FnMut(usize)) -> Result<()> {
        read(wire, self.length, self.values, |start, _| visit(start / BLOCK))
    }
}

/// Visits the blocks of a message for `length` elements of `size` bytes: each one's first position, its bytes.
fn read(
    wire: &[u8],
    length: usize,
    format: Format,
    mut visit: impl FnMut(usize, &[u8]),
) -> Result<()> {
    let mut reader = Reader::new(wire);
    let elements = reader.u32()? as usize;
    if elements > length {
        Err(Fault::Count { count: elements as u64, length })?;
    }
    let mut values = reader.take(format.bytes() * elements)?;
    format.check(values)?;
    let mut short = None;
    indices::take(&mut reader, elements.div_ceil(BLOCK), length.div_ceil(BLOCK), |number| {
        let start = number * BLOCK;
        let needed = format.bytes() * BLOCK.min(length - start);
        match values.split_at_checked(needed) {
            Some((block, rest)) => {
                values = rest;
                visit(start, block);
            }
            // Only the bucket's last block is shorter than the others.
            None => short = Some(Fault::Truncated { needed, left: values.len() }),
        }
    })?;
    if let Some(fault) = short {
        Err(fault)?;
    }
    if !values.is_empty() {
        Err(Fault::Trailing { left: values.len() })?;
    }
    Ok(reader.finish()?)
}

/// A bit for each of these blocks of a group of which any bit of an element is set.
#[inline(always)]
fn blocks_with_something(elements: &[f32], of: u64) -> u64 {
    let (mut rest, mut some) = (of, 0);
    while rest != 0 {
        let within = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        let start = within * BLOCK;
        if start >= elements.len() {
            break;
        }
        let block = &elements[start..elements.len().min(start + BLOCK)];
        let any = block.iter().fold(0, |any, value| any | value.to_bits());
        some |= u64::from(any != 0) << within;
    }
    some
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::round_trip;

    fn encode(gradient: &[f32]) -> Vec<u8> {
        round_trip(&Config::default(), gradient, 1).0
    }

    fn decode(wire: &[u8], length: usize) -> Result<Vec<f32>> {
        let mut sum = vec![0.0; length];
        Config::default()
            .codec(&Seat::alone(length, 1))
            .unwrap()
            .decode_add(wire, 0, 1.0, &mut sum)
            .map(|()| sum)
    }

    #[test]
    fn zeros_cost_nothing_and_the_rest_comes_back() {
        let mut gradient = vec![0.0; 10_000];
        gradient[0] = 1.5;
        gradient[64 * 70 + 63] = f32::MIN_POSITIVE / 2.0;
        gradient[64 * 71] = -0.25;
        gradient[9_999] = -3.0;
        let wire = encode(&gradient);
        let whole = 3 * 64 + 10_000 % 64;
        assert!((4 + 4 * whole + 2..4 + 4 * whole + 16).contains(&wire.len()), "{}", wire.len());
        assert_eq!(decode(&wire, 10_000).unwrap(), gradient);
        assert_eq!(encode(&[0.0; 200]), [0; 4]);
        assert_eq!(encode(&[]), [0; 4]);
        // A minus sign is something to say.
        assert!(encode(&[-0.0]).len() > 4);
    }

    #[test]
    fn what_is_known_to_be_zero_changes_no_byte() {
        let mut gradient = vec![0.0; 9_000];
        let mut support = crate::Support::nothing(9_000);
        for start in [0, 70, 4_095, 8_990] {
            gradient[start..start + 5].fill(1.0);
            support.add(start..start + 5);
        }
        // More than there is.
        support.add(5_000..6_000);
        let mut compressor = Config::default().codec(&Seat::alone(9_000, 1)).unwrap();
        let mut wire = Vec::new();
        compressor.sparse_blocks().unwrap().encode_within(&gradient, support.words(), 1, &mut wire);
        assert_eq!(wire, encode(&gradient));
        gradient[71] = f32::INFINITY;
        assert_eq!(compressor.encode(&gradient, 1, &mut wire), Encoded::Dense);
    }
}
