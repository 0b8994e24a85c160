//! Feature maps between the operations on images.

use candle_core::{Result, Tensor};

use crate::kernels;
use crate::kernels::counts::some;
use crate::kernels::element::Rounded;

/// Feature maps `[batch, height, width, channels]`: what the operations on images take and give.
///
/// They begin as images and end in [`ops::global_average_pool`](crate::ops::global_average_pool).
/// On the CPU they are not tensors inside, which saves candle's backward three passes over memory
/// for every one of them; everywhere else they are.
#[derive(Clone)]
pub struct Maps(pub(crate) Carrier);

/// What feature maps are made of, and so which operations work on them.
#[derive(Clone)]
pub(crate) enum Carrier {
    /// A tensor, for compositions of candle's operations.
    Tensor(Tensor),
    /// Memory of the kernels.
    Native(kernels::maps::Maps<f32>),
    /// The same where products are in bf16.
    Rounded(kernels::maps::Maps<Rounded>),
}

impl Maps {
    /// The feature maps of `images [batch, height, width, channels]`.
    ///
    /// # Errors
    /// Images of another rank or without elements, or kernels chosen that this CPU lacks.
    pub fn new(images: &Tensor) -> Result<Self> {
        images.dims4()?;
        some("images", images)?;
        Ok(Self(match kernels::native(images)? {
            Some(native) if native.isa.bf16().is_some() => {
                Carrier::Rounded(kernels::maps::Maps::new(native, images)?)
            }
            Some(native) => Carrier::Native(kernels::maps::Maps::new(native, images)?),
            None => Carrier::Tensor(images.clone()),
        }))
    }

    /// The maps as a tensor `[batch, height, width, channels]`; its gradient flows back into them.
    ///
    /// # Errors
    /// Those of candle.
    pub fn tensor(&self) -> Result<Tensor> {
        match &self.0 {
            Carrier::Tensor(maps) => Ok(maps.clone()),
            Carrier::Native(maps) => maps.tensor(),
            Carrier::Rounded(maps) => maps.tensor(),
        }
    }

    /// Batch, height, width and channels.
    ///
    /// # Errors
    /// None: the rank was checked when the maps were made.
    pub fn dims(&self) -> Result<(usize, usize, usize, usize)> {
        match &self.0 {
            Carrier::Tensor(maps) => maps.dims4(),
            Carrier::Native(maps) => Ok(maps.shape.into()),
            Carrier::Rounded(maps) => Ok(maps.shape.into()),
        }
    }
}
