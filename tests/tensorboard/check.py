"""Reads runs with TensorBoard's own code and compares them with their metrics.jsonl.

    check.py FOLDER [FOLDER ...]

A folder is that of a run, or a log directory with runs below it.

Every scalar, histogram and text that metrics.jsonl implies must be in the run's event files with
the same step, wall time and value (scalars as 32-bit floats), and nothing else may be there. The
files are read twice: as they were written, and as TensorBoard's server sees them after its own
migration to tensors.

Of a log directory, the HParams dashboard's backend must list every run below the folder once, with the settings of its
recipe.toml, with how it ended and what it came to, under a name that no other has, and with every filter as it is at first.
Every folder has the numbered columns; of the others, those in which runs differ. Custom Scalars must find one layout
whose every category has charts with data.

Prints one line for each run and folder; exits with 1 and the differences when there are any.
"""

import collections
import json
import math
import pathlib
import sys
import tomllib

import numpy as np
from tensorboard import context
from tensorboard.backend.event_processing import (
    data_provider, event_accumulator, plugin_event_accumulator, plugin_event_multiplexer)
from tensorboard.plugins import base_plugin
from tensorboard.plugins.custom_scalar import custom_scalars_plugin
from tensorboard.plugins.hparams import (
    api_pb2, backend_context, get_experiment, list_session_groups, metadata)
from tensorboard.plugins.scalar import scalars_plugin
from tensorboard.util import tensor_util

EVERYTHING = {
    event_accumulator.SCALARS: 0,
    event_accumulator.HISTOGRAMS: 0,
    event_accumulator.TENSORS: 0,
    event_accumulator.COMPRESSED_HISTOGRAMS: 1,
}
# Curves over the evaluations of a run whose last point is a figure of its summary.
RESULTS = {
    "Test/best_accuracy": "best_accuracy",
    "Test/bits_per_parameter": "bits_per_parameter",
    "Test/wire_bytes": "wire_bytes",
    "Test/seconds": "seconds",
}
# Groups of curves in the order in which TensorBoard shows them: the first two are open.
FIRST_GROUPS = ["Test", "Train"]
# Keys of a recipe, or tables of keys, that are no column of HParams.
NO_COLUMN = (
    "name", "threads", "dataset.dir", "exchange.timeout", "exchange.compare_replicas_every",
    "exchange.overlap_bytes", "train.evaluate_every", "record",
    "checkpoint", "faults",
)
# The columns of HParams that every folder has, by the key of the recipe that they hold.
COLUMNS = {
    "scheme": "1 scheme", "scheme.ratio": "2 ratio", "model": "3 model", "dataset": "4 data set",
    "workers": "5 workers", "optimizer.learning_rate": "6 rate", "seed": "7 seed",
}
# Tags of the plugins that are checked apart.
OTHER_PLUGINS = ("hparams", "custom_scalars")
PHASES = ("data", "forward", "backward", "encode", "wait", "decode", "optimizer")


def number(value):
    """A number of metrics.jsonl, where what is not finite is a string."""
    return float(value)


def step_scalars(event):
    """The curves that a step has a point on."""
    yield "Train/loss", event["loss"]
    yield "Train/learning_rate", event["learning_rate"]
    for key in ("accuracy", "gradient_norm"):
        if key in event:
            yield f"Train/{key}", event[key]
    if event["seconds"] > 0:
        yield "speed/samples_per_second", event["samples"] / event["seconds"]
    for phase in PHASES:
        yield f"phase/{phase}", event["phases"][phase]
    yield "exchange/wire_bytes_total", event["wire_bytes_total"]
    # Within a round of local steps nothing is exchanged.
    if event["wire_bytes"] > 0:
        yield "exchange/seconds", event["exchange_seconds"]
        for key in ("exposed_seconds", "wire_bytes", "bits_per_parameter", "compression_ratio"):
            yield f"exchange/{key}", event[key]
    for key in ("uplink_bytes", "downlink_bytes", "local_bytes"):
        if key in event:
            yield f"exchange/{key}", event[key]
    if "residual_norm" in event:
        yield "exchange/residual_norm", event["residual_norm"]
    for gauge, value in event.get("gauges", {}).items():
        yield f"scheme/{gauge}", value
    for rule in event.get("rules", ()):
        yield f"rule_bits/{rule['match']}", rule["bits_per_parameter"]


