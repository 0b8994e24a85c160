#!/usr/bin/env python3
"""Soak: random faults, and kills at random moments, over runs that must come to the same end.

    python3 tests/soak.py faults --count 200 --seed 1
    python3 tests/soak.py kills --count 50 --seed 1 -- cifar10-topk --dir data --set train.max_steps=1500

`faults` takes short runs of every scheme in turn and does to each what its seed says: injected
faults, or SIGKILL at a random moment of it, and perhaps of its continuations too. Every run must end
as the table of docs/faults.md says, and, gone on with, in the weights and the record of an undisturbed run, bit
for bit. `kills` starts one run, given after `--`, and kills it at so many random moments, going on
each time. Only Python's own library is needed; the program is built before with
`cargo build --release`, or named by --program.
"""

import argparse
import json
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TIMES = {"time", "phases", "samples_per_second"}
STEPS = 24
# A run of half a second: a linear text model, checkpoints in the middle of epochs.
SHORT = [
    "train", "--quiet",
    "--set", "dataset={kind=\"synthetic-ag-news\",train=480,test=60}",
    "--set", "model=fasttext",
    "--set", "name=soak",
    "--set", f"train.max_steps={STEPS}",
    "--set", "train.batch=16",
    "--set", "record.every=1",
    "--set", "optimizer={kind=\"sgd\",learning_rate=0.5,momentum=0.0}",
    "--set", "checkpoint.every_steps=3",
    "--set", "exchange.timeout=1.5",
]
LIMIT = 120  # seconds: no short run may hang


def tensors(run):
    """The tensors of a run's last model: what the file's header says of each, and its bytes."""
    data = (run / "last" / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return header, data[8 + length :]


def told(run):
    """What the record says of steps and epochs, but for times."""
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        {key: value for key, value in event.items()
         if key not in TIMES and not key.endswith("seconds")}
        for event in events
        if event["event"] in ("step", "epoch")
    ]


