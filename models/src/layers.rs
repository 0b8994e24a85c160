//! Layers shared by the architectures: variables with PyTorch's names and initialisation.

use candle_core::{Result, Tensor, Var};
use candle_nn::init::{FanInOut, NonLinearity, NormalOrUniform};
use candle_nn::{Init, VarBuilder};

use crate::maps::Maps;
use crate::ops;

/// He et al. 2015 for a layer followed by ReLU, scaled by the fan-out as torchvision's ResNets
/// do: N(0, 2 / (out · height · width)).
const KAIMING_FAN_OUT: Init = Init::Kaiming {
    dist: NormalOrUniform::Normal,
    fan: FanInOut::FanOut,
    non_linearity: NonLinearity::ReLU,
};

/// PyTorch's default for linear and convolution layers, U(±1/√fan_in), weights and bias alike.
pub(crate) fn uniform(fan_in: usize) -> Init {
    let bound = 1. / (fan_in as f64).sqrt();
    Init::Uniform { lo: -bound, up: bound }
}

/// A square convolution without bias, zero padding of half the kernel.
pub(crate) struct Conv {
    weight: Tensor,
    stride: usize,
    padding: usize,
    input_gradient: bool,
}

impl Conv {
    pub(crate) fn new(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let weight =
            vb.get_with_hints((outputs, inputs, kernel, kernel), "weight", KAIMING_FAN_OUT)?;
        Ok(Self { weight, stride, padding: kernel / 2, input_gradient: true })
    }

    /// The network's first layer: nobody needs the gradient of the images.
    pub(crate) fn first(self) -> Self {
        Self { input_gradient: false, ..self }
    }

    pub(crate) fn forward(&self, xs: &Maps) -> Result<Maps> {
        ops::conv2d(xs, &self.weight, self.stride, self.padding, self.input_gradient)
    }
}

/// Batch normalisation over the last dimension, γ = 1 and β = 0 at first.
pub(crate) struct BatchNorm {
    shift: Option<Tensor>,
    gamma: Tensor,
    beta: Tensor,
    running_mean: Var,
    running_var: Var,
}

impl BatchNorm {
    pub(crate) fn new(channels: usize, vb: &VarBuilder) -> Result<Self> {
        let buffer = |name, init| Var::from_tensor(&vb.get_with_hints(channels, name, init)?);
        Ok(Self {
            shift: None,
            gamma: vb.get_with_hints(channels, "weight", Init::Const(1.))?,
            beta: vb.get_with_hints(channels, "bias", Init::Const(0.))?,
            running_mean: buffer("running_mean", Init::Const(0.))?,
            running_var: buffer("running_var", Init::Const(1.))?,
        })
    }

    /// With the bias of the convolution before it, added first; 0 at first.
    pub(crate) fn shifted(self, channels: usize, convolution: &VarBuilder) -> Result<Self> {
        let bias = convolution.get_with_hints(channels, "bias", Init::Const(0.))?;
        Ok(Self { shift: Some(bias), ..self })
    }

    /// Normalises, adds `residual` when there is one, then applies ReLU when asked.
    pub(crate) fn forward(
        &self,
        xs: &Maps,
        residual: Option<&Maps>,
        relu: bool,
        train: bool,
    ) -> Result<Maps> {
        ops::batch_norm(
            xs,
            self.shift.as_ref(),
            &self.gamma,
            &self.beta,
            &self.running_mean,
            &self.running_var,
            residual,
            relu,
            train,
        )
    }
}

/// A linear layer with bias.
pub(crate) struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    pub(crate) fn new(inputs: usize, outputs: usize, vb: &VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get_with_hints((outputs, inputs), "weight", uniform(inputs))?,
            bias: vb.get_with_hints(outputs, "bias", uniform(inputs))?,
        })
    }

    pub(crate) fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::linear(xs, &self.weight, &self.bias)
    }
}
