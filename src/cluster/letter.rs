//! What the processes of a job write each other.

use super::blob::Blob;
use super::hello::{Go, Hello};
use serde::{Deserialize, Serialize};

/// A letter.
#[derive(Serialize, Deserialize)]
pub enum Letter {
    /// From process 0, first of all: the recipe, as TOML.
    Recipe(String),
    /// To process 0: what this process would train with.
    Hello(Box<Hello>),
    /// From process 0: begin.
    Go(Box<Go>),
    /// From process 0: the run does not begin.
    Refused,
    /// To process 0: what a worker tells, which whoever trains can read.
    Report(Blob),
    /// From process 0: everything is written.
    Bye,
}

#[cfg(test)]
mod tests {
    use super::super::blob::{decode, encode};
    use super::*;

    #[test]
    fn what_is_no_letter_is_an_error() {
        let bytes = encode(&Letter::Report(Blob(vec![7; 100]))).unwrap();
        let Letter::Report(found) = decode(&bytes).unwrap() else { panic!("another letter") };
        assert_eq!(found, Blob(vec![7; 100]));
        assert!((0..bytes.len()).all(|end| decode::<Letter>(&bytes[..end]).is_err()));
        assert!(decode::<Letter>(&[&bytes[..], &[0]].concat()).is_err());
    }
}
