//! What a command is at while it has nothing to print yet: on stderr, and gone afterwards.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Work under way. Dropping it takes it off the screen.
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    /// Work of which nobody knows how long it takes. Without a terminal one line is written.
    pub(super) fn unmeasured(what: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_message(what.to_string());
        Self::begin(bar, "{spinner} {wide_msg} {elapsed}", what)
    }

    /// Work in so many parts.
    pub(super) fn of(parts: usize, what: &str) -> Self {
        let bar = ProgressBar::new(parts as u64);
        bar.set_message(what.to_string());
        Self::begin(bar, "{msg} {wide_bar:.cyan/dim} {pos}/{len} {elapsed}", what)
    }

    fn begin(bar: ProgressBar, template: &str, what: &str) -> Self {
        if bar.is_hidden() {
            eprintln!("{what} …");
        }
        let style = ProgressStyle::with_template(template);
        let style = style.expect("invariant: the template is valid").progress_chars("━╸─");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Says what is done now.
    pub(super) fn now(&self, what: &str) {
        self.0.set_message(what.to_string());
    }

    /// One part more is done.
    pub(super) fn part(&self) {
        self.0.inc(1);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
