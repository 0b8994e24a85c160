//! `gradwire data`: fetching, checking and making data sets.

use anyhow::Result;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Command {}

impl Command {
    pub fn run(self) -> Result<()> {
        match self {}
    }
}
