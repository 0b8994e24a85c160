//! What the person at the terminal sees.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};

use super::Recorder;
use super::display;
use super::event::{Event, Kind};
use super::json_lines::JsonLines;
use super::progress::Progress;

/// How much to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A progress bar and a line for each epoch on stderr (without a terminal: plain lines), and
    /// the summary on stdout at the end.
    #[default]
    Default,
    /// Warnings on stderr and one line on stdout at the end.
    Quiet,
    /// Every event as a JSON line on stdout, of the form of `metrics.jsonl`, and nothing else.
    Json,
}

/// Somewhere text goes.
pub(super) type Stream = Box<dyn Write + Send>;

/// Shows events to a person, or hands them to a program.
///
/// Dropping it takes an unfinished progress bar off the screen, so that what follows, an error for
/// instance, stands on a line of its own.
pub struct Console {
    face: Face,
}

enum Face {
    Progress(Box<Progress>),
    Quiet { out: Stream, err: Stream },
    Json(JsonLines<Stream>),
}

impl Console {
    /// Shows events on this process's stdout and stderr.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let bar = io::stderr().is_terminal() && !dumb;
        Self::with(mode, Box::new(io::stdout()), Box::new(io::stderr()), bar)
    }

    /// Shows events on these streams, with a bar (always on stderr) or without.
    fn with(mode: Mode, out: Stream, err: Stream, bar: bool) -> Self {
        let face = match mode {
            Mode::Default => Face::Progress(Box::new(Progress::new(out, err, bar))),
            Mode::Quiet => Face::Quiet { out, err },
            Mode::Json => Face::Json(JsonLines::new(out)),
        };
        Self { face }
    }

    /// Shows one event.
    ///
    /// # Errors
    /// Standard output was closed or is full. What goes to stderr is not worth a run: failures
    /// there are passed over.
    pub fn record(&mut self, event: &Event) -> Result<()> {
        let shown = match &mut self.face {
            Face::Progress(progress) => progress.record(event),
            Face::Json(lines) => lines.record(event),
            Face::Quiet { out, err } => match &event.kind {
                Kind::Warning(warning) => {
                    let _ = writeln!(err, "{}", display::warning(warning));
                    Ok(())
                }
                Kind::Finished(finished) => writeln!(out, "{}", display::one_line(finished)),
                _ => Ok(()),
            },
        };
        shown.context("cannot write to standard output")
    }

    /// Takes an unfinished progress bar off the screen, so that what follows stands on a line of
    /// its own.
    pub fn end(&mut self) {
        if let Face::Progress(progress) = &mut self.face {
            progress.clear();
        }
    }
}
