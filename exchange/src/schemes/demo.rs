//! The strongest frequencies of a momentum, tile by tile of each parameter; what is sent leaves the momentum.
//!
//! # Paper
//! Peng, Quesnelle & Kingma 2024 ("DeMo: Decoupled Momentum Optimization", arXiv 2411.19870), algorithm 1:
//! m ← βm + g; q = the k strongest frequencies of each chunk of m; m ← m − q; ranks take the mean of q.
//!
//! # Idea
//! A momentum has slow parts, on which ranks will agree later, and fast ones, which are to be sent now. A
//! discrete cosine transform gathers what neighbours have in common in few numbers; those are the fast parts.
//! The momentum is a residual that fades: the exchange keeps it as it keeps every scheme's, under
//! `policy.feedback = { decay = 0.999 }`, which this scheme brings along.
//!
//! A parameter of shape \[a, b, c, …\] is a matrix of a rows and b·c·… columns, one of fewer dimensions a single
//! row. It is cut in tiles; each side of them is the largest divisor of the matrix's that is at most `chunk`.
//! A tile X becomes Dᵀ·X·D, D being the orthonormal transform (DCT-II) of its side. So a prime number of rows or columns
//! above `chunk` makes tiles of 1 in that direction, and a tile of at most k numbers is sent whole.
//!
//! # Wire
//! The frequencies lie tile by tile, row by row, parameter by parameter, as long as the bucket; of these a sparse
//! message (`compress/sparse.rs`).
//!
//! # Where we differ
//! From the paper: the momentum holds gradients, not gradients times the learning rate, as every residual does
//! here. The mean is that over all ranks, in which a rank counts as zero where it sent nothing, as in algorithm 1.
//! The sign of the mean (signSGD, which the paper updates by) belongs to the optimizer: `optimizer = { kind = "sgd",
//! momentum = 0, sign = true }`.
//!
//! From the authors' code: there the mean of a frequency is that over the ranks that sent it. Positions are coded over
//! the whole bucket, some 10 bits each at the defaults, where it sends them as 64 bits. It has matrices
//! and vectors only; kernels of convolutions are matrices here. Frequencies below the normal numbers of f32 wait.

use std::cell::RefCell;
use std::ops::Range;

use self::dct::{Dct, Transform};
use crate::compress::scheme::require;
use crate::compress::select::Selector;
use crate::compress::sparse::{self, Select, Sparsifier};
use crate::compress::values::{Coding, Values};
use crate::compress::{Built, Compressor, Encoded, FeedbackRule, Law, Properties, Seat, Soundness};
use crate::{Gauge, Policy, Result, Scheme};

mod dct;
#[cfg(test)]
mod tests;

/// The longest side of a tile: the transform of a side of n takes n multiplications for each number.
const LONGEST: usize = 128;

settings! {
    /// The settings of `demo`.
    pub struct Config {
        /// The longest side of a tile, 1 to 128. Default 64.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
        pub chunk: usize = 64,
        /// Frequencies of a tile that are sent, at least 1. Default 32: of a tile of 64 by 64 one in 128.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub k: usize = 32,
        /// What is left of the momentum from step to step, above 0 and at most 1. Default 0.999.
        #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
        pub decay: f64 = 0.999,
        /// How the frequencies are sent: `f32`, `f16`, `bf16`, `2bit`, or quantised, such as
        /// `{ kind = "qsgd", levels = 1 }`. Default `f32`.
        pub values: Values = Values::default(),
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "demo",
            line: "the strongest frequencies of tiles of a momentum, which they leave",
            paper: "Peng et al. 2024",
            law: self.values.law(Law::Contraction, true),
            soundness: Soundness::Sound,
            feedback: true,
        }
    }

    /// The momentum fades by `decay`.
    fn default_policy(&self) -> Policy {
        Policy { feedback: Some(FeedbackRule::Decay(self.decay)), ..Policy::default() }
    }

    fn validate(&self) -> Result<()> {
        let scheme = self.about().name;
        let good = (1..=LONGEST).contains(&self.chunk);
        require(good, scheme, "chunk", self.chunk, "write a side of 1 to 128, such as 64")?;
        require(
            self.k > 0,
            scheme,
            "k",
            self.k,
            "write 1 or more frequencies of a tile, such as 32",
        )?;
        let good = self.decay > 0.0 && self.decay <= 1.0;
        require(
            good,
            scheme,
            "decay",
            self.decay,
            "write a share above 0 and at most 1, such as 0.999",
        )?;
        self.values.validate(scheme)
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(Demo::new(self, seat))
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { chunk: 16, k: 4, decay: 0.5, ..Self::default() },
            Self { chunk: 8, k: 7, values: Values::Coded(Coding::TwoBits), ..Self::default() },
        ]
    }
}

