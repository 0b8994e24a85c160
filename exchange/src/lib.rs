//! Gradient compression and exchange: a gradient in on every rank, the mean gradient out.
//!
//! ```
//! use std::time::Duration;
//! use gradwire_exchange::schemes::topk;
//! use gradwire_exchange::{Bucketing, Exchange, Layout, SchemeConfig, mesh};
//!
//! let scheme = SchemeConfig::Topk(topk::Config { ratio: 0.5.into(), ..Default::default() });
//! let workers: Vec<_> = mesh(2, Duration::from_secs(10))
//!     .into_iter()
//!     .enumerate()
//!     .map(|(rank, collective)| {
//!         let scheme = scheme.clone();
//!         std::thread::spawn(move || {
//!             let layout = Layout::new([("weight".to_string(), 4)])?;
//!             let mut exchange =
//!                 Exchange::new(&scheme, Bucketing::Whole, layout, 0, collective)?;
//!             let mut gradient = [0.0, 4.0, rank as f32, -2.0];
//!             exchange.allreduce(1, &mut gradient)?;
//!             Ok::<_, gradwire_exchange::Error>(gradient)
//!         })
//!     })
//!     .collect();
//! for worker in workers {
//!     assert_eq!(worker.join().unwrap().unwrap(), [0.0, 4.0, 0.0, -2.0]);
//! }
//! ```
//!
//! # Where to start
//! * [`Exchange`] turns a gradient into the mean over ranks and reports the [`Traffic`]. It takes the
//!   flat gradient at once ([`allreduce`](Exchange::allreduce)), or one group of buckets after the
//!   other while the backward pass still runs ([`exchange_group`](Exchange::exchange_group)).
//! * [`SchemeConfig`] is one of the built-in [`schemes`], with its settings. A scheme of one's own is a
//!   [`Scheme`] that builds a [`Compressor`] (one message a step) or a [`Reducer`] (any number of
//!   rounds) for each bucket, handed to [`Exchange::with`]; [`contract::check`] tries it.
//! * [`Collective`] carries bytes between ranks: [`mesh()`] joins threads, [`cluster`] processes, [`Solo`] is one worker alone. A transport of one's own implements three
//!   methods of it.
//! * [`Topology`] says who hears whom and who averages: every rank, a server, or each its shard.
//! * [`Layout`] names the parameters, their shapes and places, [`Bucketing`] says which stretches of the
//!   gradient are compressed as one, [`Policy`] all that surrounds a scheme: what is sent
//!   uncompressed, momentum correction, clipping.
//! * [`wire`] has what messages are written and read with.
//! * [`network`] models what crossing a real network would take.
//!
//! The examples `own_scheme` and `own_transport` are whole programs.
//!
//! # What it promises
//! * A message is bytes, and its length is its cost: everything the decoder needs is in it.
//! * Sums run in rank order, so the mean is bit-identical on every rank.
//! * A non-finite gradient stops the step on every rank with the same [`Error`]; nothing is
//!   applied and the residual stays as it was.
//! * Every wait is bounded; bytes from a peer are checked before they are believed.

#![forbid(unsafe_code)]

#[macro_use]
extern crate gradwire_registry;

mod collective;
mod compress;
pub mod contract;
mod error;
mod exchange;
mod group;
mod layout;
mod levels;
mod measure;
pub mod network;
mod reducer;
#[doc(hidden)]
pub mod refusal;
pub mod rng;
pub mod schemes;
mod simd;
mod state;
mod support;
mod sync;
mod topology;
mod traffic;
mod turn;
pub mod wire;

#[cfg(feature = "mpi")]
pub use collective::mpi;
pub use collective::{Collective, Mismatch, Payload, Solo, cluster, mesh};
pub use compress::{
    About, Built, Coding, Compressor, Encoded, Fall, Feedback, FeedbackRule, Law, Norm, Properties,
    QsgdValues, Quantised, Ratio, Run, Seat, Soundness, SparseBlocks, Statistics, StepEnd,
    StepMessages, Values,
};
pub use error::{Awaited, Error, Result};
pub use exchange::Exchange;
pub use layout::{BucketRange, Bucketing, Layout, Parameter};
pub use reducer::{Alone, BucketGradient, Next, Reducer, Round};
pub use schemes::SchemeConfig;
pub use schemes::policy::{Policy, Rule};
pub use schemes::scheme::Scheme;
pub use state::{Entry, State};
pub use support::{Gradient, Support};
pub use topology::{Downlink, Topology, Wiring};
#[doc(hidden)]
pub use traffic::thread_time;
pub use traffic::{Gauge, Leg, Operation, Traffic};
pub use turn::Turn;
pub use wire::frame::Header;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
