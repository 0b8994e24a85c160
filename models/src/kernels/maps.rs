//! Feature maps that flow between the image kernels, and the way their gradients flow back.
//!
//! candle's backward adds every gradient to zeros made for it: three passes over memory for each
//! activation of a network. So activations here are no candle tensors: candle's graph holds a
//! *ticket* of one element for each, which keeps the operations in order and carries the gradients
//! of the parameters; an activation's own gradient goes from the operation that takes it to the one
//! that made it through a [`Slot`], and what several operations send to one slot is added where it
//! lies. The memory of both is the thread's [`Scratch`].

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Result, Shape, Tensor, bail};

use super::bf16::{Take, widen};
use super::element::Element;
use super::handover;
use super::memory::{Scratch, Target};
use super::moments::Moments;
use super::operand::{Operand, borrow, with_values};
use super::simd::Isa;
use super::values::Values;
use super::{Native, counts};
use crate::kernels::custom_op::{Backprop, CustomOp, apply};

/// Feature maps `[batch, height, width, channels]`.
#[derive(Clone)]
pub(crate) struct Maps<E: Element> {
    /// The kernels that work on them.
    pub native: Native,
    pub shape: [usize; 4],
    pixels: Values<E>,
    /// Those of the pixels, where the operation that made these has summed them.
    moments: Option<Arc<Moments>>,
    ticket: Tensor,
    gradient: Slot<E>,
}

/// Where the gradient of feature maps gathers, until the operation that made them takes it.
#[derive(Clone)]
pub(crate) struct Slot<E: Element>(Arc<Mutex<Option<Values<E>>>>);

impl<E: Element> Slot<E> {
    /// Where nothing is yet.
    fn empty() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// Adds what `send` computes, to `len` elements; returns what it returns.
    pub(crate) fn receive<R>(&self, len: usize, send: impl FnOnce(Target<E>) -> R) -> R {
        let (gradient, result) = match self.take() {
            Some(gradient) => {
                let mut gradient = gradient.into_memory();
                let result = send(Target::Add(&mut gradient));
                (gradient, result)
            }
            None => {
                let mut gradient = Scratch::of(len);
                let result = send(Target::Write(&mut gradient));
                (gradient, result)
            }
        };
        self.put(gradient.into());
        result
    }

    /// Adds a gradient that may yet have to be computed.
    pub(crate) fn receive_values(&self, gradient: Values<E>) {
        match self.take() {
            None => self.put(gradient),
            Some(sum) => {
                self.put(sum);
                self.receive(gradient.len(), |mut to| to.take(gradient.whole()));
            }
        }
    }

    fn put(&self, gradient: Values<E>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
    }

    fn take(&self) -> Option<Values<E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The backward pass of an operation that makes feature maps: what it keeps from the forward pass.
pub(crate) trait Backward<E: Element>: Send + Sync + 'static {
    /// The operation's name.
    const NAME: &'static str;

    /// From the gradient of the result, sends the operands theirs and writes all of that of the parameter (nothing if
    /// there is none).
    ///
    /// # Errors
    /// Operands that are not what they were in the forward pass.
    fn backward(&self, dy: Values<E>, parameter: &[f32], gradient: &mut [f32]) -> Result<()>;
}

impl<E: Element> Maps<E> {
    /// The feature maps of images, f32 on the CPU.
    ///
    /// # Errors
    /// Images that are not `[batch, height, width, channels]`, or not as many pixels as that says.
    pub(crate) fn new(native: Native, images: &Tensor) -> Result<Self> {
        let (batch, height, width, channels) = images.dims4()?;
        let gradient = Slot::empty();
        let pixels = with_values(images, |images: &[f32]| {
            let mut pixels = Scratch::of(images.len());
            E::run(native.isa, Take { from: images, to: Target::Write(&mut pixels) });
            Ok(pixels)
        })?;
        let ticket = apply(Entry { isa: native.isa, gradient: gradient.clone() }, [images])?;
        let shape = [batch, height, width, channels];
        Ok(Self { native, shape, pixels: pixels.into(), moments: None, ticket, gradient })
    }

    /// The values, `[batch, height, width, channels]`, in memory.
    pub(crate) fn pixels(&self) -> &[E] {
        self.pixels.whole()
    }

    /// Where their gradient gathers.
    pub(crate) fn gradient(&self) -> Slot<E> {
        self.gradient.clone()
    }

    /// Whether anybody takes their gradient: some variable is among what they were computed from.
    pub(crate) fn wants_gradient(&self) -> bool {
        self.ticket.track_op()
    }