/// The tiles of one parameter.
#[derive(Debug, Clone)]
struct Tiles {
    /// Where it lies in the bucket, and its frequencies among those of the bucket.
    at: Range<usize>,
    columns: usize,
    /// Of a tile.
    height: usize,
    width: usize,
}

impl Tiles {
    /// Of a parameter at `start` of the bucket.
    fn new(start: usize, shape: &[usize], chunk: usize) -> Self {
        let length: usize = shape.iter().product();
        let rows = if shape.len() < 2 { 1 } else { shape[0] };
        let columns = length.checked_div(rows).unwrap_or(0);
        let [height, width] = [rows, columns].map(|side| {
            (1..=side.min(chunk)).rev().find(|part| side.is_multiple_of(*part)).unwrap_or(1)
        });
        Self { at: start..start + length, columns, height, width }
    }

    fn size(&self) -> usize {
        self.height * self.width
    }

    /// The rows of a tile in the bucket, given where its frequencies begin.
    fn rows(&self, place: usize) -> impl Iterator<Item = Range<usize>> {
        let across = self.columns / self.width;
        let tile = (place - self.at.start) / self.size();
        let (down, right) = (tile / across * self.height, tile % across * self.width);
        let (start, columns, width) = (self.at.start + right, self.columns, self.width);
        (down..down + self.height).map(move |row| {
            let first = start + row * columns;
            first..first + width
        })
    }
}

/// DeMo on one bucket of one rank.
struct Demo {
    values: Values,
    length: usize,
    parameters: Vec<Tiles>,
    transforms: Dct,
    frequencies: Vec<f32>,
    strongest: Sparsifier<Strongest>,
    /// Memory of one tile, for decoding too, or of the frequencies of one parameter.
    tile: RefCell<Tile>,
}

/// A tile, as it is and as frequencies.
#[derive(Default)]
struct Tile {
    given: Vec<f32>,
    half: Vec<f32>,
    made: Vec<f32>,
}

impl Tile {
    /// Makes room for a tile of zeros.
    fn clear(&mut self, size: usize) {
        for part in [&mut self.given, &mut self.half, &mut self.made] {
            part.clear();
            part.resize(size, 0.0);
        }
    }
}

impl Demo {
    fn new(config: &Config, seat: &Seat) -> Self {
        let (mut parameters, mut start) = (Vec::new(), 0);
        for shape in &seat.shapes {
            let tiles = Tiles::new(start, shape, config.chunk);
            start = tiles.at.end;
            parameters.push(tiles);
        }
        parameters.retain(|tiles| !tiles.at.is_empty());
        let sides = parameters.iter().flat_map(|tiles| [tiles.height, tiles.width]);
        let choice = Strongest {
            k: config.k,
            parameters: parameters.clone(),
            selector: Selector::default(),
            positions: Vec::new(),
        };
        Self {
            values: config.values,
            length: seat.length,
            transforms: Dct::of(sides),
            frequencies: vec![0.0; seat.length],
            strongest: Sparsifier::new(choice, config.values, true, seat),
            tile: RefCell::default(),
            parameters,
        }
    }
}

