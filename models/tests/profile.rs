//! The operations that a training step is said to take are those of the architecture.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use candle_core::{DType, Device, Tensor};
use gradwire_models::kernels::profile::{self, Timed};
use gradwire_models::kernels::{Kernels, with};
use gradwire_models::{Config, Input, Store, cross_entropy, resnet};

#[test]
fn a_step_of_resnet20_takes_three_times_its_40_million_products() {
    let store = Store::new(1, &Device::Cpu);
    let input = Input::Image { channels: 3, height: 32, width: 32 };
    let model = Config::Resnet20(resnet::Resnet20::default())
        .build(&input, 10, store.var_builder())
        .unwrap();
    let images = Tensor::zeros((2, 32, 32, 3), DType::F32, &Device::Cpu).unwrap();
    let labels = Tensor::new(&[3u32, 4], &Device::Cpu).unwrap();
    let step = || {
        profile::take();
        let logits = model.forward_t(&images, true).unwrap();
        cross_entropy(&logits, &labels, 0.0).unwrap().backward().unwrap();
        profile::take()
    };
    // Per image: 40.55 million forward (the figure usually given), as many in either gradient, but for the first
    // layer's input gradient, which nobody needs.
    let stem = 32 * 32 * 16 * 27;
    let stages = 6 * 2_359_296 + 2 * (1_179_648 + 5 * 2_359_296);
    let forward = stem + stages + 64 * 10;
    let (fast, precise) = (Kernels::parse("auto").unwrap(), Kernels::parse("precise").unwrap());
    for kernels in [fast, precise, Kernels::parse("portable").unwrap()] {
        let profile = with(kernels, step);
        assert_eq!(profile.operations, 2 * 2 * (3 * forward - stem), "{kernels}");
        assert!(profile.kinds().any(|(kind, _)| kind == Timed::ConvolutionWeight));
    }
    let composed = with(Kernels::Candle, step);
    assert_eq!((composed.operations, composed.kinds().count()), (0, 0));
}
