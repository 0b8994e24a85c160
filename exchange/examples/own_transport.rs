//! A transport of one's own: two ranks at the ends of a socket pair. What a transport owes is in
//! `Pair::allgather`: everybody's message in order of rank, every wait bounded, and no memory that
//! a peer's bytes can ask for before they are there.
//!
//! `cargo run --release --example own_transport`

#[cfg(unix)]
pub(crate) mod pair {
    use std::io::{self, ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use gradwire_exchange::{Awaited, Collective, Error, Payload, Result};

    /// The longest message that is taken from a peer.
    const LONGEST: u64 = 1 << 32;

    /// One of two ranks.
    pub(crate) struct Pair {
        rank: usize,
        timeout: Duration,
        socket: UnixStream,
    }

    /// Two ranks, joined.
    pub(crate) fn pair(timeout: Duration) -> io::Result<[Pair; 2]> {
        let (zero, one) = UnixStream::pair()?;
        for socket in [&zero, &one] {
            socket.set_read_timeout(Some(timeout))?;
            socket.set_write_timeout(Some(timeout))?;
        }
        let end = |rank, socket| Pair { rank, timeout, socket };
        Ok([end(0, zero), end(1, one)])
    }

    impl Collective for Pair {
        fn rank(&self) -> usize {
            self.rank
        }

        fn world_size(&self) -> usize {
            2
        }

        fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
            // Both ends write at once: a message that is longer than the socket's buffer is written by
            // a thread of its own, while this one reads.
            let theirs = std::thread::scope(|scope| {
                let writing = scope.spawn(|| send(&self.socket, &mine));
                let theirs = receive(&self.socket);
                writing.join().expect("writing does not panic").and(theirs)
            });
            let theirs = theirs.map_err(|error| self.blame(&error))?;
            let mut messages = [Payload::from(mine), Payload::from(theirs)];
            messages.rotate_right(self.rank);
            Ok(messages.into())
        }
    }

    impl Pair {
        fn blame(&self, error: &io::Error) -> Error {
            let (rank, by, awaited) = (1 - self.rank, self.rank, Awaited::Message);
            match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    Error::Timeout { rank, by, awaited, after: self.timeout }
                }
                ErrorKind::InvalidData => Error::Transport { problem: error.to_string() },
                _ => Error::PeerLost { rank, by, awaited },
            }
        }
    }

    fn send(mut socket: &UnixStream, message: &[u8]) -> io::Result<()> {
        socket.write_all(&(message.len() as u64).to_le_bytes())?;
        socket.write_all(message)
    }

    fn receive(mut socket: &UnixStream) -> io::Result<Vec<u8>> {
        let mut length = [0; 8];
        socket.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST {
            let problem = format!("the peer announces {length} bytes, more than {LONGEST}");
            return Err(io::Error::new(ErrorKind::InvalidData, problem));
        }
        // Grows with what arrives, and not by what is announced.
        let mut message = Vec::new();
        match socket.take(length).read_to_end(&mut message)? as u64 {
            read if read == length => Ok(message),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::time::Duration;

    use gradwire_exchange::schemes::powersgd;
    use gradwire_exchange::{Bucketing, Collective, Exchange, Layout, Result, SchemeConfig};

    // Long messages in several rounds: PowerSGD's first step sends the matrix as it is.
    const LENGTH: usize = 512 * 512;
    let run = |end: pair::Pair| -> Result<Vec<f32>> {
        let rank = end.rank();
        let layout = Layout::shaped([("weight".to_string(), vec![512, 512])])?;
        let scheme =
            SchemeConfig::Powersgd(powersgd::Config { start_step: 2, ..Default::default() });
        let mut exchange = Exchange::new(&scheme, Bucketing::Whole, layout, 0, Box::new(end))?;
        let mut gradient = vec![0f32; LENGTH];
        for step in 1..=4 {
            let value = |i: usize| ((i % 977) as f32 * 0.01 + (step + rank as u64) as f32).sin();
            gradient.iter_mut().enumerate().for_each(|(i, element)| *element = value(i));
            exchange.allreduce(step, &mut gradient)?;
        }
        Ok(gradient)
    };
    let ends = pair::pair(Duration::from_secs(10))?;
    let means: Vec<Result<Vec<f32>>> = std::thread::scope(|scope| {
        let ranks = ends.map(|end| scope.spawn(|| run(end)));
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    });
    let means = means.into_iter().collect::<Result<Vec<_>>>()?;
    assert_eq!(means[0], means[1]);
    println!("the same {LENGTH} means on both ranks");
    Ok(())
}

#[cfg(not(unix))]
fn main() {
    println!("this example needs the socket pairs of Unix");
}
