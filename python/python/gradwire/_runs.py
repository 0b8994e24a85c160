"""Reading what a run of Gradwire's trainer leaves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Union

from ._errors import InputError

if TYPE_CHECKING:
    import pandas

_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
# Of the lists over ranks in `network.jsonl`, what each rank's entry is, as columns.
_COMPUTE = ("data_ns", "forward_ns", "backward_ns", "update_ns")
_SUMS = {
    "encode": "encode_ns",
    "decode": "decode_ns",
    "learn": "learn_ns",
    "up": "up_bytes",
    "down": "down_bytes",
}


@dataclass
class Run:
    """One run: tables of its steps, epochs, gauges and network record, and how it began and ended.

    `steps` and `epochs` have a row each, as `metrics.jsonl` has them; columns of `steps` for times
    are `phases.forward` and the like. `gauges` has what the scheme told, a column each, by step.
    `network` has a row for each step and rank: nanoseconds of computing, encoding and decoding,
    bytes sent (`up_bytes`) and brought back (`down_bytes`). `started` and `finished` are the
    records themselves; `finished` is None for a run that has not come to its end.
    """

    folder: Path
    steps: "pandas.DataFrame"
    epochs: "pandas.DataFrame"
    gauges: "pandas.DataFrame"
    network: "pandas.DataFrame"
    started: Dict[str, Any]
    finished: Optional[Dict[str, Any]]


def read_run(folder: Union[str, Path]) -> Run:
    """Reads the folder of a run: `metrics.jsonl`, and `network.jsonl` where there is one.

    The last line of a run that is still going on may be half written; it is left out.
    """
    try:
        import pandas
    except ImportError as error:
        raise InputError(
            "reading runs needs pandas; install it with `pip install pandas`"
        ) from error
    folder = Path(folder)
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise InputError(
            f"{folder} is no run's folder: it has no metrics.jsonl; give a folder under runs/out"
        )
    events: Dict[str, List[Dict[str, Any]]] = {}
    for line in _lines(metrics):
        events.setdefault(str(line.pop("event", "")), []).append(line)
    started = events.get("started")
    if not started:
        raise InputError(f"{metrics} says nothing of how the run began; is it a whole file?")
    steps, gauges = [], []
    for step in events.get("step", []):
        gauges.append({"step": step["step"], **step.pop("gauges", {})})
        steps.append({**step, **{f"phases.{k}": v for k, v in step.pop("phases", {}).items()}})
    for row in steps:
        row.pop("phases", None)
    finished = events.get("finished")
    network = folder / "network.jsonl"
    return Run(
        folder=folder,
        steps=_frame(pandas, steps, ["step"]),
        epochs=_frame(pandas, events.get("epoch", []), ["epoch"]),
        gauges=_frame(pandas, gauges, ["step"]),
        network=_frame(pandas, _network(network) if network.is_file() else [], ["step", "rank"]),
        started=started[0],
        finished=finished[-1]["summary"] if finished else None,
    )


def _frame(pandas: Any, rows: List[Dict[str, Any]], index: List[str]) -> "pandas.DataFrame":
    """A table by what counts its rows; of a step that was taken again, the last."""
    table = pandas.DataFrame(rows)
    if table.empty:
        return pandas.DataFrame(columns=index).set_index(index)
    return table.drop_duplicates(index, keep="last").set_index(index).sort_index()


def _network(file: Path) -> List[Dict[str, Any]]:
    rows = []
    for line in _lines(file):
        if "step" not in line:
            continue  # The header of the process that wrote what follows.
        for rank, compute in enumerate(line["compute"]):
            row = {"step": line["step"], "rank": rank, **dict(zip(_COMPUTE, compute))}
            for name, column in _SUMS.items():
                if line.get(name):
                    row[column] = _total(line[name][rank])
            rows.append(row)
    return rows


def _total(value: Any) -> Any:
    """The sum over the collectives of a step."""
    return sum(value) if isinstance(value, list) else value


def _lines(file: Path) -> Iterator[Dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                value = json.loads(line, object_hook=_finite)
            except ValueError as error:
                if not line.endswith("\n"):
                    return
                raise InputError(f"{file}, line {number}: this is no JSON ({error})") from error
            if not isinstance(value, dict):
                raise InputError(f"{file}, line {number}: this is no record")
            yield value


def _finite(record: Dict[str, Any]) -> Dict[str, Any]:
    """Numbers that JSON cannot write, which the record writes as words."""
    return {
        name: _NOT_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in record.items()
    }
