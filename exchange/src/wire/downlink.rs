//! What a server says of one bucket: its mean, and what ranks learn from.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | form: 0 dense, 1 sparse, 2 compressed |
//! | … | the mean: 4·n bytes of f32; or a sparse message of f32 values where it is not 0; or a message of the scheme |
//! | … | the summary of the ranks' messages ([`Compressor::summarise`](crate::Compressor::summarise)) |
//! | 4 | the summary's length |

use super::{Fault, Read, Reader};

/// How the mean is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    /// Every element as f32.
    Dense = 0,
    /// The elements that are not 0, as f32, and their positions.
    Sparse = 1,
    /// Compressed again by the scheme.
    Compressed = 2,
}

/// One bucket's part of a server's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownlinkMessage<'a> {
    /// How the mean is written.
    pub form: Form,
    /// The mean.
    pub mean: &'a [u8],
    /// The summary.
    pub summary: &'a [u8],
}

impl<'a> DownlinkMessage<'a> {
    /// Takes a payload apart.
    pub fn read(payload: &'a [u8]) -> Read<Self> {
        let truncated = Fault::Truncated { needed: 5, left: payload.len() };
        let (rest, length) = payload.split_last_chunk().ok_or(truncated)?;
        let length = u32::from_le_bytes(*length) as usize;
        let mut reader = Reader::new(rest);
        let form = match reader.u8()? {
            0 => Form::Dense,
            1 => Form::Sparse,
            2 => Form::Compressed,
            found => return Err(Fault::Field { field: "form", found: found.into() }),
        };
        let rest = reader.rest();
        let truncated = Fault::Truncated { needed: length, left: rest.len() };
        let at = rest.len().checked_sub(length).ok_or(truncated)?;
        let (mean, summary) = rest.split_at(at);
        Ok(Self { form, mean, summary })
    }
}

/// Ends a payload whose summary has been appended from `summary_at` on.
pub fn close(summary_at: usize, out: &mut Vec<u8>) {
    let length = u32::try_from(out.len() - summary_at)
        .expect("invariant: a summary is bounded by the ranks' messages of one bucket");
    out.extend_from_slice(&length.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_comes_apart_again() {
        let mut out = vec![1];
        out.extend_from_slice(b"mean");
        let summary_at = out.len();
        out.extend_from_slice(b"summary");
        close(summary_at, &mut out);
        let downlink = DownlinkMessage { form: Form::Sparse, mean: b"mean", summary: b"summary" };
        assert_eq!(DownlinkMessage::read(&out), Ok(downlink));
        for (at, value) in [(0, 3), (12, 255)] {
            let mut broken = out.clone();
            broken[at] = value;
            assert!(DownlinkMessage::read(&broken).is_err());
        }
    }
}
