//! Overlapped and sequential runs are the same run: every loss, byte count and weight, bit for bit.

use crate::common::{Program, events, number, quick, sets, weights};
use serde_json::Value;

/// What a run of the quick recipe with these settings comes to.
struct Run {
    steps: Vec<Value>,
    weights: Vec<(String, Vec<u8>)>,
}

fn run(overlap: bool, settings: &str) -> Run {
    let program = Program::new();
    let settings = format!("exchange.overlap={overlap} exchange.overlap_bytes=4096 {settings}");
    let run = program.train(&sets(&settings));
    Run { steps: events(&run, "step"), weights: weights(&run) }
}

fn same(settings: &str) -> Run {
    let (sequential, overlapped) = (run(false, settings), run(true, settings));
    assert_eq!(sequential.steps.len(), overlapped.steps.len());
    for (a, b) in sequential.steps.iter().zip(&overlapped.steps) {
        for key in ["loss", "wire_bytes", "dense_bytes", "gradient_norm", "gauges"] {
            assert_eq!(a[key], b[key], "{key} under {settings:?}:\n{a}\n{b}");
        }
        for step in [a, b] {
            let exposed = number(step, "exposed_seconds");
            assert!(exposed > 0.0 && number(step, "exchange_seconds") > 0.0, "{step}");
        }
    }
    assert!(sequential.weights == overlapped.weights, "the weights differ under {settings:?}");
    overlapped
}

const TEXT_MODELS: [&str; 3] = ["model=textcnn", "model=bilstm", "model=transformer"];

#[test]
fn text_models_overlap_without_a_trace() {
    for model in TEXT_MODELS {
        same(&format!("{model} train.max_steps=5 train.batch=8 policy.bucketing=parameter"));
    }
}

/// A momentum that leaves as frequencies, and one that ranks share.
#[test]
fn momenta_overlap_without_a_trace() {
    let steps = "train.max_steps=6 train.batch=8 policy.bucketing=parameter model=transformer";
    for momentum in [
        "scheme=demo optimizer={kind='sgd',momentum=0,sign=true,learning_rate=0.01}",
        "scheme=onebit optimizer={kind='onebit-adam',warmup_steps=3}",
    ] {
        same(&format!("{momentum} {steps}"));
    }
}

/// Uneven last steps, several forward passes an update, a rank without samples, histograms that
/// want the local gradient.
#[test]
fn images_overlap_without_a_trace() {
    same(
        "dataset=synthetic-cifar10 model=resnet20 samples.train=52 samples.test=16 workers=3 \
         train.batch=4 train.accumulate=2 train.max_steps=6 record.histograms_every=4 \
         scheme={kind='topk',ratio=0.05} policy.bucketing={bytes=32768} policy.dense_below=100",
    );
}

#[test]
fn learning_schemes_overlap_without_a_trace() {
    for scheme in ["casq", "sidco", "optquant", "dqsgd", "aggregation-aware", "half", "powersgd"] {
        let steps = "policy.bucketing=parameter train.max_steps=4 train.batch=8";
        same(&format!("scheme={scheme} {steps}"));
    }
}

#[test]
fn what_cannot_overlap_is_refused() {
    let program = Program::new();
    for (setting, says) in [
        ("policy.bucketing=whole", "as one bucket"),
        ("policy.clip_norm=1", "policy.clip_norm"),
        ("exchange.overlap_bytes=-1", "overlap_bytes"),
    ] {
        let overlap = format!("exchange.overlap=true policy.bucketing=parameter {setting}");
        program.refuses(&quick(&sets(&overlap)), 2, &[says]);
    }
}