def end(program, arguments, folder, kill_after=None, limit=LIMIT):
    """Runs to the end, or kills after so many seconds; exit code (negative: the signal) and errors."""
    with open(folder / "stderr", "w+b") as errors:
        process = subprocess.Popen(
            [program, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            process.wait(timeout=limit if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if kill_after is None:
                raise AssertionError(f"it hangs: {arguments}") from None
        errors.seek(0)
        return process.returncode, errors.read().decode(errors="replace")


def run_in(folder):
    runs = list((folder / "runs" / "out").glob("*/*Z*"))
    assert len(runs) <= 1, runs
    return runs[0] if runs else None


class Undisturbed:
    """The ends of runs that nothing happened to."""

    def __init__(self, program):
        self.program, self.known = program, {}

    def of(self, arguments):
        key = tuple(arguments)
        if key not in self.known:
            with tempfile.TemporaryDirectory() as folder:
                folder, began = Path(folder), time.monotonic()
                code, errors = end(self.program, arguments, folder)
                assert code == 0, errors
                run = run_in(folder)
                self.known[key] = tensors(run), told(run), time.monotonic() - began
        return self.known[key]


def some_fault(chance, workers):
    """An injected fault, and what must come of it: exit codes, and a part of the last line."""
    worker, step = chance.randrange(workers), chance.randrange(1, STEPS + 1)
    at = f"worker={worker},step={step}"
    place = f"worker {worker}, step {step}"
    return chance.choice(
        [
            (f"panic:{at}", {1}, place),
            (f"stall:{at},for=60s", {1}, place),
            (f"stall:{at},for=200ms", {0}, ""),
            (f"corrupt:{at}", {1}, place),
            (f"nan:{at}", {1}, place),
            (f"kill:step={step}", {-signal.SIGKILL}, ""),
            # A full disk costs a curve or a checkpoint, or ends the run.
            (f"disk-full:any={chance.randrange(1, 200)}", {0, 1}, ""),
            (f"disk-full:write={chance.randrange(1, 80)}", {0, 1}, ""),
        ]
    )


def one(program, undisturbed, seed, schemes, counts):
    chance = random.Random(seed)
    scheme = schemes[seed % len(schemes)]
    workers = chance.choice([2, 3, 4])
    arguments = SHORT + ["--scheme", scheme, "--workers", str(workers)]
    recovers = chance.random() < 0.3
    if recovers:
        arguments += ["--set", "faults.on_worker_loss=restart"]
    weights, record, seconds = undisturbed.of(arguments)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        fault, codes, part = some_fault(chance, workers)
        kill_after = None
        if chance.random() < 0.35:
            fault, kill_after = "SIGKILL", chance.uniform(0, seconds)
            code, errors = end(program, arguments, folder, kill_after)
            assert code in (0, -signal.SIGKILL), f"{code}: {errors}"
        else:
            code, errors = end(program, arguments + ["--inject", fault], folder)
            last = errors.strip().splitlines()[-1] if errors.strip() else ""
            lost = fault.split(":")[0] in ("panic", "stall", "corrupt")
            if recovers and lost and code == 0:
                pass  # It went on by itself.
            else:
                assert code in codes, f"{fault}: {code}: {errors}"
                assert part in last or code != 1, f"{fault}: {last}"
        counts[fault.split(":")[0]] += 1
        for _ in range(20):
            if code == 0:
                break
            run = run_in(folder)
            again = chance.uniform(0, seconds) if chance.random() < 0.3 else None
            if run is None:
                # It ended before it had a folder: there is nothing to go on with.
                code, errors = end(program, arguments, folder, again)
                continue
            resume = ["train", "--quiet", "--resume", str(run)]
            code, errors = end(program, resume, folder, again)
            counts["continuations"] += 1
            if code == 1 and ("no checkpoint" in errors or "no such run" in errors):
                # The documented end of a run that had written none: it starts anew.
                shutil.rmtree(folder / "runs")
                counts["without a checkpoint"] += 1
                code, errors = end(program, arguments, folder, again)
            assert code in (0, -signal.SIGKILL), f"{fault}, going on: {code}: {errors}"
        assert code == 0, f"{fault}: never came to its end"
        run = run_in(folder)
        assert tensors(run) == weights, f"{fault}: other weights"
        assert told(run) == record, f"{fault}: another record"


def faults(options):
    listing = subprocess.run([options.program, "list", "schemes"], capture_output=True, text=True, check=True)
    schemes = [line.split()[0] for line in listing.stdout.splitlines() if line.strip()]
    undisturbed, counts, failed = Undisturbed(options.program), Counter(), []
    for seed in range(options.seed, options.seed + options.count):
        try:
            one(options.program, undisturbed, seed, schemes, counts)
        except AssertionError as error:
            failed.append(seed)
            print(f"seed {seed}: {error}", flush=True)
    print(f"{options.count} runs over {len(schemes)} schemes, {len(failed)} wrong: {dict(counts)}")
    return 1 if failed else 0


def kills(options):
    chance = random.Random(options.seed)
    arguments = ["train", "--quiet", *options.run]
    with tempfile.TemporaryDirectory() as undisturbed, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        code, errors = end(options.program, arguments, Path(undisturbed), limit=None)
        assert code == 0, errors
        seconds = time.monotonic() - began
        print(f"undisturbed: {seconds:.0f} s", flush=True)
        folder, killed, lost = Path(folder), 0, 0
        while True:
            run = run_in(folder)
            going_on = run is not None and any((run / "checkpoints").glob("step-*"))
            if run is not None and not going_on:
                shutil.rmtree(folder / "runs")
                lost += 1
            now = ["train", "--quiet", "--resume", str(run)] if going_on else arguments
            # So that the kills spread over the run; the last stretch is left alone. Five seconds
            # are for what a start takes.
            longest = 2 * seconds / options.count + 5
            moment = chance.uniform(0, longest) if killed < options.count else None
            code, errors = end(options.program, now, folder, moment, limit=None)
            if code == 0:
                break
            assert code == -signal.SIGKILL, errors
            killed += 1
        run = run_in(folder)
        same = tensors(run) == tensors(run_in(Path(undisturbed)))
        curves = told(run) == told(run_in(Path(undisturbed)))
        print(f"killed {killed} times ({lost} before the first checkpoint): weights "
              f"{'equal' if same else 'DIFFER'}, record {'equal' if curves else 'DIFFERS'}")
        return 0 if same and curves else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["faults", "kills"])
    parser.add_argument("--count", type=int, default=200, help="runs, or kills")
    parser.add_argument("--seed", type=int, default=1)
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("--program", default=str(root / "target/release/gradwire"))
    arguments = sys.argv[1:]
    parted = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:parted])
    # What is killed: a recipe and its changes.
    options.run = arguments[parted + 1 :]
    options.program = str(Path(options.program).resolve())
    return faults(options) if options.mode == "faults" else kills(options)


if __name__ == "__main__":
    sys.exit(main())
