//! An optimizer of one's own: Lion (Chen et al. 2023), which moves every weight by the sign of an
//! average of gradients. What it remembers is a named vector, which checkpoints keep.

use gradwire::prelude::*;

#[derive(Clone, Copy)]
struct Lion {
    learning_rate: f64,
    betas: [f32; 2],
}

impl OptimizerDefinition for Lion {
    fn about(&self) -> About {
        About { name: "lion", line: "the sign of an average", paper: "Chen et al. 2023" }
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn rule(&self, _correction: f64) -> Box<dyn Rule> {
        Box::new(*self)
    }
}

impl Rule for Lion {
    fn vectors(&self) -> &'static [&'static str] {
        &["average"]
    }

    fn update(&self, piece: Piece<'_>, now: &Now) {
        let [average] = piece.state.take();
        let [now_by, keep] = self.betas;
        for ((weight, gradient), average) in
            piece.weights.iter_mut().zip(piece.gradient).zip(average)
        {
            let direction = now_by * *average + (1.0 - now_by) * gradient;
            // In Rust 0.0 has the sign of 1.
            let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
            *weight -= now.rate as f32 * sign;
            *average = keep * *average + (1.0 - keep) * gradient;
        }
    }
}

pub(crate) fn train(out: &str) -> Result<Outcome> {
    let settings =
        ["name=own-optimizer", "workers=2", "scheme=half", "samples.train=512", "samples.test=128"];
    let lion = Lion { learning_rate: 1e-3, betas: [0.9, 0.99] };
    Training::with(settings)?.optimizer(lion).out(out).run()
}

fn main() -> Result<()> {
    train("runs/out").map(drop)
}