def epoch_scalars(event):
    """The curves that an epoch has a point on."""
    for key in ("train_loss", "train_accuracy", "seconds", "samples_per_second"):
        if key in event:
            yield f"epoch/{key}", event[key]
    for key in ("loss", "accuracy", "top5_accuracy"):
        if f"test_{key}" in event:
            yield f"Test/{key}", event[f"test_{key}"]


def checkpoint_scalars(event):
    """The curves that a checkpoint has a point on."""
    for key in ("bytes", "stall_seconds", "write_seconds"):
        yield f"checkpoint/{key}", event[key]


SCALARS = {
    "step": step_scalars,
    "epoch": epoch_scalars,
    "checkpoint": checkpoint_scalars,
}


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
    if not list(run.glob("events.out.tfevents.*")):
        return ["no event file"], ""
    expected = Expected(run / "metrics.jsonl")

    written = event_accumulator.EventAccumulator(str(run), size_guidance=EVERYTHING)
    written.Reload()
    tags = written.Tags()
    texts = [
        tag for tag in tags["tensors"]
        if written.SummaryMetadata(tag).plugin_data.plugin_name not in OTHER_PLUGINS
    ]

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

    check_results(run, expected, scalars, tags["scalars"], differences)
    groups = sorted({tag.split("/")[0] for tag in tags["scalars"]})
    if "Test" in groups and groups[:2] != FIRST_GROUPS:
        differences.append(f"the first groups of curves are {groups[:2]}")
    for kind, values, read_tags, read, agree in (
        ("scalar", expected.scalars, set(tags["scalars"]) - set(RESULTS), scalars, same_scalar),
        ("histogram", expected.histograms, tags["histograms"], histograms, same_histogram),
        ("text", expected.texts, texts, tensors(written), same_text),
    ):
        compare(kind, values, read_tags, read, agree, differences)

    served = plugin_event_accumulator.EventAccumulator(
        str(run), size_guidance={plugin_event_accumulator.TENSORS: 0})
    served.Reload()
    for plugin, values, agree in (
        ("scalars", expected.scalars, same_scalar),
        ("histograms", expected.histograms, same_buckets),
        ("text", expected.texts, same_text),
    ):
        tags = served.PluginTagToContent(plugin) if plugin in served.ActivePlugins() else {}
        compare(f"served {plugin}", values, set(tags) - set(RESULTS), tensors(served), agree, differences)

    def points(values, thing):
        count = sum(map(len, values.values()))
        return f"{count:,} {thing}{'s' * (count != 1)}"

    return differences, ", ".join((
        points(expected.scalars, "scalar"),
        points(expected.histograms, "histogram"),
        points(expected.texts, "text"),
    ))


