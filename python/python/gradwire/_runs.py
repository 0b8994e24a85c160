"""Reading what a run of Gradwire's trainer leaves."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple, Union

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
    started, finished = None, None
    steps: List[Dict[str, Any]] = []
    epochs: List[Dict[str, Any]] = []
    gauges: List[Dict[str, Any]] = []
    for number, line in _lines(metrics):
        with _reading(metrics, number):
            event = line.pop("event", None)
            if event == "started":
                started = started or line
            elif event == "step":
                phases = line.pop("phases", {})
                gauges.append({"step": _count(line, "step"), **line.pop("gauges", {})})
                steps.append({**line, **{f"phases.{name}": one for name, one in phases.items()}})
            elif event == "epoch":
                epochs.append({"epoch": _count(line, "epoch"), **line})
            elif event == "finished":
                finished = line["summary"]
    if not started:
        raise InputError(f"{metrics} says nothing of how the run began; is it a whole file?")
    network = folder / "network.jsonl"
    return Run(
        folder=folder,
        steps=_frame(pandas, steps, ["step"]),
        epochs=_frame(pandas, epochs, ["epoch"]),
        gauges=_frame(pandas, gauges, ["step"]),
        network=_frame(pandas, _network(network) if network.is_file() else [], ["step", "rank"]),
        started=started,
        finished=finished,
    )


def _frame(pandas: Any, rows: List[Dict[str, Any]], index: List[str]) -> "pandas.DataFrame":
    """A table by what counts its rows; of a step that was taken again, the last."""
    table = pandas.DataFrame(rows)
    if table.empty:
        return pandas.DataFrame(columns=index).set_index(index)
    return table.drop_duplicates(index, keep="last").set_index(index).sort_index()


def _network(file: Path) -> List[Dict[str, Any]]:
    rows = []
    for number, line in _lines(file):
        if "step" not in line:
            continue  # The header of the process that wrote what follows.
        with _reading(file, number):
            step = _count(line, "step")
            for rank, compute in enumerate(line["compute"]):
                row = {"step": step, "rank": rank, **dict(zip(_COMPUTE, compute))}
                for name, column in _SUMS.items():
                    if line.get(name):
                        row[column] = _total(line[name][rank])
                rows.append(row)
    return rows


@contextmanager
def _reading(file: Path, number: int) -> Iterator[None]:
    """Around what reads one record: says which, where that has not what it needs."""
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:
        words = f"{file}, line {number}: this is no record of a run ({type(error).__name__}: {error})"
        raise InputError(f"{words}; take the line out, or take the whole file again") from error


def _count(record: Dict[str, Any], name: str) -> int:
    """What counts the rows of a table."""
    value = record[name]
    if not isinstance(value, int):
        raise TypeError(f"`{name}` is {value!r}, and not a whole number")
    return value


def _total(value: Any) -> Any:
    """The sum over the collectives of a step."""
    return sum(value) if isinstance(value, list) else value


def _lines(file: Path) -> Iterator[Tuple[int, Dict[str, Any]]]:
    """The records and the numbers of their lines. A last line that is torn, maybe within a letter, is none."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                value = json.loads(line.decode(), object_hook=_finite)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return
                raise InputError(f"{file}, line {number}: this is no JSON ({error})") from error
            if not isinstance(value, dict):
                raise InputError(f"{file}, line {number}: this is no record")
            yield number, value


def _finite(record: Dict[str, Any]) -> Dict[str, Any]:
    """Numbers that JSON cannot write, which the record writes as words."""
    return {
        name: _NOT_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in record.items()
    }
