//! Model, loss, data, optimizer and scheme of one's own, trained by four threads, stopped half way and resumed.
use gradwire::prelude::*;

struct Linear;
#[rustfmt::skip]
impl ModelDefinition for Linear {
    fn about(&self) -> About { About { name: "linear", line: "vectors; one layer", paper: "" } }
    fn reads(&self) -> InputKind { InputKind::Image }
    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> candle_core::Result<Model> {
        let layer = candle_nn::linear(input.image()?[0], classes, vb.pp("fc"))?;
        Ok(Box::new(candle_nn::func(move |x: &Tensor| layer.forward(&x.flatten_from(1)?))))
    }
    fn loss(&self) -> Loss { Box::new(|outputs, labels, _| cross_entropy(&outputs.tanh()?, labels, 0.0)) }
}

struct Signs; // Moves every weight by the sign of its gradient.
#[rustfmt::skip]
impl OptimizerDefinition for Signs {
    fn about(&self) -> About { About { name: "signs", line: "the gradient's sign", paper: "" } }
    fn learning_rate(&self) -> f64 { 0.05 }
    fn rule(&self, _correction: f64) -> Box<dyn Rule> {
        Box::new(|piece: Piece<'_>, now: &Now<'_>| {
            for (w, g) in piece.weights.iter_mut().zip(piece.gradient) { if *g != 0.0 { *w -= now.rate as f32 * g.signum(); } }
        })
    }
}

pub(crate) struct UpperHalves; // Sends the upper half of every value's bits.
#[rustfmt::skip]
impl Scheme for UpperHalves {
    fn properties(&self) -> Properties {
        Properties { name: "upper-halves", line: "half of the bits", paper: "", law: Law::Contraction, soundness: Soundness::Sound, feedback: false }
    }
    fn build(&self, _seat: &Seat) -> Built { Built::Codec(Box::new(UpperHalves)) }
}
#[rustfmt::skip]
impl Compressor for UpperHalves {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        gradient.iter().for_each(|value| out.extend(&value.to_le_bytes()[2..]));
        Encoded::Message
    }
    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> exchange::Result<()> {
        if wire.len() != 2 * sum.len() { return Err(Fault::Length { expected: 2 * sum.len(), found: wire.len() }.into()); }
        for (sum, [a, b]) in sum.iter_mut().zip(wire.as_chunks().0) { *sum += weight * f32::from_le_bytes([0, 0, *a, *b]); }
        Ok(())
    }
}

pub(crate) fn training(out: &str, steps: u64) -> Result<Training> {
    let point = |i: u32| (vec![(i % 17) as f32 / 8.0 - 1.0, 0.5], u32::from(i % 17 > 5));
    let points = |range: Range<u32>| Samples::vectors(2, ["low", "high"], range.map(point));
    let training = Training::with(["name=own", "workers=4", "train.batch=8", "schedule=constant"])?;
    let training = training.data(points(0..800)?, points(800..900)?).out(out).max_steps(steps);
    Ok(training.model(Linear).optimizer(Signs).scheme(UpperHalves))
}

fn main() -> Result<()> {
    let half = training("runs/out", 60)?.run()?;
    training("runs/out", 100)?.resume(half.folder).run().map(drop)
}
