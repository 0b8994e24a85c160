//! Writes every model with seeded weights and running statistics that have moved, and its logits for the golden
//! input: what `tests/golden/check.py` loads into PyTorch.
//!
//! `cargo run --release -p gradwire-models --example export -- FOLDER`

use std::path::{Path, PathBuf};

use candle_core::{Device, Error, Result, bail};
use gradwire_models::{Config, Store};

#[path = "../tests/golden/case.rs"]
#[expect(dead_code, reason = "nobody trains here, so labels are not needed")]
mod case;
#[path = "../tests/golden/formula.rs"]
#[expect(dead_code, reason = "nor are golden weights")]
mod formula;

fn main() -> Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        bail!("say which folder to write to: export -- FOLDER");
    };
    std::fs::create_dir_all(&folder)?;
    Config::all().iter().try_for_each(|model| export(model.name(), &folder))
}

fn export(model: &str, folder: &Path) -> Result<()> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let golden = std::fs::read_to_string(golden.join(format!("{model}.json")))?;
    let case: case::Case = serde_json::from_str(&golden).map_err(Error::wrap)?;
    let store = Store::new(1, &Device::Cpu);
    let network = case.build(&store)?;
    let inputs = case.inputs()?;
    network.forward_t(&inputs, true)?;
    store.save(&folder.join(format!("{model}.safetensors")))?;
    let logits = network.forward_t(&inputs, false)?.to_vec2::<f32>()?;
    let logits = serde_json::to_string(&logits).map_err(Error::wrap)?;
    std::fs::write(folder.join(format!("{model}.logits.json")), logits)?;
    println!("{}", folder.join(format!("{model}.safetensors")).display());
    Ok(())
}
