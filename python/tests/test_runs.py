"""Reading a run: `run/` is what the native trainer left of 16 steps on four workers."""

import shutil
from pathlib import Path

import numpy
import pytest

import gradwire

pytest.importorskip("pandas", reason="pandas is not installed")
RUN = Path(__file__).parent / "run"


def test_a_run_is_read_as_tables():
    run = gradwire.read_run(RUN)
    assert run.started["workers"] == 4 and run.started["model"] == "resnet20"
    assert run.finished["steps"] == 16
    assert run.steps.index.name == "step" and run.steps.index[-1] == 16
    assert {"loss", "wire_bytes", "phases.forward", "learning_rate"} <= set(run.steps.columns)
    assert "phases" not in run.steps and "gauges" not in run.steps
    assert run.steps["loss"].dtype == float
    assert run.epochs.loc[1, "test_accuracy"] == pytest.approx(0.1015625)
    assert run.gauges.index.equals(run.steps.index) and "kept" in run.gauges.columns
    assert run.network.index.names == ["step", "rank"] and len(run.network) == 16 * 4
    sent = run.network["up_bytes"].groupby("step").mean()
    assert numpy.allclose(sent[run.steps.index], run.steps["wire_bytes"])


def test_a_run_that_is_still_going_on_is_read_as_far_as_it_has_come(tmp_path):
    text = (RUN / "metrics.jsonl").read_text().splitlines(keepends=True)
    torn = [line for line in text if '"finished"' not in line]
    (tmp_path / "metrics.jsonl").write_text("".join(torn[:-1]) + torn[-1][:20])
    run = gradwire.read_run(str(tmp_path))
    assert run.finished is None and run.network.empty
    assert len(run.steps) == len(gradwire.read_run(RUN).steps)


def test_a_last_line_that_is_torn_within_a_letter_is_left_out(tmp_path):
    text = (RUN / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(text + '{"event":"note","text":"\N{EURO SIGN}'.encode()[:-1])
    assert len(gradwire.read_run(tmp_path).steps) == len(gradwire.read_run(RUN).steps)


@pytest.mark.parametrize(
    "file, line, words",
    [
        ("metrics", b'{"event":"step"}', "no record of a run .*step"),
        ("metrics", b'{"event":"step","step":[1]}', r"`step` is \[1\], and not a whole number"),
        ("metrics", b'{"event":"step","step":99,"phases":[]}', "no record of a run"),
        ("metrics", b'{"event":"epoch","epoch":"one"}', "`epoch` is 'one'"),
        ("metrics", b'{"event":"finished"}', "no record of a run .*summary"),
        ("metrics", b'{"event":"\xe2\x82"}', "no JSON .*utf-8"),
        ("metrics", b"[" * 100_000 + b"]" * 100_000, "no JSON .*recursion"),
        ("network", b'{"step":99,"compute":[[1],[2]],"up":[[3]]}', "no record of a run .*IndexError"),
        ("network", b'{"step":99,"compute":3}', "no record of a run"),
        ("network", b'{"step":99}', "no record of a run .*compute"),
    ],
)
def test_a_record_that_has_not_what_it_needs_is_refused_by_its_line(file, line, words, tmp_path):
    for one in ("metrics", "network"):
        shutil.copy(RUN / f"{one}.jsonl", tmp_path)
    file = tmp_path / f"{file}.jsonl"
    number = len(file.read_bytes().splitlines()) + 1
    with file.open("ab") as more:
        more.write(line + b"\n")
    with pytest.raises(gradwire.InputError, match=f"{file.name}, line {number}: .*{words}"):
        gradwire.read_run(tmp_path)


def test_numbers_that_are_not_finite_and_steps_taken_again(tmp_path):
    lines = (RUN / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in lines if '"event":"step"' in line]
    again = steps[0].replace('"loss":', '"loss":"NaN","was":')
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, again]) + "\n")
    run = gradwire.read_run(tmp_path)
    assert numpy.isnan(run.steps["loss"].iloc[0]) and len(run.steps) == len(steps)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(gradwire.InputError, match="no metrics.jsonl"):
        gradwire.read_run(tmp_path)
    file = tmp_path / "metrics.jsonl"
    file.write_text("")
    with pytest.raises(gradwire.InputError, match="how the run began"):
        gradwire.read_run(tmp_path)
    shutil.copy(RUN / "metrics.jsonl", file)
    with file.open("a") as more:
        more.write("{torn\n{}\n")
    with pytest.raises(gradwire.InputError, match="line 14: this is no JSON"):
        gradwire.read_run(tmp_path)
    file.write_text("3\n")
    with pytest.raises(gradwire.InputError, match="line 1: this is no record"):
        gradwire.read_run(tmp_path)
