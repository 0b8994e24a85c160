#!/usr/bin/env python3
"""Soak: random faults, kills at random moments, and random commands, over runs whose record must stay true.

    python3 tests/soak.py faults --count 200 --seed 1
    python3 tests/soak.py faults --mpi --count 200 --seed 1
    python3 tests/soak.py kills --count 50 --seed 1 -- cifar10-topk --dir data --set train.max_steps=1500
    python3 tests/soak.py commands --seconds 60 --seed 1

`faults` takes short runs of every scheme, and of onebit-adam, in turn, in each of the WAYS of an exchange, and does to
each what its seed says. The first seeds, as many as there are schemes and ways together, kill each of these runs (SIGKILL)
in a step that the seed says; all others draw: injected faults, or SIGKILL at a random moment. Continuations may be killed,
too. Every run must end as the table of docs/faults.md says, and, gone on with, in the weights and the record of an
undisturbed run, bit for bit. With `--mpi` each worker is a process of `mpirun` (a program built with `--features mpi`), and
SIGKILL comes from outside, for the process of a random rank or for `mpirun` itself: all others must end by themselves,
and the undisturbed run is one of threads. `kills` starts one run, given after `--`, and kills it at so many random moments, going on
each time. `commands` tries commands over finished, stopped, failed, foreign and damaged runs: none may
leave a record that says what did not happen, change a run that it was not given or one that had finished
when it fails itself, panic, hang, or leave half a file. A failure is told with its seed and its commands:
`--seed N --count 1` repeats it (but for the moments of kills). Only Python's own library is needed; the program is built before with
`cargo build --release`, or named by --program.
"""

import argparse
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

TIMES = {"time", "phases", "samples_per_second"}
STEPS = 24
OPTIMIZER = "optimizer={kind=\"sgd\",learning_rate=0.5,momentum=0.0}"
ONEBIT_ADAM = "optimizer={kind=\"onebit-adam\",learning_rate=0.01,warmup_steps=5}"
# A run of half a second: a linear text model, checkpoints in the middle of epochs.
SHORT = [
    "train", "--quiet",
    "--set", "dataset=synthetic-ag-news", "--set", "samples={train=480,test=60}",
    "--set", "model=fasttext",
    "--set", "name=soak",
    "--set", f"train.max_steps={STEPS}",
    "--set", "train.batch=16",
    "--set", "record.every=1",
    "--set", OPTIMIZER,
    "--set", "checkpoint.every_steps=3",
    "--set", "exchange.timeout=1.5",
]
# When ranks exchange, and how: rounds end where checkpoints are due or do not, or an exchange is under way there.
WAYS = {
    "every step": [],
    "H = 1": ["outer={}"],
    "H = 5": ["local.steps=5"],
    "fragments": ["local.steps=6", "outer={fragments=2,delay=2}", "policy.bucketing=parameter"],
    "two levels": ["local.steps=5", "exchange.topology={kind=\"two-level\",group=2}"],
    "shards": ["local.steps=5", "exchange.topology=sharded", "policy.bucketing=parameter", "exchange.downlink=compressed"],
    "averaged": ["local.steps=5", "local.after=7", "local.state=averaged", "optimizer.momentum=0.5", "policy.momentum_correction=0"],
    "fading": ["local.steps=5", "policy.feedback={decay=0.9}"],
    "running means": ["optimizer.momentum=0", "policy.momentum_correction=0", "policy.feedback={efsgdm=0.25}"],
}
# What the last settings of a way are left out for: schemes that have no residual, or none of that kind.
OPTIONAL = {"averaged": 1, "fading": 1, "running means": 2}
LIMIT = 120  # seconds: no short run may hang
# Processes share the cores: what counts as silence must be longer than starting them takes.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]
PATIENT = "exchange.timeout=8"
START = 1.5
# What comes back within one process comes back from none of several.
DIRECTIONS = {"uplink_bytes", "downlink_bytes", "local_bytes"}


def tensors(run):
    """The tensors of a run's last model: what the file's header says of each, and its bytes."""
    data = (run / "last" / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return header, data[8 + length :]


def told(run, mpi=False):
    """What the record says of steps and epochs, but for times, and for directions if it may be of several processes."""
    left_out = TIMES | DIRECTIONS if mpi else TIMES
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        {key: value for key, value in event.items()
         if key not in left_out and not key.endswith("seconds")}
        for event in events
        if event["event"] in ("step", "epoch")
    ]


