"""Reads runs with TensorBoard's own code and compares them with their metrics.jsonl.

    check.py RUN [RUN ...]

Every scalar, histogram and text that metrics.jsonl implies must be in the event file with the
same step, wall time and value (scalars as 32-bit floats), and nothing else may be there. The file
is read twice: as it was written, and as TensorBoard's server sees it after its own migration to
tensors. Prints one line for each run; exits with 1 and the differences when there are any.
"""

import collections
import json
import math
import pathlib
import sys

import numpy as np
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.util import tensor_util

EVERYTHING = {
    event_accumulator.SCALARS: 0,
    event_accumulator.HISTOGRAMS: 0,
    event_accumulator.TENSORS: 0,
    event_accumulator.COMPRESSED_HISTOGRAMS: 1,
}
PHASES = ("data", "forward", "backward", "encode", "wait", "decode", "optimizer")


def number(value):
    """A number of metrics.jsonl, where what is not finite is a string."""
    return float(value)


def step_scalars(event):
    """The curves that a step has a point on."""
    yield "train/loss", event["loss"]
    yield "train/learning_rate", event["learning_rate"]
    for key in ("accuracy", "gradient_norm"):
        if key in event:
            yield f"train/{key}", event[key]
    if event["seconds"] > 0:
        yield "speed/samples_per_second", event["samples"] / event["seconds"]
    for phase in PHASES:
        yield f"phase/{phase}", event["phases"][phase]
    yield "exchange/seconds", event["exchange_seconds"]
    for key in ("exposed_seconds", "wire_bytes", "wire_bytes_total", "bits_per_parameter", "compression_ratio"):
        yield f"exchange/{key}", event[key]
    if "residual_norm" in event:
        yield "exchange/residual_norm", event["residual_norm"]
    for gauge, value in event.get("gauges", {}).items():
        yield f"scheme/{gauge}", value


def epoch_scalars(event):
    """The curves that an epoch has a point on."""
    for key in ("train_loss", "train_accuracy", "seconds", "samples_per_second"):
        if key in event:
            yield f"epoch/{key}", event[key]
    for key in ("loss", "accuracy"):
        if f"test_{key}" in event:
            yield f"test/{key}", event[f"test_{key}"]


def checkpoint_scalars(event):
    """The curves that a checkpoint has a point on."""
    for key in ("bytes", "stall_seconds", "write_seconds"):
        yield f"checkpoint/{key}", event[key]


SCALARS = {"step": step_scalars, "epoch": epoch_scalars, "checkpoint": checkpoint_scalars}


class Expected:
    """What metrics.jsonl says the event file must hold: tag -> [(time, step, value)]."""

    def __init__(self, path):
        self.scalars = collections.defaultdict(list)
        self.histograms = collections.defaultdict(list)
        self.texts = collections.defaultdict(list)
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line, parse_constant=not_json)
            time, kind = event["time"], event["event"]
            if kind in SCALARS:
                for tag, value in SCALARS[kind](event):
                    self.scalars[tag].append((time, event["step"], number(value)))
            elif kind == "histograms":
                for entry in event["entries"]:
                    self.histograms[entry["tag"]].append((time, event["step"], entry))
            elif kind == "text":
                self.texts[event["tag"]].append((time, event["step"], event["text"]))


def not_json(word):
    raise ValueError(f"{word} is not JSON")


def same(left, right):
    """Equality of 64-bit floats, where NaN equals NaN."""
    return left == right or (math.isnan(left) and math.isnan(right))


def same_scalar(expected, read):
    with np.errstate(over="ignore"):
        return same(float(np.float32(expected)), float(read))


def same_histogram(expected, read):
    return (
        (read.min, read.max) == (expected["min"], expected["max"])
        and read.num == expected["count"]
        and same(read.sum, number(expected["sum"]))
        and same(read.sum_squares, number(expected["sum_squares"]))
        and list(read.bucket_limit) == expected["limits"]
        and list(read.bucket) == expected["counts"]
    )


