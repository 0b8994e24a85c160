//! A model of one's own, with a loss of its own: a network with one hidden layer on points in the
//! plane, trained by the squared error of its class probabilities (the Brier score).

use gradwire::prelude::*;

struct HiddenLayer {
    width: usize,
}

impl ModelDefinition for HiddenLayer {
    fn about(&self) -> About {
        About { name: "hidden-layer", line: "vectors; one hidden layer", paper: "" }
    }

    fn reads(&self) -> InputKind {
        InputKind::Image
    }

    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> candle_core::Result<Model> {
        let [length, _, _] = input.image()?;
        let hidden = candle_nn::linear(length, self.width, vb.pp("hidden"))?;
        let output = candle_nn::linear(self.width, classes, vb.pp("output"))?;
        let network = move |points: &Tensor| {
            output.forward(&hidden.forward(&points.flatten_from(1)?)?.tanh()?)
        };
        Ok(Box::new(candle_nn::func(network)))
    }

    fn loss(&self) -> Loss {
        Box::new(|outputs, labels, _smoothing| {
            let classes = outputs.dim(1)?;
            let all: Vec<u32> = (0..classes as u32).collect();
            let all = Tensor::new(all, labels.device())?.unsqueeze(0)?;
            let target = labels.unsqueeze(1)?.broadcast_eq(&all)?.to_dtype(outputs.dtype())?;
            (candle_nn::ops::softmax(outputs, 1)? - target)?.sqr()?.mean_all()
        })
    }
}

fn points(from: u32, to: u32) -> Result<Samples> {
    let point = |i: u32| [(i * 37 % 101) as f32 / 50.0 - 1.0, (i * 59 % 103) as f32 / 51.0 - 1.0];
    let labelled = |[x, y]: [f32; 2]| (vec![x, y], u32::from(x * y > 0.0));
    Ok(Samples::vectors(2, ["different", "alike"], (from..to).map(|i| labelled(point(i))))?)
}

pub(crate) fn train(out: &str) -> Result<Outcome> {
    let settings =
        ["name=own-model", "workers=2", "train.batch=16", "train.epochs=20", "scheme.ratio=0.2"];
    let training = Training::with(settings)?.model(HiddenLayer { width: 32 }).out(out);
    training.data(points(0, 2000)?, points(2000, 2400)?).run()
}

fn main() -> Result<()> {
    train("runs/out").map(drop)
}