def of_process(process, file, otherwise):
    """What the system tells of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{process}/{file}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return otherwise


def launched(launcher):
    """The processes that a process has started, each with the rank that `mpirun` has given it, if it has yet."""
    found = {}
    for process in map(int, of_process(launcher, f"task/{launcher}/children", "").split()):
        entries = of_process(process, "environ", "").split("\0")
        ranks = [int(entry.split("=")[1]) for entry in entries if entry.startswith("OMPI_COMM_WORLD_RANK=")]
        found[process] = ranks[0] if ranks else None
    return found


def is_running(process):
    return of_process(process, "stat", ") Z").rsplit(")", 1)[1].split()[0] != "Z"


def kill(process, rank=None):
    """SIGKILL for a process, or for that of a rank that it has launched; what it had launched, and which was killed."""
    process.send_signal(signal.SIGSTOP)  # So that it launches no more while they are counted.
    ranks = launched(process.pid)
    victims = [one for one, its in ranks.items() if rank is not None and its == rank]
    os.kill(victims[0] if victims else process.pid, signal.SIGKILL)
    process.send_signal(signal.SIGCONT)
    return ranks, "a rank killed" if victims else "mpirun killed"


def end(program, arguments, folder, kill_after=None, limit=LIMIT, cwd=None, rank=None, counts=None):
    """Runs to the end, or kills (the process of a rank) after so many steps and then so many seconds; exit code
    (negative: the signal) and errors. No process is left then."""
    with open(folder / "stderr", "w+b") as errors:
        process = subprocess.Popen(
            [*program, *arguments], cwd=cwd or folder, stdout=subprocess.DEVNULL, stderr=errors
        )
        ranks, killed = {}, False

        def reaches(what, seconds):
            """Whether that comes within so many seconds; for ever without a number."""
            began = time.monotonic()
            while not what():
                if seconds is not None and time.monotonic() - began > seconds:
                    return False
                time.sleep(0.005)
            return True

        def has_ended():
            return process.poll() is not None

        steps, seconds = kill_after or (0, limit)
        hangs = not reaches(lambda: has_ended() or has_taken(folder, steps), limit)
        if not reaches(has_ended, seconds):
            hangs, killed = hangs or kill_after is None, True
            ranks, what = kill(process, rank)
            if counts is not None:
                counts[what] += 1
        hangs |= not reaches(lambda: has_ended() and not any(map(is_running, ranks)), LIMIT)
        if hangs:
            [os.kill(one, signal.SIGKILL) for one in ranks if is_running(one)]
            process.kill()
            process.wait()
            raise AssertionError(f"it hangs: {arguments}")
        errors.seek(0)
        # A launcher tells the death of a rank by an exit code of its own.
        by_signal = process.returncode == 128 + signal.SIGKILL or killed and process.returncode != 0
        code = -signal.SIGKILL if by_signal else process.returncode
        return code, errors.read().decode(errors="replace")


def has_taken(folder, steps):
    """Whether the run in a folder has recorded so many steps."""
    metrics = steps and next((folder / "runs" / "out").glob("*/*Z*/metrics.jsonl"), None)
    return steps == 0 or metrics is not None and metrics.read_text().count("\"event\":\"step\"") >= steps


def run_in(folder):
    # What was cut off before its first checkpoint was set aside, and began again in its place.
    runs = [run for run in (folder / "runs" / "out").glob("*/*Z*") if "-cut-off-" not in run.name]
    assert len(runs) <= 1, runs
    return runs[0] if runs else None


class Undisturbed:
    """The ends of runs of threads that nothing happened to."""

    def __init__(self, program, mpi):
        self.program, self.mpi, self.known = program, mpi, {}

    def of(self, arguments):
        key = tuple(arguments)
        if key not in self.known:
            with tempfile.TemporaryDirectory() as folder:
                folder, began = Path(folder), time.monotonic()
                code, errors = end(self.program, arguments, folder)
                assert code == 0, errors
                run = run_in(folder)
                self.known[key] = tensors(run), told(run, self.mpi), time.monotonic() - began
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


def one(program, undisturbed, seed, schemes, counts, mpi):
    chance, place = random.Random(seed), seed - 1
    scheme, optimizer = schemes[place % len(schemes)]
    way, rounds = list(WAYS.items())[place // len(schemes) % len(WAYS)]
    workers = chance.choice([2, 4] if way == "two levels" else [2, 3, 4])
    arguments = SHORT + ["--scheme", scheme, "--workers", str(workers)]
    if optimizer:
        arguments[arguments.index(OPTIMIZER)] = optimizer
        rounds = [one for one in rounds if not one.startswith(("local", "outer", "optimizer"))]
    arguments += [word for setting in rounds for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        left_out = OPTIONAL.get(way, 0)
        if left_out and end(program, [*arguments, "--dry-run"], Path(folder))[0] == 2:
            arguments, way = arguments[: -2 * left_out], f"{way}, as it is by default"
        if way == "shards" and end(program, [*arguments, "--dry-run"], Path(folder))[0] == 2:
            # The scheme cannot compress a mean; processes cannot exchange exact means of shards.
            arguments, way = (arguments[:-6], "no shards") if mpi else (arguments[:-2], "shards, exact means")
    counts[way] += 1
    recovers = not mpi and chance.random() < 0.3
    if recovers:
        arguments += ["--set", "faults.on_worker_loss=restart"]
    if mpi:
        arguments += ["--set", PATIENT]
    weights, record, seconds = undisturbed.of(arguments)
    # The undisturbed run above was one of threads.
    program = [*MPIRUN, str(workers), *program] if mpi else program
    seconds += START if mpi else 0

    def launch(arguments, kill_after):
        rank = chance.randrange(workers) if mpi and kill_after is not None and chance.random() < 0.7 else None
        return end(program, arguments, folder, kill_after, rank=rank, counts=counts if mpi else None)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        fault, codes, part = some_fault(chance, workers)
        if rounds and fault.startswith("corrupt"):
            # Most steps of a round send nothing that could be damaged; what arrives late is damaged in a later step.
            late = f"for the gradient of step {fault.rsplit('=', 1)[1]}: "
            codes, part = {0, 1}, late if way == "fragments" else part
        kill_after = None
        if place < len(schemes) * len(WAYS):
            step = chance.randrange(8, STEPS + 1)
            # Time for a checkpoint to be written beside the training.
            waits = [f"stall:worker={worker},step={step - 1},for=300ms" for worker in range(workers)]
            fault, codes, part = "; ".join([f"kill:step={step}", *waits]), {-signal.SIGKILL}, ""
            if mpi:
                fault, kill_after = "; ".join(waits), (step - 2, chance.uniform(0, 0.3))
        elif chance.random() < 0.35:
            fault, kill_after = "SIGKILL", (0, chance.uniform(0, seconds))
        injected = ["--inject", fault] if fault != "SIGKILL" else []
        code, errors = launch(arguments + injected, kill_after)
        if kill_after is not None:
            fault = "SIGKILL"
            assert code in (0, -signal.SIGKILL), f"{code}: {errors}"
        else:
            last = errors.strip().splitlines()[-1] if errors.strip() else ""
            if mpi:
                # `mpirun` has the last words, and workers are named with their processes.
                last = re.sub(r" \(process \d+ on [^)]*\)", "", errors)
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
            again = (0, chance.uniform(0, seconds)) if chance.random() < 0.3 else None
            if run is None:
                # It ended before it had a folder: there is nothing to go on with.
                code, errors = launch(arguments, again)
                continue
            resume = ["train", "--quiet", "--resume", str(run)]
            code, errors = launch(resume, again)
            counts["continuations"] += 1
            if (code == 1 or mpi and code == 2) and ("no checkpoint" in errors or "no such run" in errors):
                # The documented end of a run that had written none: it starts anew.
                shutil.rmtree(folder / "runs")
                counts["without a checkpoint"] += 1
                code, errors = launch(arguments, again)
            assert code in (0, -signal.SIGKILL), f"{fault}, going on: {code}: {errors}"
        assert code == 0, f"{fault}: never came to its end"
        run = run_in(folder)
        assert tensors(run) == weights, f"{fault}: other weights"
        assert told(run, mpi) == record, f"{fault}: another record"


def faults(options):
    listing = subprocess.run([*options.program, "list", "schemes"], capture_output=True, text=True, check=True)
    schemes = [(line.split()[0], None) for line in listing.stdout.splitlines() if line.strip()]
    # An optimizer that owns its exchange, over two schemes.
    schemes += [("onebit", ONEBIT_ADAM), ("topk", ONEBIT_ADAM)]
    undisturbed, counts, failed = Undisturbed(options.program, options.mpi), Counter(), []
    scratch = tempfile.TemporaryDirectory()
    # Where what killed processes leave behind lies. Containers often forbid to read another process's memory.
    os.environ |= {"TMPDIR": scratch.name, "OMPI_MCA_btl_vader_backing_directory": scratch.name,
                   "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    for seed in range(options.seed, options.seed + options.count):
        try:
            one(options.program, undisturbed, seed, schemes, counts, options.mpi)
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
            moment = (0, chance.uniform(0, longest)) if killed < options.count else None
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


# Commands at random, over runs of every kind.

# No rank stands still in these, but a slow disk makes one wait.
LITTLE = SHORT[1:] + ["--scheme", "topk", "--workers", "2", "--set", "exchange.timeout=30"]
CHANGES = [
    ["--seed", "9"], ["--scheme", "dense"], ["--workers", "3"], ["--lr", "0.1"],
    ["--set", "train.max_steps=30"], ["--set", "train.max_steps=10"], ["--set", "train.batch=8"],
    ["--set", "optimizer.kind=adamw"], ["--set", "checkpoint.every_steps=5"],
    ["--set", "record.histograms_every=2"], ["--set", "checkpoint.keep_last=1"],
    ["--set", "exchange.topology=server"], ["--set", "samples.train=400"], ["--set", "dataset.length=24"],
    ["--set", "model=textcnn"], ["--set", "schedule.kind=cosine"], ["--set", "policy.warmup_steps=2"],
    ["--name", "renamed"], ["--tag", "soaked"], ["--set", "no.such=key"], ["--scheme", "none"],
]
# Tables and keys that no weight depends on: a record may say them anew without training anew.
FREE = {"name", "threads", "record", "checkpoint", "faults", "network"}


def content(path):
    """Every file, link and folder below a path, with its bytes."""
    found = {}
    for entry in sorted(path.rglob("*")):
        name = str(entry.relative_to(path))
        if entry.is_symlink():
            found[name] = "link"
        elif entry.is_dir():
            found[name] = "folder"
        elif entry.name != ".lock":
            found[name] = entry.read_bytes()
    return found


def decisive(text):
    """What a recipe says of weights."""
    recipe = tomllib.loads(text)
    recipe = {key: value for key, value in recipe.items() if key not in FREE}
    recipe["exchange"] = {key: recipe.get("exchange", {}).get(key) for key in ("topology", "downlink")}
    recipe["dataset"].pop("dir", None)
    recipe["train"].pop("evaluate_every", None)
    # A scheme's default policy may or may not be written out.
    recipe.pop("policy", None)
    return recipe


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def framed(path):
    """Whether an event file is whole records from beginning to end."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        if at + 12 > len(data):
            return False
        (length,) = struct.unpack_from("<Q", data, at)
        at += 16 + length
    return at == len(data)


