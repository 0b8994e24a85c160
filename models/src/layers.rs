//! Layers shared by the architectures: variables with PyTorch's names and initialisation.

use candle_core::{Result, Tensor, Var};
use candle_nn::init::{FanInOut, NonLinearity, NormalOrUniform};
use candle_nn::{Init, VarBuilder};

use crate::maps::Maps;
use crate::ops::{self, Activation, Affine, Running};

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

/// Sets the filters of `weight [outputs, inputs, rows, columns]`, as many of the first as there are inputs, to copies of
/// these: 1 at the middle of the input of the same number, 0 elsewhere (`nn.init.dirac_` on the first `inputs` filters).
fn dirac(weight: &Tensor) -> Result<()> {
    let (outputs, inputs, rows, columns) = weight.dims4()?;
    let mut values: Vec<f32> = weight.flatten_all()?.to_vec1()?;
    let filters = values.chunks_exact_mut(inputs * rows * columns);
    for (i, filter) in filters.enumerate().take(inputs.min(outputs)) {
        filter.fill(0.);
        filter[(i * rows + rows / 2) * columns + columns / 2] = 1.;
    }
    Var::from_tensor(weight)?.set(&Tensor::from_vec(values, weight.shape(), weight.device())?)
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

/// A 3×3 convolution of stride 1 without bias, with a row of zeros around the image, whose first filters copy the inputs,
/// and whose others start as PyTorch's default.
pub(crate) struct Copying {
    weight: Tensor,
}

impl Copying {
    pub(crate) fn new(inputs: usize, outputs: usize, vb: &VarBuilder) -> Result<Self> {
        // A variable that is there already has been trained, or read from a file.
        let new = !vb.contains_tensor("weight");
        let weight = vb.get_with_hints((outputs, inputs, 3, 3), "weight", uniform(inputs * 9))?;
        if new && weight.is_variable() {
            dirac(&weight)?;
        }
        Ok(Self { weight })
    }

    pub(crate) fn forward(&self, xs: &Maps) -> Result<Maps> {
        ops::conv2d(xs, &self.weight, 1, 1, true)
    }

    /// Followed by the maximum of each 2×2 pixels.
    pub(crate) fn pooled(&self, xs: &Maps) -> Result<Maps> {
        ops::conv2d_max_pool(xs, &self.weight, 1, 2)
    }
}

/// Batch normalisation over the last dimension, γ = 1 and β = 0 at first, with PyTorch's momentum and epsilon.
///
/// The running statistics are bias-corrected averages, see [`Running`]; PyTorch's are not.
pub(crate) struct BatchNorm {
    shift: Option<Tensor>,
    gamma: Option<Tensor>,
    beta: Tensor,
    running: Running,
}

impl BatchNorm {
    pub(crate) fn new(channels: usize, vb: &VarBuilder) -> Result<Self> {
        let gamma = vb.get_with_hints(channels, "weight", Init::Const(1.))?;
        Ok(Self { gamma: Some(gamma), ..Self::unscaled(channels, vb)? })
    }

    /// Without γ: nothing scales what is normalised.
    pub(crate) fn unscaled(channels: usize, vb: &VarBuilder) -> Result<Self> {
        let buffer = |name, init| Var::from_tensor(&vb.get_with_hints(channels, name, init)?);
        let passes = vb.get_with_hints((), "num_batches_tracked", Init::Const(0.))?;
        Ok(Self {
            shift: None,
            gamma: None,
            beta: vb.get_with_hints(channels, "bias", Init::Const(0.))?,
            running: Running {
                mean: buffer("running_mean", Init::Const(0.))?,
                variance: buffer("running_var", Init::Const(1.))?,
                passes: Var::from_tensor(&passes)?,
                momentum: Running::MOMENTUM,
                epsilon: Running::EPSILON,
            },
        })
    }

    /// With that momentum, in PyTorch's sense, and that epsilon.
    pub(crate) fn with(self, momentum: f64, epsilon: f64) -> Self {
        Self { running: Running { momentum, epsilon, ..self.running }, ..self }
    }

    /// With the bias of the convolution before it, added first; 0 at first.
    pub(crate) fn shifted(self, channels: usize, convolution: &VarBuilder) -> Result<Self> {
        let bias = convolution.get_with_hints(channels, "bias", Init::Const(0.))?;
        Ok(Self { shift: Some(bias), ..self })
    }

    /// Normalises, adds `residual` when there is one, then applies the activation.
    pub(crate) fn forward(
        &self,
        xs: &Maps,
        residual: Option<&Maps>,
        activation: Activation,
        train: bool,
    ) -> Result<Maps> {
        let (shift, gamma) = (self.shift.as_ref(), self.gamma.as_ref());
        let affine = Affine { shift, gamma, beta: &self.beta };
        ops::batch_norm(xs, affine, &self.running, residual, activation, train)
    }
}

/// A linear layer.
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

    /// Without a bias: zeros that are no variable take its place.
    pub(crate) fn unbiased(inputs: usize, outputs: usize, vb: &VarBuilder) -> Result<Self> {
        let weight = vb.get_with_hints((outputs, inputs), "weight", uniform(inputs))?;
        Ok(Self { weight, bias: Tensor::zeros(outputs, vb.dtype(), vb.device())? })
    }

    pub(crate) fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::linear(xs, &self.weight, &self.bias)
    }
}