    /// The values alone, which may yet have to be computed.
    pub(crate) fn values(&self) -> Values<E> {
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
    pub(crate) fn derive<B: Backward<E>>(
        &self,
        parameter: Option<&Tensor>,
        second: Option<&Self>,
        shape: [usize; 4],
        pixels: impl Into<Values<E>>,
        backward: impl FnOnce() -> B,
    ) -> Result<Self> {
        let pixels = pixels.into();
        if counts::elements(&shape) != Some(pixels.len()) {
            bail!("{}: {} values are no maps {shape:?}", B::NAME, pixels.len());
        }
        let gradient = Slot::empty();
        let node = Node { gradient: gradient.clone(), backward: backward() };
        let ticket = match (parameter, second) {
            (None, _) => apply(node, [&self.ticket])?,
            (Some(parameter), None) => apply(node, [&self.ticket, parameter])?,
            (Some(parameter), Some(second)) => {
                apply(node, [&self.ticket, parameter, &second.ticket])?
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
    pub(crate) fn leave(
        &self,
        shape: impl Into<Shape>,
        values: Vec<f32>,
        backward: fn(&[f32], [usize; 4], Target<E>),
    ) -> Result<Tensor> {
        let exit = Exit {
            shape: shape.into(),
            values: Mutex::new(values),
            maps: self.shape,
            gradient: self.gradient(),
            backward,
        };
        apply(exit, [&self.ticket])
    }

    /// The maps as a tensor `[batch, height, width, channels]`.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        let [batch, height, width, channels] = self.shape;
        let shape = (batch, height, width, channels);
        let pixels = widen(self.native.isa, self.pixels()).to_vec();
        self.leave(shape, pixels, |dy, _, mut dx| dx.take(dy))
    }
}

/// The value and the shape of a ticket.
fn ticket() -> (Vec<f32>, Shape) {
    (vec![0.0], Shape::from(1))
}

/// Where images become feature maps.
struct Entry<E: Element> {
    isa: Isa,
    gradient: Slot<E>,
}

impl<E: Element> CustomOp<1> for Entry<E> {
    const NAME: &'static str = "images";

    fn forward(&self, _: [Operand; 1]) -> Result<(Vec<f32>, Shape)> {
        Ok(ticket())
    }

    fn backward(&self, [images]: [&Tensor; 1], _: &Tensor, _: &Tensor) -> Backprop<1> {
        Ok([Some(match self.gradient.take() {
            Some(gradient) => {
                let gradient = widen(self.isa, gradient.whole());
                Tensor::from_slice(&gradient, images.shape(), images.device())?
            }
            // The one operation that took them sends none back.
            None => images.zeros_like()?,
        })])
    }
}

/// An operation from feature maps to feature maps.
struct Node<B, E: Element> {
    gradient: Slot<E>,
    backward: B,
}

impl<E: Element, B: Backward<E>> Node<B, E> {
    fn run(&self, parameter: &[f32], gradient: &mut [f32]) -> Result<()> {
        let Some(dy) = self.gradient.take() else {
            bail!("{}: no gradient has reached the result", B::NAME);
        };
        self.backward.backward(dy, parameter, gradient)
    }
}

/// Operands are the ticket of the maps and, if there are so many, the parameter and the ticket of other maps.
impl<E: Element, B: Backward<E>, const N: usize> CustomOp<N> for Node<B, E> {
    const NAME: &'static str = B::NAME;

    fn forward(&self, _: [Operand; N]) -> Result<(Vec<f32>, Shape)> {
        Ok(ticket())
    }

    fn backward(&self, operands: [&Tensor; N], _: &Tensor, _: &Tensor) -> Backprop<N> {
        let of_parameter = match operands.get(1) {
            None => self.run(&[], &mut []).map(|()| None),
            Some(parameter) => {
                handover::gradient(parameter, |gradient| self.run(&borrow(parameter)?, gradient))
            }
        }?;
        let mut gradients = [const { None }; N];
        for (number, gradient) in gradients.iter_mut().enumerate() {
            *gradient = match number {
                1 => of_parameter.clone(),
                _ => Some(operands[number].zeros_like()?),
            };
        }
        Ok(gradients)
    }
}

/// Where feature maps become a tensor.
struct Exit<E: Element> {
    shape: Shape,
    values: Mutex<Vec<f32>>,
    maps: [usize; 4],
    gradient: Slot<E>,
    backward: fn(&[f32], [usize; 4], Target<E>),
}

impl<E: Element> CustomOp<1> for Exit<E> {
    const NAME: &'static str = "from-maps";

    fn forward(&self, _: [Operand; 1]) -> Result<(Vec<f32>, Shape)> {
        let values = &mut *self.values.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((std::mem::take(values), self.shape.clone()))
    }

    fn backward(&self, [maps]: [&Tensor; 1], _: &Tensor, dy: &Tensor) -> Backprop<1> {
        let dy = borrow(dy)?;
        let len = self.maps.iter().product();
        self.gradient.receive(len, |share| (self.backward)(&dy, self.maps, share));
        Ok([Some(maps.zeros_like()?)])
    }
}
