//! The progress of a run: a bar where there is a terminal, lines now and then where there is none.

use super::Stream;
use super::display::{self, Pace};
use super::event::{Event, Kind, Started, Step};
use super::live::Curves;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a bar is redrawn at most.
const REDRAW: Duration = Duration::from_millis(100);
/// The same of the curves above it.
const REDRAW_CURVES: Duration = Duration::from_secs(1);
/// Seconds between lines where there is no bar: of one run, and of each of many.
const LINE_SECONDS: [f64; 2] = [10.0, 60.0];

/// Shows the way through a run on `err`, and its summary on `out`.
pub(super) struct ProgressDisplay {
    out: Stream,
    err: Stream,
    /// Whether there is a terminal to draw a bar on.
    live: bool,
    /// Whether nothing but the way is shown.
    brief: bool,
    /// The epoch's bar, and when it was last drawn.
    bar: Option<(ProgressBar, Option<Instant>)>,
    /// What is being trained, and since when.
    run: Option<(Started, f64)>,
    /// The epoch under way.
    pace: Pace,
    /// When the last line was written.
    last_line: f64,
    /// What is drawn above the bar, and when.
    curves: Curves,
    drawing: Arc<Mutex<String>>,
    drawn: Option<Instant>,
}

impl ProgressDisplay {
    /// `brief` shows the way, and neither what is trained, nor epochs, nor the summary.
    pub(super) fn new(out: Stream, err: Stream, live: bool, brief: bool) -> Self {
        Self {
            out,
            err,
            live,
            brief,
            bar: None,
            run: None,
            pace: Pace::default(),
            last_line: 0.0,
            curves: Curves::default(),
            drawing: Arc::default(),
            drawn: None,
        }
    }

    pub(super) fn record(&mut self, event: &Event) -> io::Result<()> {
        match &event.kind {
            Kind::Started(started) => {
                if !self.brief {
                    self.line(&display::header(started));
                }
                self.run = Some((started.clone(), event.time));
                self.last_line = event.time;
            }
            Kind::Step(step) => self.step(event.time, step),
            Kind::Epoch(epoch) => {
                self.clear();
                self.curves.epoch(epoch);
                self.drawn = None;
                if let Some((started, _)) = self.run.as_ref().filter(|_| !self.brief) {
                    let row = display::row(started, epoch, &self.pace);
                    self.line(&row);
                }
                self.pace = Pace::default();
                self.last_line = event.time;
            }
            Kind::Warning(warning) => self.line(&display::warning(warning)),
            Kind::Finished(_) if self.brief => self.clear(),
            Kind::Finished(finished) => {
                self.clear();
                let started = self.run.as_ref().map(|(started, _)| started);
                write!(self.out, "\n{}", display::summary(finished, started))?;
                self.out.flush()?;
            }
            Kind::Failed(_) => self.clear(),
            Kind::Histograms(_) | Kind::Checkpoint(_) | Kind::Text(_) => {}
        }
        Ok(())
    }

    fn step(&mut self, time: f64, step: &Step) {
        let Some((started, since)) = &self.run else { return };
        self.pace.add(step);
        let done = (step.step + 1).saturating_sub(started.first_step).max(1);
        let left = started.steps.saturating_sub(step.step);
        let seconds_left = (time - since) / done as f64 * left as f64;

        if self.live {
            let steps = started.steps;
            if !self.brief {
                self.curves.step(step);
                if self.drawn.is_none_or(|at| at.elapsed() >= REDRAW_CURVES) {
                    let (rows, columns) = console::Term::stderr().size();
                    let drawing = self.curves.draw(steps, columns, rows);
                    *self.drawing.lock().unwrap_or_else(PoisonError::into_inner) = drawing;
                    self.drawn = Some(Instant::now());
                }
            }
            let before = step.epoch.saturating_sub(1) * started.steps_per_epoch;
            let before = before.saturating_add_signed(started.steps_ahead);
            let length = started.steps_per_epoch.min(started.steps.saturating_sub(before));
            let within = step.step.saturating_sub(before);
            let last = within == length;
            let (bar, drawn) = self
                .bar
                .get_or_insert_with(|| (bar(started, step.epoch, length, &self.drawing), None));
            if last || drawn.is_none_or(|at| at.elapsed() >= REDRAW) {
                *drawn = Some(Instant::now());
                bar.set_message(match last {
                    true => display::evaluating(step, &self.pace),
                    false => display::status(step, &self.pace, seconds_left),
                });
                bar.set_position(within);
            }
        } else if time - self.last_line >= LINE_SECONDS[usize::from(self.brief)] {
            let line = display::progress(started, step, &self.pace, seconds_left);
            self.line(&line);
            self.last_line = time;
        }
    }

    /// Writes a line above the bar. A closed stderr is no reason to stop a run.
    fn line(&mut self, line: &str) {
        let err = &mut self.err;
        match &self.bar {
            Some((bar, _)) => bar.suspend(|| drop(writeln!(err, "{line}"))),
            None => drop(writeln!(err, "{line}")),
        }
    }

    pub(super) fn clear(&mut self) {
        if let Some((bar, _)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.clear();
    }
}

fn bar(started: &Started, epoch: u64, length: u64, curves: &Arc<Mutex<String>>) -> ProgressBar {
    let curves = Arc::clone(curves);
    let style = ProgressStyle::with_template("{curves}{prefix} {wide_bar:.cyan/dim} {msg}")
        .expect("invariant: the template is valid")
        .progress_chars("━╸─")
        .with_key("curves", move |_: &ProgressState, line: &mut dyn Write| {
            let drawing = curves.lock().unwrap_or_else(PoisonError::into_inner);
            // A String takes everything.
            let _ = line.write_str(&drawing);
        });
    ProgressBar::new(length).with_style(style).with_prefix(display::epoch_of(started, epoch))
}
