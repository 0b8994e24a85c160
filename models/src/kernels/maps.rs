//! Feature maps that flow between the image kernels, and the way their gradients flow back.
//!
//! candle's backward adds every gradient to zeros made for it: three passes over memory for each
//! activation of a network. So activations here are no candle tensors: candle's graph holds a
//! *ticket* of one element for each, which keeps the operations in order and carries the gradients
//! of the parameters; an activation's own gradient goes from the operation that takes it to the one
//! that made it through a [`Slot`], and what several operations send to one slot is added where it
//! lies. The memory of both is the thread's [`Scratch`].

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail,
};

use super::batch_norm::Moments;
use super::handover;
use super::memory::{Scratch, Target};
use super::operand::with_f32s;
use super::values::{self, Values};
use super::{Native, counts};

/// Feature maps `[batch, height, width, channels]`.
#[derive(Clone)]
pub(crate) struct Maps {
    /// The kernels that work on them.
    pub native: Native,
    pub shape: [usize; 4],
    pixels: Values,
    /// Those of the pixels, where the operation that made these has summed them.
    moments: Option<Arc<Moments>>,
    ticket: Tensor,
    gradient: Slot,
}

/// Where the gradient of feature maps gathers, until the operation that made them takes it.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Values>>>);

impl Slot {
    /// Adds what `send` computes, to `len` elements; returns what it returns.
    pub(crate) fn receive<R>(&self, len: usize, send: impl FnOnce(Target) -> R) -> R {
        let (gradient, result) = match self.take() {
            Some(gradient) => {
                let mut gradient = gradient.into_memory();
                let result = send(Target::Add(&mut gradient));
                (gradient, result)
            }
            None => {
                let mut gradient = Scratch::new(len);
                let result = send(Target::Write(&mut gradient));
                (gradient, result)
            }
        };
        self.put(gradient.into());
        result
    }

    /// Adds a gradient that may yet have to be computed.
    pub(crate) fn receive_values(&self, gradient: Values) {
        self.put(match self.take() {
            None => gradient,
            Some(sum) => values::add(sum, &gradient),
        });
    }

    fn put(&self, gradient: Values) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
    }

    fn take(&self) -> Option<Values> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The backward pass of an operation that makes feature maps: what it keeps from the forward pass.
pub(crate) trait Backward: Send + Sync + 'static {
    /// The operation's name.
    const NAME: &'static str;

    /// From the gradient of the result, sends the operands theirs and writes all of that of the parameter (nothing if
    /// there is none).
    ///
    /// # Errors
    /// Operands that are not what they were in the forward pass.
    fn backward(&self, dy: Values, parameter: &[f32], gradient: &mut [f32]) -> Result<()>;

    /// What candle is told as the gradient of the parameter, which `write` writes.
    ///
    /// # Errors
    /// What `write` says.
    fn gradient(
        &self,
        parameter: &Tensor,
        write: impl FnOnce(&mut [f32]) -> Result<()>,
    ) -> Result<Option<Tensor>> {
        handover::gradient(parameter, write)
    }
}

impl Maps {
    /// The feature maps of images, f32 on the CPU.
    ///
    /// # Errors
    /// Images that are not `[batch, height, width, channels]`, or not as many pixels as that says.
    pub(crate) fn new(native: Native, images: &Tensor) -> Result<Self> {
        let (batch, height, width, channels) = images.dims4()?;
        let gradient = Slot::default();
        let pixels = with_f32s(images, |images| {
            let mut pixels = Scratch::new(images.len());
            pixels.copy_from_slice(images);
            Ok(pixels)
        })?;
        let ticket = images.apply_op1(Entry { gradient: gradient.clone() })?;
        let shape = [batch, height, width, channels];
        Ok(Self { native, shape, pixels: pixels.into(), moments: None, ticket, gradient })
    }

    /// The values, `[batch, height, width, channels]`, in memory.
    pub(crate) fn pixels(&self) -> &[f32] {
        self.pixels.whole()
    }

    /// Where their gradient gathers.
    pub(crate) fn gradient(&self) -> Slot {
        self.gradient.clone()
    }

    /// Whether anybody takes their gradient: some variable is among what they were computed from.
    pub(crate) fn wants_gradient(&self) -> bool {
        self.ticket.track_op()
    }

    /// The values alone, which may yet have to be computed.
    pub(crate) fn values(&self) -> Values {
        self.pixels.clone()
    }

    /// The same maps, but no gradient flows back from what is derived.
    pub(crate) fn detached(&self) -> Self {
        Self { ticket: self.ticket.detach(), ..self.clone() }
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.pixels.len()
    }

