//! ResNets, VGG, airbench's network and text classifiers on candle, with CPU training kernels.
//!
//! A [`Config`] names an architecture, a [`Store`] holds its seeded variables, and
//! [`Config::build`] joins the two into a [`Model`]:
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_nn::ModuleT;
//! use gradwire_models::{Config, Input, Store, cross_entropy, resnet};
//!
//! # fn main() -> candle_core::Result<()> {
//! let store = Store::new(7, &Device::Cpu);
//! let input = Input::Image { channels: 3, height: 8, width: 8 };
//! let model = Config::Resnet20(resnet::Resnet20::default()).build(&input, 10, store.var_builder())?;
//! let images = Tensor::zeros((2, 8, 8, 3), candle_core::DType::F32, &Device::Cpu)?;
//! let labels = Tensor::new(&[3u32, 4], &Device::Cpu)?;
//! let logits = model.forward_t(&images, true)?;
//! let gradients = cross_entropy(&logits, &labels, 0.1)?.backward()?;
//! assert!(gradwire_models::missing_gradients(&gradients, &store).is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Variables carry PyTorch's names, shapes and layout (convolutions `[out, in, height, width]`,
//! linear layers `[out, in]`, `nn.LSTM`'s gate order), so a saved store is a PyTorch state
//! dictionary. Activations are NHWC inside.
//!
//! Architectures speak only to [`ops`]; that module alone decides which arithmetic runs.
//! Errors are candle's, because [`ModuleT`](candle_nn::ModuleT) fixes that type; the messages
//! name the variable or shape at fault.

#[macro_use]
extern crate gradwire_registry;

mod activations;
pub mod airbench;
pub mod compare;
mod composed;
pub mod config;
pub mod definition;
mod eigen;
mod fused;
pub mod golden;
pub mod gpu;
mod initial;
pub mod kernels;
mod layers;
pub mod maps;
pub mod operations;
pub mod ops;
pub mod packing;
mod parameters;
pub mod randomness;
pub mod resnet;
pub mod store;
pub mod text;
pub mod updates;
pub mod vgg;
mod whitening;

pub use candle_nn;
pub use config::Config;
pub use definition::{About, Definition, Input, InputKind, Loss, Model};
pub use maps::Maps;
pub use ops::cross_entropy;
pub use packing::Packing;
pub use store::{Store, missing_gradients};

/// Token id of padding: fills texts shorter than the batch's length, always at the end.
pub const PAD: u32 = 0;