def same_buckets(expected, read):
    """A histogram after TensorBoard's migration: rows of left edge, right edge, count."""
    if expected["count"] == 0:
        return read.shape == (0, 3)
    return (
        read.shape == (len(expected["counts"]), 3)
        and read[0, 0] == np.float32(expected["min"])
        and read[-1, 1] == np.float32(expected["max"])
        and np.array_equal(read[:, 2], np.array(expected["counts"], np.float32))
        and np.array_equal(read[:-1, 1], np.array(expected["limits"][:-1], np.float32))
    )


def same_text(expected, read):
    return [text.decode("utf-8") for text in np.atleast_1d(read)] == [expected]


def compare(kind, expected, tags, read, agree, differences):
    """Compares the points of every tag; `read` gives a tag's (time, step, value) list."""
    for tag in sorted(set(expected) - set(tags)):
        differences.append(f"{kind} {tag}: missing from the event file")
    for tag in sorted(set(tags) - set(expected)):
        differences.append(f"{kind} {tag}: not in metrics.jsonl")
    for tag in sorted(set(tags) & set(expected)):
        points, found = expected[tag], read(tag)
        if len(points) != len(found):
            differences.append(f"{kind} {tag}: {len(points)} points expected, {len(found)} read")
            continue
        for (time, step, value), (read_time, read_step, read_value) in zip(points, found):
            where = f"{kind} {tag} at step {step}"
            if read_step != step:
                differences.append(f"{where}: read as step {read_step}")
            elif read_time != time:
                differences.append(f"{where}: wall time {time} read as {read_time}")
            elif not agree(value, read_value):
                differences.append(f"{where}: {value} read as {read_value}")


def check(run):
    """The differences of one run, and what was compared."""
    differences = []
    files = sorted(run.glob("events.out.tfevents.*"))
    if len(files) != 1:
        return [f"{len(files)} event files instead of one"], ""
    expected = Expected(run / "metrics.jsonl")

    written = event_accumulator.EventAccumulator(str(files[0]), size_guidance=EVERYTHING)
    written.Reload()
    tags = written.Tags()

    def scalars(tag):
        return [(point.wall_time, point.step, point.value) for point in written.Scalars(tag)]

    def histograms(tag):
        return [
            (point.wall_time, point.step, point.histogram_value)
            for point in written.Histograms(tag)
        ]

    def tensors(source):
        return lambda tag: [
            (point.wall_time, point.step, tensor_util.make_ndarray(point.tensor_proto))
            for point in source.Tensors(tag)
        ]

    for kind, values, read_tags, read, agree in (
        ("scalar", expected.scalars, tags["scalars"], scalars, same_scalar),
        ("histogram", expected.histograms, tags["histograms"], histograms, same_histogram),
        ("text", expected.texts, tags["tensors"], tensors(written), same_text),
    ):
        compare(kind, values, read_tags, read, agree, differences)

    served = plugin_event_accumulator.EventAccumulator(
        str(files[0]), size_guidance={plugin_event_accumulator.TENSORS: 0})
    served.Reload()
    for plugin, values, agree in (
        ("scalars", expected.scalars, same_scalar),
        ("histograms", expected.histograms, same_buckets),
        ("text", expected.texts, same_text),
    ):
        tags = served.PluginTagToContent(plugin) if plugin in served.ActivePlugins() else {}
        compare(f"served {plugin}", values, tags, tensors(served), agree, differences)

    def points(values, thing):
        count = sum(map(len, values.values()))
        return f"{count:,} {thing}{'s' * (count != 1)}"

    return differences, ", ".join((
        points(expected.scalars, "scalar"),
        points(expected.histograms, "histogram"),
        points(expected.texts, "text"),
    ))


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    failed = False
    for run in map(pathlib.Path, arguments):
        differences, compared = check(run)
        if differences:
            failed = True
            print(f"{run}: {len(differences)} difference(s)", file=sys.stderr)
            for difference in differences[:50]:
                print(f"  {difference}", file=sys.stderr)
        else:
            print(f"{run}: {compared} read by TensorBoard as recorded")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
