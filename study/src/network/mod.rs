//! The time that training takes on other networks: recorded runs replayed on them, and advice for
//! runs that have not been made. What comes out are figures; the reports and the command line word
//! and draw them.
//!
//! The model of links itself is [`gradwire_exchange::network`].

pub mod advise;
pub mod replay;
pub mod report;
