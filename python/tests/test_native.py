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
NEEDS_PROGRAM = pytest.mark.skipif(
    PROGRAM is None, reason="GRADWIRE_PROGRAM does not name the trainer's program"
)


def native(folder, *arguments):
    """The events of a run of one worker that keeps its gradients, and its folder."""
    command = [PROGRAM, "train", "--workers", "1", "--set", "record.gradients=1", "--set", "record.every=1"]
    subprocess.run([*command, *arguments, "--out", str(folder)], check=True, capture_output=True)
    record = next(folder.rglob("metrics.jsonl"))
    events = [json.loads(line) for line in record.read_text().splitlines()]
    return [event for event in events if event["event"] == "step"], record.parent


@NEEDS_PROGRAM
@pytest.mark.parametrize("scheme", [one.name for one in gradwire.schemes()])
def test_the_bytes_of_every_step_are_those_of_the_native_trainer(scheme, tmp_path):
    """One worker trains and keeps its gradients; they are exchanged here, step by step."""
    arguments = ["--scheme", scheme, "--steps", str(STEPS)]
    if scheme == "dgc":  # It brings its own momentum.
        arguments += ["--set", "optimizer.momentum=0"]
    events, folder = native(tmp_path, *arguments)
    sent = [event["wire_bytes"] for event in events]
    assert len(sent) == STEPS

    # The trainer tells the exchange how many steps there will be.
    settings = {"horizon": STEPS} if scheme == "dqsgd" else {}
    exchange = None
    for step, wire_bytes in enumerate(sent, 1):
        file = folder / "gradients" / f"step-{step:06}.safetensors"
        # The residual beside each gradient is left out: the exchange here keeps its own.
        recorded = safetensors.load_file(file)
        gradients = {name: one for name, one in recorded.items() if not name.startswith("residual/")}
        if exchange is None:
            shapes = {name: list(one.shape) for name, one in gradients.items()}
            exchange = gradwire.Exchange(shapes, scheme, seed=1, **settings)
        flat = numpy.concatenate([gradients[name].ravel() for name, _, _ in exchange.layout])
        assert exchange.allreduce(step, flat).wire_bytes == wire_bytes


def replayed(folder, settings, events, begin, seen):
    """What `DiLoCo` makes of the steps of a run, as `local.replayed` tells it."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this PyTorch has no gloo")
    if int(torch.__version__.split(".")[0]) < 2:
        pytest.skip("needs PyTorch 2.1 or newer")
    import local
    from ranks import run

    steps = {event["step"]: event["learning_rate"] for event in events}
    return run(local.replayed, 1, str(folder), settings, steps, begin, seen)[0]


@NEEDS_PROGRAM
@pytest.mark.parametrize("feedback, momentum", [({"decay": 0.95}, 0.9), ({"efsgdm": 0.5}, 0)])
def test_rounds_of_local_steps_are_those_of_the_native_trainer(feedback, momentum, tmp_path):
    """One worker trains with local steps and an outer optimizer. `DiLoCo` goes on from the checkpoint after
    the first round with the gradients that the worker had: the same bytes, weights and momentum."""
    (form, share), = feedback.items()
    outer = {"learning_rate": 0.7, "momentum": momentum, "nesterov": momentum > 0}
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in outer.items())
    sets = ["local.steps=3", f"outer={{ {table} }}", "optimizer.momentum=0", "schedule.warmup=0", "checkpoint.every_steps=3"]
    sets += ["checkpoint.keep_last=9", "scheme.ratio=0.05", f"policy.feedback={{ {form} = {share} }}"]
    arguments = [word for one in sets for word in ("--set", one)]
    events, folder = native(tmp_path, "--scheme", "topk", "--steps", "9", *arguments)
    settings = {"scheme": "topk", "ratio": 0.05, "feedback": feedback, "outer": outer, "steps": 3}
    sent, (found,) = replayed(folder, settings, events, 3, [9])
    assert sent == [event["wire_bytes"] for event in events[3:] if event["wire_bytes"]] and len(sent) == 2
    for name, (mine, theirs) in found.items():
        assert numpy.abs(theirs).max() > 0 or name == "residual", name
        # The native optimizer rounds once where PyTorch rounds twice.
        assert numpy.abs(mine - theirs).max() < 3e-7, name


@NEEDS_PROGRAM
@pytest.mark.parametrize(
    "scheme, fragments, delay, mix", [("topk", 2, 1, 0.25), ("qsgd", 3, 0, 0.5), ("qsgd", 2, 1, 0.5), ("topk", 1, 3, 0.0)]
)
def test_streams_after_steps_that_exchange_gradients_are_those_of_the_native_trainer(scheme, fragments, delay, mix, tmp_path):
    """From the first step's checkpoint on, bit for bit: rates and momentum are powers of two, so that both round alike."""
    table = f"learning_rate = 0.5, momentum = 0.5, nesterov = true, fragments = {fragments}, delay = {delay}, mix = {mix}"
    sets = ["local.steps=4", "local.after=2", f"outer={{ {table} }}", "optimizer.momentum=0", "schedule.warmup=0"]
    sets += ["schedule.kind=constant", "optimizer.learning_rate=0.125", "checkpoint.every_steps=1", "checkpoint.keep_last=99"]
    sets += ["policy.bucketing=parameter"]
    settings = {"scheme": scheme, "seed": 1, "bucketing": "parameter", "steps": 4, "after": 2}
    if scheme == "topk":
        sets += ["scheme.ratio=0.05", "policy.feedback={ decay = 0.95 }"]
        settings.update(ratio=0.05, feedback={"decay": 0.95})
    arguments = [word for one in sets for word in ("--set", one)]
    events, folder = native(tmp_path, "--scheme", scheme, "--steps", "13", *arguments)
    outer = {"learning_rate": 0.5, "momentum": 0.5, "nesterov": True, "fragments": fragments, "delay": delay, "mix": mix}
    settings["outer"] = outer
    seen = sorted(int(one.name[5:]) for one in (folder / "checkpoints").iterdir())[1:]
    assert seen and seen[-1] == 13
    sent, found = replayed(folder, settings, events, 1, seen)
    native_sent = [event["wire_bytes"] for event in events[1:] if event["wire_bytes"]]
    assert sent == native_sent and len(sent) == 1 + {1: 3, 2: 6, 3: 9}[fragments]
    for step, one in zip(seen, found):
        for name, (mine, theirs) in one.items():
            assert numpy.array_equal(mine, theirs), (step, name)
