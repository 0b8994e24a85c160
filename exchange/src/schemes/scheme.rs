//! What a scheme is: its settings, its laws, and what it builds for a bucket.

use gradwire_registry::About;

use crate::compress::{Built, Compressor, Properties, Seat};
use crate::{Policy, Result};

/// A scheme: its settings, and everything that follows from them.
///
/// An exchange takes any type that implements this; [`contract::check`](crate::contract::check) tries
/// its laws.
pub trait Scheme: Send + Sync {
    /// What the scheme is, and what holds of it under these settings.
    fn properties(&self) -> Properties;

    /// Its name, and what it does.
    fn about(&self) -> About {
        let Properties { name, line, paper, .. } = self.properties();
        About { name, line, paper }
    }

    /// Whether error feedback surrounds it under these settings.
    fn feedback(&self) -> bool {
        self.properties().feedback
    }

    /// What should surround the scheme unless the caller says otherwise.
    fn default_policy(&self) -> Policy {
        Policy::default()
    }

    /// Whether it plans over the length of the run, so that in a longer run its steps would have been others.
    fn spans_the_run(&self) -> bool {
        false
    }

    /// Checks the settings by themselves.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) names the setting, its value and what to write instead.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// Whether every bucket is sent as plain f32, without an instance.
    fn plain(&self) -> bool {
        false
    }

    /// What reduces one bucket on one rank.
    fn build(&self, seat: &Seat) -> Built;

    /// The codec of one bucket, of a scheme that says everything in one message; `None` of others.
    fn codec(&self, seat: &Seat) -> Option<Box<dyn Compressor>> {
        match self.build(seat) {
            Built::Codec(compressor) => Some(compressor),
            Built::Plain | Built::Reducer(_) => None,
        }
    }

    /// Settings worth testing and timing besides the defaults.
    #[doc(hidden)]
    fn examples() -> Vec<Self>
    where
        Self: Sized,
    {
        Vec::new()
    }
}
