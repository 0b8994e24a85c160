//! Single values of a summary.

use crate::record::histogram::Histogram;
use protobuf::{Message, RepeatedField};
use tensorboard_proto::summary::{
    Summary, Summary_Value, SummaryMetadata, SummaryMetadata_PluginData,
};
use tensorboard_proto::tensor::TensorProto;
use tensorboard_proto::tensor_shape::{TensorShapeProto, TensorShapeProto_Dim};
use tensorboard_proto::types::DataType;
use tensorboard_rs::summary;

pub(super) fn scalar(tag: &str, value: f64) -> Summary_Value {
    only(summary::scalar(tag, value as f32))
}

/// Those scalars that there are.
pub(super) fn scalars<'a>(
    values: impl IntoIterator<Item = (&'a str, Option<f64>)>,
) -> impl Iterator<Item = Summary_Value> {
    values.into_iter().filter_map(|(tag, value)| Some(scalar(tag, value?)))
}

pub(super) fn histogram(tag: &str, histogram: &Histogram) -> Summary_Value {
    let counts: Vec<f64> = histogram.counts.iter().map(|&count| count as f64).collect();
    only(summary::histogram_raw(
        tag,
        histogram.min,
        histogram.max,
        histogram.count as f64,
        histogram.sum,
        histogram.sum_squares,
        &histogram.limits,
        &counts,
    ))
}

pub(super) fn text(tag: &str, text: &str) -> Summary_Value {
    plugin_value(tag, "text", Vec::new(), string(&[1], text.as_bytes().to_vec()))
}

/// A tensor marked for one of TensorBoard's plugins, and what that is to know of it:
/// `tensorboard-rs` has no summaries for them.
pub(super) fn plugin_value(
    tag: &str,
    plugin: &str,
    content: Vec<u8>,
    tensor: TensorProto,
) -> Summary_Value {
    let mut data = SummaryMetadata_PluginData::new();
    data.set_plugin_name(plugin.into());
    data.set_content(content);
    let mut metadata = SummaryMetadata::new();
    metadata.set_plugin_data(data);

    let mut value = Summary_Value::new();
    value.set_tag(tag.into());
    value.set_metadata(metadata);
    value.set_tensor(tensor);
    value
}

/// A message in the encoding of protocol buffers.
pub(super) fn encoded(message: &impl Message) -> Vec<u8> {
    message.write_to_bytes().expect("invariant: no field of TensorBoard's messages is required")
}

/// A tensor of this shape, which holds one string.
pub(super) fn string(shape: &[i64], bytes: Vec<u8>) -> TensorProto {
    let mut tensor = tensor(DataType::DT_STRING, shape);
    tensor.set_string_val(RepeatedField::from_vec(vec![bytes]));
    tensor
}

/// A tensor without elements, where the plugin reads only what it is to know.
pub(super) fn nothing() -> TensorProto {
    tensor(DataType::DT_FLOAT, &[0])
}

fn tensor(kind: DataType, shape: &[i64]) -> TensorProto {
    let dimensions = shape.iter().map(|&size| {
        let mut dimension = TensorShapeProto_Dim::new();
        dimension.set_size(size);
        dimension
    });
    let mut shape = TensorShapeProto::new();
    shape.set_dim(dimensions.collect());
    let mut tensor = TensorProto::new();
    tensor.set_dtype(kind);
    tensor.set_tensor_shape(shape);
    tensor
}

/// The value of a summary that was made with exactly one.
fn only(mut summary: Summary) -> Summary_Value {
    summary.take_value().pop().expect("invariant: tensorboard-rs makes summaries of one value")
}
