//! Writes every model with seeded weights and running statistics that have moved, and its logits for the golden
//! input: what `tests/golden/check.py` loads into PyTorch.
//!
//! `cargo run --release -p gradwire-models --example export -- FOLDER`

use std::path::{Path, PathBuf};

use candle_core::{Device, Error, Result, bail};
use gradwire_models::golden::Golden;
use gradwire_models::{Config, Store};

fn main() -> Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        bail!("say which folder to write to: export -- FOLDER");
    };
    std::fs::create_dir_all(&folder)?;
    Config::all().iter().try_for_each(|model| export(model.name(), &folder))
}

fn export(model: &str, folder: &Path) -> Result<()> {
    let Golden { case, .. } = Golden::parse(Golden::text(model)?)?;
    let store = Store::new(1, &Device::Cpu);
    let network = case.build(&store)?;
    let inputs = case.inputs(&Device::Cpu)?;
    network.forward_t(&inputs, true)?;
    std::fs::write(folder.join(format!("{model}.safetensors")), store.to_safetensors()?)?;
    let logits = network.forward_t(&inputs, false)?.to_vec2::<f32>()?;
    let logits = serde_json::to_string(&logits).map_err(Error::wrap)?;
    std::fs::write(folder.join(format!("{model}.logits.json")), logits)?;
    println!("{}", folder.join(format!("{model}.safetensors")).display());
    Ok(())
}