def check_results(run, expected, read, tags, differences):
    """Compares what a run had come to, and had cost, at its evaluations with its accuracies and its end."""
    evaluations = [(step, value) for _, step, value in expected.scalars.get("Test/accuracy", ())]
    for tag in RESULTS:
        steps = [step for _, step, _ in read(tag)] if tag in tags else []
        if steps != [step for step, _ in evaluations]:
            differences.append(f"{tag} has points at {steps}, not at every evaluation")
            return
    best = -math.inf
    for (step, accuracy), (_, _, value) in zip(evaluations, read("Test/best_accuracy") if evaluations else ()):
        best = max(best, accuracy)
        if not same_scalar(best, value):
            differences.append(f"Test/best_accuracy at step {step}: {value} instead of {best}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    finished = [line["summary"] for line in lines if line["event"] == "finished"]
    if not evaluations or not finished or evaluations[-1][0] != finished[-1]["step"]:
        return
    for tag, key in RESULTS.items():
        last, end = read(tag)[-1][2], number(finished[-1][key])
        # The run's clock goes on after its last evaluation; TensorBoard keeps the rounding of a time to f32.
        if not (last <= np.float32(end) if key == "seconds" else same_scalar(end, last)):
            differences.append(f"{tag} ends at {last}, the run at {end}")


def settings(run):
    """The columns of a run: its recipe, each value under the name that `--set` has for it."""
    found = {}

    def add(path, value):
        if any(path == key or path.startswith(f"{key}.") for key in NO_COLUMN):
            return
        if isinstance(value, dict):
            for key, inner in value.items():
                add(key if not path else path if key == "kind" else f"{path}.{key}", inner)
        else:
            found[COLUMNS.get(path, path)] = value

    add("", tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8")))
    return found


def plain(value):
    """A google.protobuf.Value as what it holds."""
    return getattr(value, value.WhichOneof("kind"))


def same_setting(expected, read):
    if isinstance(expected, list):
        return json.loads(read) == expected
    return type(expected) is bool and expected is read or \
        type(expected) is not bool and expected == read


def same_word(value):
    """A setting as a word that equal ones have in common, whole numbers or not."""
    return repr(float(value)) if type(value) in (int, float) else json.dumps(value)


def ending(run):
    """The status that a run's record tells of."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = lines[-1]
    if last["event"] == "failed":
        return api_pb2.STATUS_FAILURE
    if last["event"] != "finished":
        return api_pb2.STATUS_UNKNOWN
    planned = [line["steps"] for line in lines if line["event"] == "started"][-1]
    whole = last["summary"]["step"] >= planned
    return api_pb2.STATUS_SUCCESS if whole else api_pb2.STATUS_UNKNOWN


class Dashboards:
    """The backends of HParams and Custom Scalars over a log directory."""

    def __init__(self, logdir):
        multiplexer = plugin_event_multiplexer.EventMultiplexer()
        multiplexer.AddRunsFromDirectory(str(logdir))
        multiplexer.Reload()
        provider = data_provider.MultiplexerDataProvider(multiplexer, str(logdir))
        plugins = {}
        tb_context = base_plugin.TBContext(
            logdir=str(logdir), data_provider=provider, plugin_name_to_instance=plugins)
        plugins["scalars"] = scalars_plugin.ScalarsPlugin(tb_context)
        self.custom = custom_scalars_plugin.CustomScalarsPlugin(tb_context)
        self.hparams = backend_context.Context(tb_context)
        self.request = context.RequestContext()

    def metadata(self):
        return self.hparams.hparams_metadata(self.request, "")

    def experiment(self):
        return get_experiment.Handler(
            self.request, self.hparams, "", api_pb2.GetExperimentRequest()).run()

    def sessions(self):
        """The trials that are listed with every filter as the page has it at first, by run."""
        columns = []
        for info in self.experiment().hparam_infos:
            column = api_pb2.ColParams(hparam=info.name, include_in_result=True)
            if info.WhichOneof("domain") == "domain_discrete":
                column.filter_discrete.CopyFrom(info.domain_discrete)
            columns.append(column)
        request = api_pb2.ListSessionGroupsRequest(
            slice_size=1_000_000, col_params=columns,
            allowed_statuses=[value.number for value in api_pb2.Status.DESCRIPTOR.values])
        groups = list_session_groups.Handler(self.request, self.hparams, "", request).run()
        return {group.sessions[0].name: group for group in groups.session_groups}

    def layout(self):
        layout = self.custom.layout_impl(self.request, "")
        return json.loads(layout) if layout else {}

    def chart(self, run, pattern):
        """The tags of a run that are on a chart."""
        return self.custom.scalars_impl(self.request, run, pattern, "")["tag_to_events"]


def check_session(run, group, differences):
    """Compares what the HParams dashboard lists of a run with its record."""
    if len(group.sessions) != 1:
        differences.append(f"HParams {run}: {len(group.sessions)} sessions instead of one")
        return
    expected, read = settings(run), {key: plain(value) for key, value in group.hparams.items()}
    for key in sorted(set(read) - set(expected)):
        differences.append(f"HParams {run}: {key} is only in the event file")
    for key in sorted(set(COLUMNS.values()) & set(expected) - set(read)):
        differences.append(f"HParams {run}: {key} has no column")
    for key in sorted(set(expected) & set(read)):
        if not same_setting(expected[key], read[key]):
            differences.append(f"HParams {run}: {key} = {expected[key]!r} read as {read[key]!r}")
    status = ending(run)
    if group.sessions[0].status != status:
        differences.append(f"HParams {run}: status {group.sessions[0].status} instead of {status}")
    metrics = {metric.name.tag: metric.value for metric in group.metric_values}
    expected = Expected(run / "metrics.jsonl").scalars
    for tag in ("Test/accuracy", "Test/loss"):
        value = expected[tag][-1][2] if expected[tag] else None
        if tag in metrics and not (value is not None and same_scalar(value, metrics[tag])):
            differences.append(f"HParams {run}: {tag} = {value} read as {metrics[tag]}")
        if value is not None and tag not in metrics:
            differences.append(f"HParams {run}: no {tag}")


def check_columns(runs, experiment, differences):
    """The columns must be those of the recipes: the numbered ones, and those in which runs of one kind differ. What is
    usual in all fills no column; results come first."""
    all_settings = [settings(run) for run in runs]
    keys = {key for found in all_settings for key in found}
    differing = {
        key for key in keys
        if len({same_word(found[key]) for found in all_settings if key in found}) > 1
    }
    read = [info.name for info in experiment.hparam_infos]
    # What follows from the scheme, such as whether it has feedback, needs no column of its own.
    kinds = ("1 scheme", "3 model", "4 data set")
    alike = collections.defaultdict(lambda: collections.defaultdict(set))
    for found in all_settings:
        for key in found:
            alike[tuple(found.get(kind) for kind in kinds)][key].add(same_word(found[key]))
    told = {key for found in alike.values() for key, words in found.items() if len(words) > 1}
    for key in sorted((told | set(COLUMNS.values()) & keys) - set(read)):
        differences.append(f"HParams: {key} is no column")
    for key in sorted(set(read) - keys):
        differences.append(f"HParams: {key} is a column")
    same = [key for key in read if key not in differing]
    numbered = [key for key in COLUMNS.values() if key in same]
    if same[: len(numbered)] != numbered:
        differences.append(f"HParams: behind what differs the columns begin with {same[: len(numbered)]}")
    if keys <= set(read):
        differences.append("HParams: what is usual fills columns, too")
    results = [info.name.tag for info in experiment.metric_infos]
    wanted = ["Test/accuracy", "Test/best_accuracy", "Test/bits_per_parameter"]
    if any("Test/accuracy" in Expected(run / "metrics.jsonl").scalars for run in runs) and results[:3] != wanted:
        differences.append(f"HParams: the results begin with {results[:3]}")


def check_dashboards(logdir, runs):
    """The differences between what the dashboards show of `runs` and their records."""
    differences = []
    boards = Dashboards(logdir)
    named = {str(run.relative_to(logdir)): run for run in runs}
    sessions = boards.sessions()
    for name in sorted(set(named) ^ set(sessions)):
        differences.append(f"HParams: {name} is only in one of folder and dashboard")
    for name in sorted(set(named) & set(sessions)):
        check_session(named[name], sessions[name], differences)
    trials = [group.name for group in sessions.values()]
    if len(set(trials)) < len(trials):
        differences.append(f"HParams: trials share names: {trials}")
    described = [
        run for run, tags in boards.metadata().items() if metadata.EXPERIMENT_TAG in tags]
    if described:
        differences.append(f"HParams: descriptions in {described} hide other runs")
    check_columns(runs, boards.experiment(), differences)

    layout = boards.layout()
    charts = 0
    for category in layout.get("category", []):
        shown = 0
        for chart in category["chart"]:
            patterns = chart["multiline"]["tag"]
            shown += any(boards.chart(name, pattern) for name in named for pattern in patterns)
        charts += len(category["chart"])
        if not shown:
            differences.append(f"custom scalars: {category['title']} has no data")
    titles = [category["title"] for category in layout.get("category", [])]
    if not titles or len(set(titles)) < len(titles):
        differences.append(f"custom scalars: categories {titles}")
    return differences, f"{len(sessions)} sessions, {charts} charts"


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    failed = False

    def tell(folder, differences, compared):
        nonlocal failed
        if differences:
            failed = True
            print(f"{folder}: {len(differences)} difference(s)", file=sys.stderr)
            for difference in differences[:50]:
                print(f"  {difference}", file=sys.stderr)
        else:
            print(f"{folder}: {compared} read by TensorBoard as recorded")

    for folder in map(pathlib.Path, arguments):
        runs = sorted(file.parent for file in folder.rglob("metrics.jsonl"))
        if not runs:
            tell(folder, ["no run is here"], "")
            continue
        for run in runs:
            tell(run, *check(run))
        # Of a run that is the log directory itself, HParams shows no figures.
        if runs != [folder]:
            tell(f"{folder} (dashboards)", *check_dashboards(folder, runs))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