    /// The result of an operation on these maps, and on a second operand if there is a parameter; the backward pass
    /// gives the parameter a gradient.
    ///
    /// # Errors
    /// A shape of another number of elements, and those of candle's graph.
    pub(crate) fn derive<B: Backward>(
        &self,
        parameter: Option<&Tensor>,
        second: Option<&Self>,
        shape: [usize; 4],
        pixels: impl Into<Values>,
        backward: impl FnOnce() -> B,
    ) -> Result<Self> {
        let pixels = pixels.into();
        if counts::elements(&shape) != Some(pixels.len()) {
            bail!("{}: {} values are no maps {shape:?}", B::NAME, pixels.len());
        }
        let gradient = Slot::default();
        let node = Node { gradient: gradient.clone(), backward: backward() };
        let ticket = match (parameter, second) {
            (None, _) => self.ticket.apply_op1(node)?,
            (Some(parameter), None) => self.ticket.apply_op2(parameter, node)?,
            (Some(parameter), Some(second)) => {
                self.ticket.apply_op3(parameter, &second.ticket, node)?
            }
        };
        Ok(Self { native: self.native, shape, pixels, moments: None, ticket, gradient })
    }

    /// These maps, of whose pixels the moments are known.
    pub(crate) fn with_moments(self, moments: Moments) -> Self {
        Self { moments: Some(Arc::new(moments)), ..self }
    }

    /// The moments of the pixels, if they are known.
    pub(crate) fn moments(&self) -> Option<&Moments> {
        self.moments.as_deref()
    }

    /// A tensor computed from these maps: its values, and how its gradient becomes theirs.
    ///
    /// # Errors
    /// Those of candle's graph.
    pub(crate) fn leave(
        &self,
        shape: impl Into<Shape>,
        values: Vec<f32>,
        backward: fn(&[f32], [usize; 4], Target),
    ) -> Result<Tensor> {
        let exit = Exit {
            shape: shape.into(),
            values: Mutex::new(values),
            maps: self.shape,
            gradient: self.gradient(),
            backward,
        };
        self.ticket.apply_op1(exit)
    }

    /// The maps as a tensor `[batch, height, width, channels]`.
    ///
    /// # Errors
    /// Those of candle's graph.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        let [batch, height, width, channels] = self.shape;
        let shape = (batch, height, width, channels);
        self.leave(shape, self.pixels().to_vec(), |dy, _, mut dx| dx.take(dy))
    }
}

/// The storage and shape of a ticket.
fn ticket() -> (CpuStorage, Shape) {
    (CpuStorage::F32(vec![0.0]), Shape::from(1))
}

/// Where images become feature maps.
struct Entry {
    gradient: Slot,
}

impl CustomOp1 for Entry {
    fn name(&self) -> &'static str {
        "images"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(ticket())
    }

    fn bwd(&self, images: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        match self.gradient.take() {
            Some(gradient) => {
                Ok(Some(Tensor::from_slice(gradient.whole(), images.shape(), images.device())?))
            }
            // The one operation that took them sends none back.
            None => Ok(Some(images.zeros_like()?)),
        }
    }
}

/// An operation from feature maps to feature maps.
struct Node<B> {
    gradient: Slot,
    backward: B,
}

impl<B: Backward> Node<B> {
    /// Runs the backward pass; the gradient of the parameter, for candle.
    fn run(&self, parameter: &Tensor) -> Result<Option<Tensor>> {
        self.backward.gradient(parameter, |gradient| {
            with_f32s(parameter, |parameter| self.run_on(parameter, gradient))
        })
    }

    fn run_on(&self, parameter: &[f32], gradient: &mut [f32]) -> Result<()> {
        let Some(dy) = self.gradient.take() else {
            bail!("{}: no gradient has reached the result", B::NAME);
        };
        self.backward.backward(dy, parameter, gradient)
    }
}

impl<B: Backward> CustomOp1 for Node<B> {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(ticket())
    }

    fn bwd(&self, maps: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        self.run_on(&[], &mut [])?;
        Ok(Some(maps.zeros_like()?))
    }
}

impl<B: Backward> CustomOp2 for Node<B> {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(ticket())
    }

    fn bwd(
        &self,
        maps: &Tensor,
        parameter: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = self.run(parameter)?;
        Ok((Some(maps.zeros_like()?), gradient))
    }
}

impl<B: Backward> CustomOp3 for Node<B> {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(ticket())
    }

    fn bwd(
        &self,
        maps: &Tensor,
        parameter: &Tensor,
        second: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = self.run(parameter)?;
        Ok((Some(maps.zeros_like()?), gradient, Some(second.zeros_like()?)))
    }
}

/// Where feature maps become a tensor.
struct Exit {
    shape: Shape,
    values: Mutex<Vec<f32>>,
    maps: [usize; 4],
    gradient: Slot,
    backward: fn(&[f32], [usize; 4], Target),
}

impl CustomOp1 for Exit {
    fn name(&self) -> &'static str {
        "from-maps"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let values =
            std::mem::take(&mut *self.values.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((CpuStorage::F32(values), self.shape.clone()))
    }

    fn bwd(&self, maps: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        with_f32s(dy, |dy| {
            self.gradient
                .receive(self.maps.iter().product(), |share| (self.backward)(dy, self.maps, share));
            Ok(())
        })?;
        Ok(Some(maps.zeros_like()?))
    }
}
