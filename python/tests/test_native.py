"""The package sends what the native trainer sends for the same gradients.

Needs the trainer's program: its path is in the environment variable `GRADWIRE_PROGRAM`.
"""

import json
import os
import subprocess

import numpy
import pytest

import gradwire

safetensors = pytest.importorskip("safetensors.numpy")
PROGRAM = os.environ.get("GRADWIRE_PROGRAM")
STEPS = 4


@pytest.mark.skipif(PROGRAM is None, reason="GRADWIRE_PROGRAM does not name the trainer's program")
@pytest.mark.parametrize("scheme", [one.name for one in gradwire.schemes()])
def test_the_bytes_of_every_step_are_those_of_the_native_trainer(scheme, tmp_path):
    """One worker trains and keeps its gradients; they are exchanged here, step by step."""
    command = [PROGRAM, "train", "--scheme", scheme, "--workers", "1", "--steps", str(STEPS)]
    command += ["--set", "record.gradients=1", "--set", "record.every=1", "--out", str(tmp_path)]
    if scheme == "dgc":  # It brings its own momentum.
        command += ["--set", "optimizer.momentum=0"]
    subprocess.run(command, check=True, capture_output=True)
    record = next(tmp_path.rglob("metrics.jsonl"))
    events = [json.loads(line) for line in record.read_text().splitlines()]
    sent = [event["wire_bytes"] for event in events if event["event"] == "step"]
    assert len(sent) == STEPS

    # The trainer tells the exchange how many steps there will be.
    settings = {"horizon": STEPS} if scheme == "dqsgd" else {}
    exchange = None
    for step, wire_bytes in enumerate(sent, 1):
        file = record.parent / "gradients" / f"step-{step:06}.safetensors"
        # The residual beside each gradient is left out: the exchange here keeps its own.
        recorded = safetensors.load_file(file)
        gradients = {name: one for name, one in recorded.items() if not name.startswith("residual/")}
        if exchange is None:
            shapes = {name: list(one.shape) for name, one in gradients.items()}
            exchange = gradwire.Exchange(shapes, scheme, seed=1, **settings)
        flat = numpy.concatenate([gradients[name].ravel() for name, _, _ in exchange.layout])
        assert exchange.allreduce(step, flat).wire_bytes == wire_bytes
