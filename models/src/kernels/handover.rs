//! Gradients of variables, handed over by the kernels the moment they are known.
//!
//! candle adds every gradient to zeros made for it and keeps the sums until its backward pass has
//! ended. While [`backward_into`](super::gradients::backward_into) runs on this thread, kernels hand the gradients of
//! *variables* over instead: nothing is copied, an embedding table's gradient stays the rows that
//! the batch touched, and whoever listens may use a gradient while the pass still runs.
//!
//! Better still, a pass can be [lent a flat gradient](super::gradients::backward_in_place): then
//! each kernel writes its variable's gradient into its place there, and nothing needs to be gathered.
//!
//! An identity operation around each parameter would tell the same for any operation, at the price
//! of a copy of every parameter in the forward pass (a custom operation owns its result) and two
//! more passes over every gradient in the backward pass. Gradients that composed candle operations
//! compute are not handed over; they are in candle's store at the end.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Result, Shape, Tensor, TensorId};

use super::custom_op::{Backprop, CustomOp, apply};
use super::operand::{Borrowed, Operand, borrow};
use super::rows::RowGradient;

/// A part of a variable's gradient: all of it, if the loss uses the variable once.
#[derive(Clone, Debug, PartialEq)]
pub enum Contribution {
    /// An element for each of the variable's.
    Dense {
        /// The [`id`](Tensor::id) of the variable.
        variable: TensorId,
        /// The elements, row-major.
        values: Vec<f32>,
    },
    /// The touched rows of an embedding table.
    Rows(RowGradient),
}

impl Contribution {
    /// The [`id`](Tensor::id) of the variable.
    pub fn variable(&self) -> TensorId {
        match self {
            Self::Dense { variable, .. } => *variable,
            Self::Rows(rows) => rows.table(),
        }
    }

    /// Adds it to the variable's flat gradient.
    ///
    /// # Panics
    /// When `sum` is not of the variable's size.
    pub fn add_to(&self, sum: &mut [f32]) {
        match self {
            Self::Dense { values, .. } => {
                assert_eq!(values.len(), sum.len());
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            Self::Rows(rows) => rows.add_to(sum),
        }
    }

    /// Writes it over the variable's flat gradient.
    ///
    /// # Panics
    /// When `into` is not of the variable's size.
    pub fn write_to(&self, into: &mut [f32]) {
        match self {
            Self::Dense { values, .. } => into.copy_from_slice(values),
            Self::Rows(rows) => {
                into.fill(0.0);
                rows.add_to(into);
            }
        }
    }
}

/// Where each variable's gradient lies in a flat one; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Places(Arc<HashMap<TensorId, Range<usize>>>);

impl FromIterator<(TensorId, Range<usize>)> for Places {
    fn from_iter<I: IntoIterator<Item = (TensorId, Range<usize>)>>(places: I) -> Self {
        Self(Arc::new(places.into_iter().collect()))
    }
}

/// A flat gradient that kernels write into.
struct Lent {
    flat: Vec<f32>,
    places: Places,
    /// The variables whose places have been written.
    laid: HashSet<TensorId>,
}

impl Lent {
    /// Where the gradient of `of` is to be written: nowhere if it has no place, or something lies there already.
    fn place(&mut self, of: &Tensor) -> Option<&mut [f32]> {
        let range = self.places.0.get(&of.id()).filter(|_| of.is_variable())?;
        let place = self.flat.get_mut(range.clone())?;
        (place.len() == of.elem_count() && self.laid.insert(of.id())).then_some(place)
    }
}

/// Whoever listens; what it does not want, it gives back.
type Listener = Box<dyn FnMut(Contribution) -> Option<Contribution>>;

/// What becomes of the gradients of a backward pass.
struct Delivery {
    /// Who is handed them.
    listener: Listener,
    /// What was given back.
    kept: Vec<Contribution>,
    /// What they are written into, where that has a place for them.
    lent: Option<Lent>,
}

thread_local! {
    /// The backward pass that runs on this thread.
    ///
    /// This is the one place where gradients travel beside the arguments of functions. candle calls
    /// `CustomOp::bwd` with tensors alone, on the thread that called `Tensor::backward`, and an
    /// operation is made in the forward pass, before anybody knows what is to become of gradients:
    /// only the thread tells the operation which backward pass it is part of.
    static DELIVERY: RefCell<Option<Delivery>> = const { RefCell::new(None) };
}

/// Runs `backward` with this delivery; returns the delivery as the pass has left it.
fn run<T>(delivery: Delivery, backward: impl FnOnce() -> T) -> (T, Delivery) {
    /// Ends the delivery even when an operation panics on the way.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            DELIVERY.take();
        }
    }
    DELIVERY.set(Some(delivery));
    let _end = End;
    let out = backward();
    (out, DELIVERY.take().expect("invariant: no other backward pass runs within one"))
}

/// Runs a backward pass whose kernels write what they first know of a variable's gradient into its place in `flat`.
/// Returns with the pass's result what has no place there, and which variables' places were written.
pub(super) fn lend<T>(
    flat: &mut Vec<f32>,
    places: &Places,
    backward: impl FnOnce() -> T,
) -> (T, Vec<Contribution>, HashSet<TensorId>) {
    let lent = Lent { flat: std::mem::take(flat), places: places.clone(), laid: HashSet::new() };
    let delivery = Delivery { listener: Box::new(Some), kept: Vec::new(), lent: Some(lent) };
    let (out, Delivery { kept, lent, .. }) = run(delivery, backward);
    let lent = lent.expect("invariant: a kernel gives back what it takes");
    *flat = lent.flat;
    (out, kept, lent.laid)
}

