//! The time that training takes on other networks: recorded runs replayed on them, and advice for
//! runs that have not been made.
//!
//! The model of links itself is [`gradwire_exchange::network`].

pub mod advise;
pub mod replay;
pub mod report;
