//! Speed on this machine: of training steps, and of schemes' encoding and decoding.

pub mod codecs;
pub mod training;