/// Runs a backward pass whose kernels hand the gradients of variables to `listener`, in an order
/// that is the same in every run, instead of returning them to candle. Returns with the pass's
/// result what the listener gave back.
pub(super) fn deliver<T>(
    listener: impl FnMut(Contribution) -> Option<Contribution> + 'static,
    backward: impl FnOnce() -> T,
) -> (T, Vec<Contribution>) {
    let delivery = Delivery { listener: Box::new(listener), kept: Vec::new(), lent: None };
    let (out, Delivery { kept, .. }) = run(delivery, backward);
    (out, kept)
}

/// Hands a contribution over if somebody listens and `variable` is one; else gives it back.
pub(super) fn hand_over(variable: &Tensor, contribution: Contribution) -> Option<Contribution> {
    // Only a variable's gradient may stay out of the store: candle asks for any other's.
    if !variable.is_variable() {
        return Some(contribution);
    }
    DELIVERY.with_borrow_mut(|delivery| match delivery {
        Some(Delivery { listener, kept, .. }) => {
            kept.extend(listener(contribution));
            None
        }
        None => Some(contribution),
    })
}

/// Takes what the pass writes into, or puts it back.
fn swap(lent: &mut Option<Lent>) {
    DELIVERY.with_borrow_mut(|delivery| {
        if let Some(delivery) = delivery {
            std::mem::swap(&mut delivery.lent, lent);
        }
    });
}

/// What an operation returns to candle as the gradient of its operand `of`, all elements of which `write` writes:
/// nothing if they were written where they are wanted, or could be handed over.
pub(super) fn gradient(
    of: &Tensor,
    write: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<Option<Tensor>> {
    // Nothing stays borrowed while `write` runs.
    let mut lent = None;
    swap(&mut lent);
    if let Some(place) = lent.as_mut().and_then(|lent| lent.place(of)) {
        let written = write(place);
        swap(&mut lent);
        return written.map(|()| None);
    }
    swap(&mut lent);
    let mut values = vec![0.0; of.elem_count()];
    write(&mut values)?;
    match hand_over(of, Contribution::Dense { variable: of.id(), values }) {
        Some(Contribution::Dense { values, .. }) => {
            Tensor::from_vec(values, of.shape(), of.device()).map(Some)
        }
        _ => Ok(None),
    }
}

/// [`gradient`] of which all elements are there already, in `values`.
pub(super) fn copied_gradient(of: &Tensor, values: &[f32]) -> Result<Option<Tensor>> {
    gradient(of, |place| {
        place.copy_from_slice(values);
        Ok(())
    })
}

/// Parameters that an operation reads by itself, because candle's operations take at most three operands. They are not
/// copied, and their gradients are written where they are wanted.
///
/// In their place the operation takes a [link](Self::link), a number of no meaning that is made of all of them, so that
/// candle knows that the result depends on them.
pub(super) struct Linked(Arc<[(Tensor, Mutex<Option<Tensor>>)]>);

impl Linked {
    /// These parameters, brought into row-major order if they are not.
    pub(super) fn new<'a>(parts: impl IntoIterator<Item = &'a Tensor>) -> Result<Self> {
        let part = |part: &Tensor| Ok((part.contiguous()?, Mutex::new(None)));
        Ok(Self(parts.into_iter().map(part).collect::<Result<_>>()?))
    }

    /// The operand that stands for them.
    pub(super) fn link(&self) -> Result<Tensor> {
        let first = Tensor::zeros((), DType::F32, &Device::Cpu)?;
        self.0.iter().enumerate().try_fold(first, |link, (at, (part, _))| {
            apply(Link { linked: Self(Arc::clone(&self.0)), at }, [&link, part])
        })
    }

    /// The values of each.
    ///
    /// # Errors
    /// Parameters that are not `f32` on the CPU.
    pub(super) fn values(&self) -> Result<Vec<Borrowed<'_, f32>>> {
        self.0.iter().map(|(part, _)| borrow(part)).collect()
    }

    /// Gives the parameter of that number its [gradient].
    pub(super) fn give(&self, at: usize, write: impl FnOnce(&mut [f32])) -> Result<()> {
        let (part, kept) = &self.0[at];
        let gradient = gradient(part, |to| {
            write(to);
            Ok(())
        })?;
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = gradient;
        Ok(())
    }
}

/// A link that also stands for one more parameter.
struct Link {
    linked: Linked,
    at: usize,
}

impl CustomOp<2> for Link {
    const NAME: &'static str = "link";

    fn forward(&self, _: [Operand; 2]) -> Result<(Vec<f32>, Shape)> {
        Ok((vec![0.0], Shape::from(())))
    }

    fn backward(&self, [link, _]: [&Tensor; 2], _: &Tensor, _: &Tensor) -> Backprop<2> {
        let (_, kept) = &self.linked.0[self.at];
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok([Some(link.zeros_like()?), kept])
    }
}
