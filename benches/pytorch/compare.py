#!/usr/bin/env python3
"""Training speed and memory of gradwire against PyTorch (DDP over gloo), interleaved in one run.

usage: benches/pytorch/compare.py [--models resnet20,resnet18,vgg16,textcnn,textcnn+nonzero,…]
                                  [--seats 2x1,1x2] [--batch 64] [--runs 5] [--steps N]
                                  [--settings eager,compile,bf16,compile+bf16] [--precision f32,bf16]
                                  [--device cuda:0 [--tf32]]

Builds gradwire, makes a virtual environment for PyTorch under target/ (the first time), then for
every model and every seating (workers x threads of each) runs ours, theirs, ours, theirs, …, each
in its own process. Prints every pair as it comes and a Markdown table of medians at the end.

Both sides take one optimizer step (SGD, momentum 0.9; AdamW for gpt) per exchange of the full fp32 gradient, on
random samples of the same shapes, words being as frequent as words are (Zipf). With `+nonzero` behind
a model ours leaves blocks of zeros out of its messages, which loses nothing. PyTorch's ResNets, VGG and airbench
run channels-last, which the trials of time_to_accuracy.py choose over its other layout. Of PyTorch's settings (eager; torch.compile; bf16 autocast; both), each in
as many ranks as ours has workers and in one process with all threads, the fastest in one run each is the one that ours
is compared with, and the table says which it was. --precision is ours, f32 or bf16, or both in turn.
A sample of gpt is a block of 64 characters: `--models gpt --batch 6` is nanoGPT's recipe for a laptop on two workers.
Memory is the largest resident set of gradwire's one process, and the sum of those of PyTorch's
ranks (the process that starts them is left out), with what they held before there was a model, its
libraries, in brackets; the largest of all runs counts.
With --device cuda:0 the workers of both sides share a GPU; build gradwire for it first and give it as --binary.
Quiet the machine first: what else runs is in the figures.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENV = ROOT / "target" / "pytorch"
STEPS = {"resnet18": 8, "vgg16": 8}
"""Steps measured of each run, where a step takes long; 20 elsewhere."""


def install(a):
    """Makes what is not given: the virtual environment, the program."""
    python = a.python or ENV / "bin" / "python"
    if not python.exists():
        venv.create(ENV, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "numpy"], check=True)
    if a.binary is None:
        build = ["cargo", "build", "--release", "-q", "--target-dir", ROOT / "target"]
        subprocess.run(build, cwd=ROOT, check=True)
        a.binary = ROOT / "target/release/gradwire"
    return python


def measure(command):
    command = list(map(str, command))
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(lines[-1])


FASTEST = {}
"""PyTorch's fastest setting and number of ranks, by model and seating."""


def compare(python, name, precision, workers, threads, a):
    """The row of the table: medians of both sides, their ratio, memory."""
    model, _, scheme = name.partition("+")
    steps = a.steps or STEPS.get(model, 20)
    optimizer = "adamw" if model == "gpt" else "sgd"
    ours = [a.binary, "bench", "train", "--json", "--model", model, "--workers", workers, "--threads", threads,
            "--batch", a.batch, "--steps", steps, "--set", f"scheme={scheme or 'dense'}", "--set", f"device={a.device}",
            *(["--set", f"precision={precision}"] if precision != "f32" else []),
            *(["--set", "optimizer=adamw"] if model == "gpt" else []), *(["--set", "tf32=true"] if a.tf32 else [])]

    def theirs(setting, world):
        flags = [f"--{flag}" for flag in setting.split("+") if flag != "eager"]
        command = [python, HERE / "torch_ddp.py", "--model", model, "--world", world, "--threads",
                   workers * threads // world, "--batch", a.batch * workers // world, "--steps", steps,
                   "--optimizer", optimizer, "--device", a.device, *flags, *(["--tf32"] if a.tf32 else [])]
        return command + (["--channels-last"] if model.startswith(("resnet", "vgg", "airbench")) else [])

    ways = [(setting, world) for setting in a.settings.split(",") for world in sorted({1, workers, workers * threads})]
    if (model, workers, threads) not in FASTEST:
        speed = {way: measure(theirs(*way))["samples_per_s"] for way in ways} if len(ways) > 1 else {ways[0]: 0}
        told = ", ".join(f"{setting} x {world} {found:.1f}" for (setting, world), found in speed.items())
        print(f"{name} {workers} x {threads}: PyTorch's {told}", file=sys.stderr, flush=True)
        FASTEST[model, workers, threads] = max(speed, key=speed.get)
    way = FASTEST[model, workers, threads]
    pairs = []
    for _ in range(a.runs):
        pair = measure(ours), measure(theirs(*way))
        pairs.append(pair)
        o, t = (side["samples_per_s"] for side in pair)
        print(f"{name} {workers} x {threads} {precision}: {o:.1f} against {t:.1f} samples/s, {o / t:.2f}", file=sys.stderr, flush=True)
    speeds = [[side["samples_per_s"] for side in pair] for pair in pairs]
    o, t = map(statistics.median, zip(*speeds))
    ratios = [o / t for o, t in speeds]
    memory = [max((side["memory_mb"] or float("nan")) for side in sides) for sides in zip(*pairs)]
    idle = max(pair[1]["idle_memory_mb"] or float("nan") for pair in pairs)
    share = statistics.median(pair[0]["share_of_peak"] or 0 for pair in pairs)
    return (f"| {name} | {precision} | {workers} × {threads} | {way[0]}, {way[1]} | {o:,.1f} | {t:,.1f} | **{o / t:.2f}** "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) "
            f"| {100 * share:.0f} % | {memory[0]:,.0f} | {memory[1]:,.0f} ({idle:,.0f}) |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", default="resnet20,resnet18,vgg16,textcnn,textcnn+nonzero,fasttext,"
                   "fasttext+nonzero,bilstm,bilstm+nonzero,transformer,transformer+nonzero")
    p.add_argument("--seats", default="2x1,1x2", help="workers x threads of each, separated by commas")
    p.add_argument("--batch", type=int, default=64, help="samples per worker and step")
    p.add_argument("--runs", type=int, default=5, help="of each side; the median counts")
    p.add_argument("--steps", type=int, help="measured in each run")
    p.add_argument("--settings", default="eager,compile,bf16,compile+bf16", help="PyTorch's, of which the fastest counts")
    p.add_argument("--precision", default="f32", help="ours: f32, bf16, or f32,bf16")
    p.add_argument("--device", default="cpu", help="cpu, or cuda:0 for a GPU that all workers share")
    p.add_argument("--tf32", action="store_true", help="both sides round the factors of matrix products to TF32")
    p.add_argument("--binary", type=pathlib.Path, help="gradwire, if it is built already")
    p.add_argument("--python", type=pathlib.Path, help="a Python with torch and numpy, if there is one already")
    a = p.parse_args()
    if a.tf32 and a.device == "cpu":
        p.error("--tf32 is for GPUs: name one, such as --device cuda:0")
    seats = [tuple(map(int, seat.split("x"))) for seat in a.seats.split(",")]
    python = install(a)
    rows = [compare(python, model, precision, *seat, a) for seat in seats for model in a.models.split(",")
            for precision in a.precision.split(",")]
    print(f"\nBatch {a.batch} per worker on {a.device}{' in TF32' if a.tf32 else ''}, medians of {a.runs} interleaved runs, samples per "
          "second over all workers.\n")
    print("| model | precision | workers × threads | PyTorch's setting, ranks | gradwire | PyTorch | ratio | ratios of pairs: median (range) | share of the peak of such products "
          "| memory, MB | PyTorch's, MB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
