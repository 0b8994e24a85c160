//! The charts of TensorBoard's Custom Scalars dashboard: what one wants to see of a compressed
//! training run, side by side.

use super::values::{encoded, plugin_value, string};
use tensorboard_proto::layout::{Category, Chart, Layout};
use tensorboard_proto::summary::Summary_Value;

/// The plugin, and the tag under which it looks.
const PLUGIN: &str = "custom_scalars";
const TAG: &str = "custom_scalars__config__";

/// Categories of charts, in order, and the charts of each: a title, and regular expressions of the tags on it, which match
/// from their beginning. Charts without data stay empty: not every scheme has all.
const CATEGORIES: &str = "\
Learning
  loss | Train/loss$ Test/loss$
  accuracy | Train/accuracy$ Test/accuracy$
  learning rate | Train/learning_rate$
  gradient norm | Train/gradient_norm$
Wire
  bits per parameter and step | exchange/bits_per_parameter$
  bytes in a step: sent by a rank, up, down | exchange/wire_bytes$ exchange/(up|down)link_bytes$
  bytes in all | exchange/wire_bytes_total$
Compression
  elements sent over elements wanted (k̂/k) | scheme/kept_ratio$
  compression error | scheme/compression_error$
  cosine with the gradient | scheme/compression_cosine$
  norm of the residual | exchange/residual_norm$
Time
  seconds of the exchange: in all, exposed | exchange/(exposed_)?seconds$
  seconds of encoding and decoding | phase/(encode|decode)$
  seconds of forward and backward pass | phase/(forward|backward)$
  seconds of waiting for data, for other ranks, and of the update | phase/(data|wait|optimizer)$
  samples per second | speed/samples_per_second$
";

/// The layout, to be written once into a run. TensorBoard shows the equal layouts of many runs as one.
pub(super) fn layout() -> Summary_Value {
    let mut layout = Layout::new();
    for line in CATEGORIES.lines() {
        match (line.trim_start().split_once(" | "), layout.category.last_mut()) {
            (Some((title, tags)), Some(category)) => {
                let mut chart = Chart { title: title.into(), ..Chart::default() };
                chart.mut_multiline().tag = tags.split(' ').map(String::from).collect();
                category.chart.push(chart);
            }
            _ => layout.category.push(Category { title: line.into(), ..Category::default() }),
        }
    }
    plugin_value(TAG, PLUGIN, Vec::new(), string(&[], encoded(&layout)))
}
