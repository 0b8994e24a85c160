#!/usr/bin/env python3
"""Training speed of gradwire against PyTorch DDP (gloo, CPU), interleaved in one run.

usage: benches/pytorch/compare.py [--models resnet20,resnet18,textcnn,fasttext,bilstm]
                                  [--workers 2] [--threads 1] [--batch 64] [--runs 5] [--steps 20]

Builds gradwire, makes a virtual environment for PyTorch under target/ (the first time), then runs
ours, theirs, ours, theirs, …, each in its own process, and prints the medians and their ratio.
Both sides take one optimizer step (SGD, momentum 0.9) per exchange of the full fp32 gradient, on
random samples of the same shapes. For the ResNets PyTorch runs twice, in its default layout and
channels-last, and the faster of the two is what we are compared with.
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


def install():
    python = ENV / "bin" / "python"
    if not python.exists():
        venv.create(ENV, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "numpy"], check=True)
    subprocess.run(["cargo", "build", "--release", "-q"], cwd=ROOT, check=True)
    return python


def last_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["samples_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", default="resnet20,resnet18,textcnn,fasttext,bilstm")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--steps", type=int, default=20)
    a = p.parse_args()
    python = install()
    print(f"{a.workers} x {a.threads} threads, batch {a.batch} per rank; samples/s, median of {a.runs} runs")
    print(f"{'model':<10} {'gradwire':>10} {'pytorch':>10} {'ratio':>7}   (ratio of each pair)")
    for model in a.models.split(","):
        ours_command = [ROOT / "target/release/gradwire", "bench", "train", "--json", "--model", model,
                        "--workers", a.workers, "--threads", a.threads, "--batch", a.batch, "--steps", a.steps]
        theirs_command = [python, HERE / "torch_ddp.py", "--model", model, "--world", a.workers,
                          "--threads", a.threads, "--batch", a.batch, "--steps", a.steps]
        variants = [theirs_command]
        if model.startswith("resnet"):
            variants.append(theirs_command + ["--channels-last"])
        ours, theirs = [], [[] for _ in variants]
        for _ in range(a.runs):
            ours.append(last_json(list(map(str, ours_command))))
            for results, command in zip(theirs, variants):
                results.append(last_json(list(map(str, command))))
        best = max(theirs, key=statistics.median)
        pairs = " ".join(f"{o / t:.2f}" for o, t in zip(ours, best))
        o, t = statistics.median(ours), statistics.median(best)
        print(f"{model:<10} {o:>10.1f} {t:>10.1f} {o / t:>7.2f}   ({pairs})", flush=True)


if __name__ == "__main__":
    main()
