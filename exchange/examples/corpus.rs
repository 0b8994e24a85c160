//! Writes the seeds of the fuzz targets into `exchange/fuzz/corpus/`, a folder for each scheme, and
//! `downlinks/`, `frames/` and `rounds/`: `cargo run -p gradwire-exchange --example corpus`.

use std::fs;
use std::io::Result;
use std::path::Path;

#[path = "../fuzz/seeds.rs"]
mod seeds;

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (folder, name, bytes) in seeds::all() {
        fs::create_dir_all(corpus.join(&folder))?;
        fs::write(corpus.join(folder).join(name), bytes)?;
    }
    Ok(())
}