def check_record(run):
    """That the record of a run which no one has damaged says what happened."""
    metrics = lines_of(run / "metrics.jsonl")
    recipe = (run / "recipe.toml").read_text()
    for row in lines_of(run / "network.jsonl") if (run / "network.jsonl").exists() else []:
        assert isinstance(row, dict), row
    for file in run.glob("events.out.tfevents.*"):
        assert framed(file), f"{file.name} is torn"
    steps = [event["step"] for event in metrics if event["event"] == "step"]
    assert steps == list(range(1, len(steps) + 1)), f"steps {steps}"
    ends = [event for event in metrics if event["event"] == "finished"]
    assert len(ends) <= 1 and (not ends or metrics[-1] == ends[0]), "an end that is none"
    if not ends:
        return
    summary = ends[0]["summary"]
    assert summary["step"] == len(steps), f"finished at {summary['step']} after {len(steps)} steps"
    assert summary["steps"] == len(steps), f"{summary['steps']} steps of {len(steps)}"
    model = run / "last" / "model.safetensors"
    if model.exists():
        data = model.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        about = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["gradwire"])
        if about["step"] == len(steps):
            trained = decisive(about["recipe"])
            said = decisive(recipe)
            differing = {key for key in trained | said if trained.get(key) != said.get(key)}
            assert not differing, f"recipe.toml says other {sorted(differing)} than the model was trained with"