impl Compressor for Demo {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        // No number of a tile is larger than the root of the sum of all squares.
        const LARGEST: f32 = f32::MAX / (2 * LONGEST) as f32;
        let tile = self.tile.get_mut();
        let mut fits = true;
        for tiles in &self.parameters {
            let places = tiles.at.clone().step_by(tiles.size());
            for (place, made) in
                places.zip(self.frequencies[tiles.at.clone()].chunks_exact_mut(tiles.size()))
            {
                tile.clear(tiles.size());
                for (row, at) in tile.given.chunks_exact_mut(tiles.width).zip(tiles.rows(place)) {
                    row.copy_from_slice(&gradient[at]);
                }
                let sides = [tiles.height, tiles.width];
                self.transforms.apply(Transform::There, sides, &tile.given, &mut tile.half, made);
                for value in made {
                    let size = value.abs();
                    fits &= size <= LARGEST;
                    *value = if size < f32::MIN_POSITIVE { 0.0 } else { *value };
                }
            }
        }
        match fits {
            true => self.strongest.encode(&self.frequencies, step, out),
            false => Encoded::Dense,
        }
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let most = self.strongest.choice.most(self.length);
        let tile = &mut *self.tile.borrow_mut();
        let mut at = Range::default();
        let mut add = |tile: &mut Tile, at: &Range<usize>| {
            if at.is_empty() {
                return;
            }
            let tiles = self.around(at.start);
            let sides = [tiles.height, tiles.width];
            let Tile { given, half, made } = tile;
            self.transforms.apply(Transform::Back, sides, given, half, made);
            for (row, at) in made.chunks_exact(tiles.width).zip(tiles.rows(at.start)) {
                sum[at].iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
            }
        };
        sparse::take(wire, most, self.length, self.values, |position, value| {
            if !at.contains(&position) {
                add(tile, &at);
                let tiles = self.around(position);
                let before = (position - tiles.at.start) % tiles.size();
                at = position - before..position - before + tiles.size();
                tile.clear(tiles.size());
            }
            tile.given[position - at.start] = value;
        })?;
        add(tile, &at);
        Ok(())
    }

    /// Adds frequencies.
    fn add_to_sum(&self, wire: &[u8], sum: &mut [f32]) -> Result<()> {
        let most = self.strongest.choice.most(self.length);
        sparse::take(wire, most, self.length, self.values, |position, value| {
            sum[position] += value;
        })?;
        Ok(())
    }

    fn finish_sum(&self, sum: &mut [f32]) {
        let mut tile = self.tile.borrow_mut();
        let Tile { given, half, made } = &mut *tile;
        for tiles in &self.parameters {
            // A tile's elements lie among those of others, whose frequencies are still to be read.
            given.clear();
            given.extend_from_slice(&sum[tiles.at.clone()]);
            for part in [&mut *half, &mut *made] {
                part.clear();
                part.resize(tiles.size(), 0.0);
            }
            let places = tiles.at.clone().step_by(tiles.size());
            for (place, frequencies) in places.zip(given.chunks_exact(tiles.size())) {
                let sides = [tiles.height, tiles.width];
                self.transforms.apply(Transform::Back, sides, frequencies, half, made);
                for (row, at) in made.chunks_exact(tiles.width).zip(tiles.rows(place)) {
                    sum[at].copy_from_slice(row);
                }
            }
        }
    }

    fn gauges(&self) -> &[Gauge] {
        self.strongest.gauges()
    }
}

impl Demo {
    /// The tiles of the parameter that a frequency is of.
    fn around(&self, position: usize) -> &Tiles {
        &self.parameters[self.parameters.partition_point(|tiles| tiles.at.end <= position)]
    }
}

/// The largest numbers of each tile.
struct Strongest {
    k: usize,
    parameters: Vec<Tiles>,
    selector: Selector,
    positions: Vec<u32>,
}

impl Select for Strongest {
    fn select(&mut self, frequencies: &[f32], _step: u64) {
        self.positions.clear();
        for tiles in &self.parameters {
            let mut first = tiles.at.start;
            for tile in frequencies[tiles.at.clone()].chunks_exact(tiles.size()) {
                if tile.len() <= self.k {
                    let there = (0..).zip(tile).filter(|(_, value)| **value != 0.0);
                    self.positions.extend(there.map(|(at, _): (u32, _)| first as u32 + at));
                } else {
                    let largest = self.selector.largest(tile, self.k);
                    self.positions.extend(largest.iter().map(|at| first as u32 + at));
                }
                first += tile.len();
            }
        }
    }

    fn positions(&self) -> &[u32] {
        &self.positions
    }

    fn most(&self, _length: usize) -> usize {
        let of = |tiles: &Tiles| tiles.at.len() / tiles.size() * self.k.min(tiles.size());
        self.parameters.iter().map(of).sum()
    }
}
