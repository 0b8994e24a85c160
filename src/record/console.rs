//! What the person at the terminal sees.

use super::event::{Event, Kind};
use super::json_lines::JsonLines;
use super::progress::ProgressDisplay;
use super::{Stream, display};
use anyhow::{Context, Result};
use std::io::{self, IsTerminal, Write};

/// How much to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A progress bar and a line for each epoch on stderr (without a terminal: plain lines), and
    /// the summary on stdout at the end.
    #[default]
    Default,
    /// Of many runs: a progress bar (without a terminal: a line every minute) and warnings on
    /// stderr.
    Brief,
    /// Warnings on stderr and one line on stdout at the end.
    Quiet,
    /// Of many runs: warnings on stderr.
    Silent,
    /// Every event as a JSON line on stdout, of the form of `metrics.jsonl`, and nothing else.
    Json,
}

/// Shows events to a person, or hands them to a program.
///
/// Dropping it takes an unfinished progress bar off the screen, so that what follows, an error for
/// instance, stands on a line of its own.
pub struct Console(Face);

enum Face {
    Progress(Box<ProgressDisplay>),
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
        Self(match mode {
            Mode::Default | Mode::Brief => {
                let brief = mode == Mode::Brief;
                Face::Progress(Box::new(ProgressDisplay::new(out, err, bar, brief)))
            }
            Mode::Quiet => Face::Quiet { out, err },
            Mode::Silent => Face::Quiet { out: Box::new(io::sink()), err },
            Mode::Json => Face::Json(JsonLines::new(out)),
        })
    }

    /// Shows one event.
    ///
    /// # Errors
    /// Standard output was closed or is full. What goes to stderr is not worth a run: failures
    /// there are passed over.
    pub fn record(&mut self, event: &Event) -> Result<()> {
        let shown = match &mut self.0 {
            Face::Progress(progress) => progress.record(event),
            Face::Json(lines) => lines.write(event),
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

    /// Takes an unfinished progress bar off the screen.
    pub fn end(&mut self) {
        if let Face::Progress(progress) = &mut self.0 {
            progress.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Epoch, Failed, Finished, Started, Step, Warning};
    use super::super::memory::MemoryStream;
    use super::super::summary::Summary;
    use super::*;

    /// A console, and what stands on its stdout and stderr.
    fn console(mode: Mode, bar: bool) -> (Console, impl Fn() -> (String, String)) {
        let (out, err) = (MemoryStream::default(), MemoryStream::default());
        let console = Console::with(mode, Box::new(out.clone()), Box::new(err.clone()), bar);
        let plain = |screen: &MemoryStream| console::strip_ansi_codes(&screen.text()).into_owned();
        (console, move || (plain(&out), plain(&err)))
    }

    /// Two epochs of two steps, a step every six seconds, and an end.
    fn run() -> Vec<Event> {
        let mut time = 1000.0;
        let mut at = |event: Event| {
            time += 6.0;
            Event { time, ..event }
        };
        let mut events = vec![at(Event::from(Started {
            folder: "runs/out/first-look/now".into(),
            model: "resnet20".into(),
            dataset: "cifar10".into(),
            scheme: "topk 1 %".into(),
            workers: 2,
            threads: 1,
            parameters: 272_474,
            unit: "images".into(),
            train_samples: 50_000,
            test_samples: 10_000,
            batch: 128,
            epochs: 2,
            steps_per_epoch: 2,
            steps: 4,
            first_step: 1,
            ..Started::default()
        }))];
        for step in 1..=4 {
            let epoch = 1 + (step - 1) / 2;
            events.push(at(Event::from(Step {
                step,
                epoch,
                loss: 2.0 / step as f64,
                accuracy: Some(0.25 * step as f64),
                samples: 128,
                seconds: 2.0,
                wire_bytes: 5000.0,
                wire_bytes_total: 10_000 * step,
                dense_bytes: 500_000,
                bits_per_parameter: 0.32,
                ..Step::default()
            })));
            if step == 3 {
                let message = "careful".into();
                events.push(at(Event::from(Warning { step: Some(3), message })));
            }
            if step % 2 == 0 {
                events.push(at(Event::from(Epoch {
                    bits_per_byte: None,
                    epoch,
                    step,
                    train_loss: 1.5,
                    train_accuracy: Some(0.5),
                    test_loss: (epoch == 2).then_some(1.25),
                    test_accuracy: (epoch == 2).then_some(0.625),
                    test_top5_accuracy: (epoch == 2).then_some(0.9375),
                    seconds: 4.0,
                    evaluation_seconds: 1.0,
                    samples_per_second: 64.0,
                })));
            }
        }
        let mut summary = Summary::default();
        events.iter().for_each(|event| summary.observe(event));
        let folder = "runs/out/first-look/now".into();
        events.push(at(Event::from(Finished { summary, folder, out: "runs/out".into() })));
        events
    }

    /// What stands on stdout and stderr after the run.
    fn show(mode: Mode, bar: bool) -> (String, String) {
        let (mut console, shown) = console(mode, bar);
        run().iter().for_each(|event| console.record(event).unwrap());
        shown()
    }

    const HEAD: &str = "\
resnet20 on cifar10, topk 1 %, 2 workers × 1 thread
272,474 parameters, 50,000 training and 10,000 test images
2 epochs of 2 steps, 128 images a step
record in runs/out/first-look/now

  epoch  train loss     acc  test loss     acc  images/s  bits/param     time
";

    #[test]
    fn without_a_terminal_there_are_lines() {
        let (out, err) = show(Mode::Default, false);
        let expected =
            "    1/2 step 2  loss 1.500  acc 50.0%  64 images/s  0.32 bits/param  12s left
    1/2      1.5000   50.0%          –       –        64        0.32     5.0s
warning at step 3: careful
    2/2 step 4  loss 0.583  acc 100.0%  64 images/s  0.32 bits/param  0.0s left
    2/2      1.5000   50.0%     1.2500   62.5%        64        0.32     5.0s
";
        assert_eq!(err, format!("{HEAD}{expected}"));
        let expected = "
trained   resnet20 on cifar10, topk 1 %, 2 workers × 1 thread
result    62.5% test accuracy (top 5: 93.8%), test loss 1.2500
speed     64 images/s, 4 steps in 42s
wire      40 kB, 100× less than dense (4 MB), 0.32 bits per parameter
";
        assert!(out.starts_with(expected), "{out}");
        let expected = "
record    runs/out/first-look/now
curves    tensorboard --logdir runs/out
";
        assert!(out.ends_with(expected), "{out}");
        for line in out.lines().chain(err.lines()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn with_a_bar_only_epochs_are_lines() {
        let (_, err) = show(Mode::Default, true);
        let expected =
            "    1/2      1.5000   50.0%          –       –        64        0.32     5.0s
warning at step 3: careful
    2/2      1.5000   50.0%     1.2500   62.5%        64        0.32     5.0s
";
        assert_eq!(err, format!("{HEAD}{expected}"));
    }

    #[test]
    fn quiet_is_one_line_and_warnings() {
        let (out, err) = show(Mode::Quiet, true);
        assert_eq!(
            out,
            "62.5% test accuracy, 42s, 40 kB, 100× less than dense (4 MB), 0.32 bits per parameter, \
             runs/out/first-look/now\n"
        );
        assert_eq!(err, "warning at step 3: careful\n");
    }

    #[test]
    fn json_is_every_event_and_nothing_else() {
        let (out, err) = show(Mode::Json, true);
        let events: Vec<Event> =
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<_> = events.into_iter().map(|event| event.kind).collect();
        assert_eq!(kinds, run().into_iter().map(|event| event.kind).collect::<Vec<_>>());
        assert_eq!(err, "");
    }

    #[test]
    fn a_failed_run_leaves_the_error_to_the_caller() {
        let (mut console, shown) = console(Mode::Default, true);
        let failed = Failed { error: "disk full".into(), diverged: false };
        console.record(&Event::from(failed)).unwrap();
        console.end();
        assert_eq!(shown(), (String::new(), String::new()));
    }

    #[test]
    fn a_closed_stdout_is_an_error_and_a_closed_stderr_is_not() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let shown = |mode: Mode, out: Stream, err: Stream| -> Result<()> {
            let mut console = Console::with(mode, out, err, false);
            run().iter().try_for_each(|event| console.record(event))
        };
        for mode in [Mode::Default, Mode::Quiet, Mode::Json] {
            let error = shown(mode, Box::new(Closed), Box::new(io::sink())).unwrap_err();
            assert!(error.to_string().contains("standard output"), "{error}");
            shown(mode, Box::new(io::sink()), Box::new(Closed)).unwrap();
        }
    }
}