class Commands:
    """Commands over runs, and what must hold after each."""

    # Runs that are begun for all tries: how, and what becomes of them.
    KINDS = {
        "finished": [],
        "failed": ["--inject", "nan:worker=1,step=13"],
        "killed": ["--inject", "kill:step=17"],
        "fresh": ["--inject", "kill:step=2"],
    }

    def __init__(self, program, prepared):
        self.program, self.prepared = program, prepared
        for name, more in self.KINDS.items():
            code, errors = end(program, ["train", *LITTLE, "--name", name, *more], prepared)
            assert code in (0, 1, -signal.SIGKILL), errors
        foreign = prepared / "runs" / "out" / "mine"
        foreign.mkdir()
        (foreign / "recipe.toml").write_text("name = \"mine\"\n")
        (foreign / "notes.md").write_text("not a run\n")
        (prepared / "runs" / "out" / "link").symlink_to(prepared / "elsewhere")
        (prepared / "elsewhere").mkdir()
        (prepared / "elsewhere" / "recipe.toml").write_text("seed = 1\n")
        (prepared / "elsewhere" / "metrics.jsonl").write_text("")

    def runs(self):
        out = self.folder / "runs" / "out"
        found = [file.parent for file in out.rglob("recipe.toml") if not file.is_symlink()]
        return sorted(run for run in found if "link" not in run.parts and run.name != "mine")

    def word(self, chance):
        """Something that stands where a run can, and the run that it means, if one."""
        runs = self.runs()
        if not runs or chance.random() < 0.12:
            return chance.choice(["runs/out/mine", "runs/out/link", "none", "runs/out", "recipe.toml", "/dev/null"]), None
        run = chance.choice(runs)
        kind = chance.random()
        if kind < 0.1:
            return "last", None
        if kind < 0.25:
            return run.name, None
        places = sorted((run / "checkpoints").glob("step-*"))
        if kind < 0.35 and places:
            return str(chance.choice(places).relative_to(self.folder)), run
        return str(run.relative_to(self.folder)), run

    def command(self, chance):
        """A command, and whether it only reads."""
        some = [self.word(chance)[0] for _ in range(chance.randrange(1, 4))]
        one = some[0]
        changes = [word for change in chance.sample(CHANGES, chance.choice([0, 0, 1, 1, 2])) for word in change]
        force = ["--force"] if chance.random() < 0.5 else []
        resume = ["train", "--quiet", "--resume", one, *changes, *force]
        reading = [
            ["eval", one], ["eval", one, "--json"], ["compare", *some], ["compare", "--json", *some],
            ["runs"], ["runs", "--json", "--state", "finished,damaged"],
            ["report", *some, "--out", "report"], ["network", "replay", one, "--out", "replay"],
            [*resume, "--dry-run"], ["list"],
            ["sweep", "first-look", *SHORT[1:], "--over", "scheme=dense,topk", "--dry-run"],
            ["reproduce", "--list"], ["reproduce", one], ["advise", one],
            ["bench", "codecs", "--d", "1000", "--scheme", "topk"],
            ["bench", "codecs", "--gradient", f"{one}/metrics.jsonl"],
        ]
        writing = [
            resume, resume, resume, resume,
            ["train", *LITTLE, *changes],
            [*resume, "--inject", f"disk-full:any={chance.randrange(1, 120)}"],
            [*resume, "--inject", f"disk-full:write={chance.randrange(1, 60)}"],
            [*resume, "--inject", f"panic:worker=0,step={chance.randrange(1, STEPS)}"],
        ]
        reads = chance.random() < 0.5
        return chance.choice(reading if reads else writing), reads

    def damage(self, chance):
        """Damages a file of a run; what was done, in words."""
        files = [file for run in self.runs() for file in run.rglob("*") if file.is_file() and file.name != ".lock"]
        if not files:
            return "nothing to damage"
        file = chance.choice(files)
        self.damaged |= {run for run in self.runs() if run in file.parents}
        what = chance.choice(["truncate", "overwrite", "delete", "empty", "folder", "append"])
        data = file.read_bytes()
        if what == "truncate":
            file.write_bytes(data[: chance.randrange(len(data) + 1)])
        elif what == "overwrite" and data:
            changed = bytearray(data)
            for _ in range(chance.choice([1, 1, 8, 200])):
                changed[chance.randrange(len(data))] = chance.randrange(256)
            file.write_bytes(changed)
        elif what == "append":
            file.write_bytes(data + chance.choice([b"\n", b"{}\n", b"\xff\x00", b"{\"time\":1"]))
        else:
            file.unlink()
            if what == "empty":
                file.write_bytes(b"")
            elif what == "folder":
                file.mkdir()
        return f"{what} {file.relative_to(self.folder)}"

    def execute(self, chance, arguments, reads):
        """Runs a command, perhaps kills it, or lets no file grow long; how it ended."""
        moment = chance.uniform(0, 0.8) if not reads and chance.random() < 0.35 else None
        number = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        limit = chance.randrange(2000, 200_000) if moment is None and chance.random() < 0.08 else None

        def limited():
            # Errors instead of a signal.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        said = " ".join(["gradwire", *map(shlex.quote, arguments)])
        said += f"   # {number.name} after {moment:.2f} s" if moment is not None else ""
        said += f"   # files of at most {limit} bytes" if limit is not None else ""
        self.told.append(said)
        with open(self.log, "w+b") as log:
            process = subprocess.Popen(
                [*self.program, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=limited if limit is not None else None,
            )
            killed = False
            try:
                process.wait(timeout=LIMIT if moment is None else moment)
            except subprocess.TimeoutExpired:
                killed = moment is not None
                process.send_signal(number if killed else signal.SIGKILL)
                try:
                    process.wait(timeout=LIMIT)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    raise AssertionError("it does not end when it is asked to") from None
                assert killed, "it hangs"
            log.seek(0)
            output = log.read().decode(errors="replace")
        code = process.returncode
        self.told.append(f"   # {code}: {output.strip().splitlines()[-1][:200] if output.strip() else ''}")
        allowed = {0, 1, 2}
        if killed:
            # A signal that comes before anything listens to it has its default effect.
            allowed |= {130, 143} if number != signal.SIGKILL else set()
            allowed |= {-number}
        assert code in allowed, f"exit code {code}: {output[-2000:]}"
        injected = any("panic:" in word for word in arguments)
        assert injected or "panicked at" not in output, output[-2000:]
        return code, killed and code < 0, limit is not None, output

    def together(self, chance):
        """Two processes over one run: the second must leave to the first what that is writing."""
        runs = [run for run in self.runs() if run not in self.damaged]
        if not runs:
            return
        run = chance.choice(runs)
        name = str(run.relative_to(self.folder))
        first = ["train", "--quiet", "--resume", name]
        second = chance.choice([first, ["eval", name], ["compare", name], ["runs"]])
        wait = chance.uniform(0, 0.4)
        before = content(run)
        self.told.append(f"gradwire {' '.join(first)} & sleep {wait:.2f}; gradwire {' '.join(second)}")
        with open(self.folder.parent / "first", "w+b") as log:
            process = subprocess.Popen(
                [*self.program, *first], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            time.sleep(wait)
            code, errors = end(self.program, second, self.folder.parent, cwd=self.folder)
            assert process.wait(timeout=LIMIT) in (0, 1, 2), "the first was disturbed"
            log.seek(0)
            said = log.read().decode(errors="replace")
        self.told.append(f"   # {process.returncode}: {said.strip()[-200:]}\n   # {code}: {errors.strip()[-200:]}")
        assert code in (0, 1, 2) and "panicked at" not in errors + said, errors + said
        # A run that failed before its first checkpoint by another recipe is not gone on with unless that is forced.
        refused = process.returncode == 2 and second is not first
        assert not refused or content(run) == before, "it was refused, and changed the run"
        if process.returncode == 0:
            assert lines_of(run / "metrics.jsonl")[-1]["event"] == "finished", "it ended without an end"
            self.torn.discard(run)
            check_record(run)
        else:
            self.torn.add(run)
        for other in self.runs():
            if other.name.startswith(f"{run.name}-cut-off-"):
                self.torn.add(other)
        self.finished.pop(run, None)

    def step(self, chance):
        if chance.random() < 0.06:
            self.together(chance)
            return
        if chance.random() < self.damages:
            self.told.append(f"# {self.damage(chance)}")
            return
        before = {run: content(run) for run in self.runs()}
        elsewhere = content(self.folder / "elsewhere"), content(self.folder / "runs" / "out" / "mine")
        arguments, reads = self.command(chance)
        code, killed, limited, output = self.execute(chance, arguments, reads)
        after = {run: content(run) for run in self.runs()}
        assert elsewhere == (content(self.folder / "elsewhere"), content(self.folder / "runs" / "out" / "mine")), \
            "what is no run was changed"
        full = limited or any("disk-full" in word for word in arguments)
        # Those that were set aside are seen before what took their place.
        changed = {run for run in before | after if before.get(run) != after.get(run)}
        changed = sorted(changed, key=lambda run: (run in before, run))
        if reads or code == 2:
            assert not changed, f"it changed {[str(run) for run in changed]}"
        for run in changed:
            # A run that is not in `before` was set aside as it was, or begun.
            source = run.with_name(run.name.rpartition("-cut-off-")[0] or run.name)
            partial = {name for name in after.get(run, {}) if name.endswith(".partial")}
            if run not in before:
                partial -= before.get(source, {}).keys()
            elif code == 1:
                # It failed before its next checkpoint, which would have cleared them away.
                partial -= before[run].keys()
            assert killed or run in self.damaged or not partial, f"{run} keeps {partial}"
            if run not in before:
                for of in (self.torn, self.damaged):
                    of |= {run} if source in of else set()
                self.torn |= {run} if killed or full or code not in (0, 130, 143) else set()
                continue
            if run not in after:
                self.torn.discard(run)
                self.damaged.discard(run)
                continue
            # One that was taken back to an earlier step, and then lost a worker there, is no finished one.
            back = any("checkpoints/" in word for word in arguments) and any("panic:" in word for word in arguments)
            whole = self.finished.get(run) == before[run] and not back
            assert not (whole and code == 1 and not full), "it failed, and changed a run that had finished"
            if killed or full:
                self.torn.add(run)
            elif run not in self.damaged and code == 0:
                self.torn.discard(run)
            elif code == 0 and arguments[0] == "train":
                # What cannot be read was cut out.
                assert lines_of(run / "metrics.jsonl")[-1]["event"] == "finished", "it ended without an end"
                for file in run.glob("events.out.tfevents.*"):
                    assert framed(file), f"{file.name} is torn"
        for run in sorted(after):
            if run in self.damaged or run in self.torn:
                continue
            check_record(run)
            lines = lines_of(run / "metrics.jsonl")
            steps = [line["steps"] for line in lines if line["event"] == "started"][-1]
            # One that was stopped by a signal has an end as well, and goes on.
            if lines[-1]["event"] == "finished" and lines[-1]["summary"]["step"] >= steps:
                self.finished[run] = after[run]

    def one(self, seed, folder):
        """A try: a copy of all runs, and commands over it."""
        chance = random.Random(seed)
        self.folder, self.told = folder / "work", []
        self.log = folder / "output"
        shutil.copytree(self.prepared, self.folder, symlinks=True)
        link = self.folder / "runs" / "out" / "link"
        link.unlink()
        link.symlink_to(self.folder / "elsewhere")
        self.damaged, self.finished = set(), {}
        self.torn = {run for run in self.runs() if "finished" not in run.name and "failed" not in run.name}
        self.damages = chance.choice([0, 0, 0.3])
        for _ in range(chance.randrange(4, 9)):
            self.step(chance)
        return len(self.told)


def commands(options):
    began, tries, told, failed = time.monotonic(), 0, 0, []
    with tempfile.TemporaryDirectory() as prepared:
        all_commands = Commands(options.program, Path(prepared))
        while tries < options.count if options.seconds is None else time.monotonic() - began < options.seconds:
            seed = options.seed + tries
            tries += 1
            with tempfile.TemporaryDirectory() as folder:
                try:
                    told += all_commands.one(seed, Path(folder))
                except (AssertionError, ValueError, OSError, KeyError, IndexError) as error:
                    failed.append(seed)
                    print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
                    print("\n".join(f"    {line}" for line in all_commands.told), flush=True)
    print(f"{tries} tries, {told} commands and damages, {len(failed)} tries wrong: {failed}")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["faults", "kills", "commands"])
    parser.add_argument("--count", type=int, default=200, help="runs, kills, or tries")
    parser.add_argument("--seconds", type=float, help="commands: go on trying for so long, in place of --count")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mpi", action="store_true", help="faults: each worker is a process of mpirun")
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("--program", default=str(root / "target/release/gradwire"))
    arguments = sys.argv[1:]
    parted = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:parted])
    # What is killed: a recipe and its changes.
    options.run = arguments[parted + 1 :]
    options.program = [str(Path(options.program).resolve())]
    return {"faults": faults, "kills": kills, "commands": commands}[options.mode](options)


if __name__ == "__main__":
    sys.exit(main())
