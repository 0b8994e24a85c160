//! Feature maps between the operations on images.

use candle_core::{Result, Tensor};

use crate::kernels;
use crate::kernels::counts::some;

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
    Native(kernels::maps::Maps),
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
            Some(native) => Carrier::Native(kernels::maps::Maps::new(native, images)?),
            None => Carrier::Tensor(images.clone()),
        }))
    }

    /// What these become: by the kernels, or of a tensor.
    pub(crate) fn become_maps(
        &self,
        by_kernels: impl FnOnce(&kernels::maps::Maps) -> Result<kernels::maps::Maps>,
        of_tensor: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        Ok(Self(match &self.0 {
            Carrier::Native(maps) => Carrier::Native(by_kernels(maps)?),
            Carrier::Tensor(maps) => Carrier::Tensor(of_tensor(maps)?),
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
        }
    }
}
