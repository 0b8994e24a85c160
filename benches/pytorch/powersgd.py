#!/usr/bin/env python3
"""What PowerSGD computes in a step, of gradwire and of PyTorch's `powerSGD_hook`, interleaved in one run.

usage: benches/pytorch/powersgd.py [--ranks 1,2,4,8,32] [--runs 5] [--steps 20] [--python PYTHON] [--binary PROGRAM]

Both sides take steps on the gradient of a ResNet-18 for CIFAR-10 (11.2 million parameters) on one
thread, with error feedback and warm start, and all that follows from these: residual added, products,
columns made orthonormal, gradient and residual written. Nothing is sent: ours posts to memory, and
theirs is PyTorch's own hook with an allreduce that hands its argument back at once. What each is
given anew for a step, the fresh gradient, is not counted.

Runs ours, theirs, ours, theirs, …, each in its own process on the core that --core names, prints every
pair of medians as it comes and a Markdown table of the medians of all steps at the end.
Makes a virtual environment for PyTorch under target/ (the first time) unless --python is given.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

from compare import install, measure

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def resnet18():
    """The shapes of its parameters, for 32 x 32 images and ten classes."""
    shapes = []

    def convolution(to, of, side):
        shapes.extend([(to, of, side, side), (to,), (to,)])

    convolution(64, 3, 3)
    of = 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            convolution(width, of, 3)
            convolution(width, width, 3)
            if of != width:
                convolution(width, of, 1)
            of = width
    return shapes + [(10, 512), (10,)]


def theirs(rank, steps, warm):
    """One process of PyTorch's side: prints a line of JSON with the seconds of every step."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as module

    class Done:
        """A future, and the work of an allreduce, that has come to its value."""
        def __init__(self, value):
            self.of = value

        def get_future(self):
            return self

        def value(self):
            return self.of

        wait = value

        def then(self, follow):
            return Done(follow(self))

    class Alone:
        """A process group of this process."""
        def size(self):
            return 1

    class Bucket:
        """What the hook asks of a bucket: its gradient, flat and by parameter."""
        def __init__(self, flat, shapes):
            self.flat = flat
            lengths = [torch.Size(shape).numel() for shape in shapes]
            self.tensors = [part.view(shape) for part, shape in zip(flat.split(lengths), shapes)]

        def buffer(self):
            return self.flat

        def set_buffer(self, flat):
            self.flat.copy_(flat)

        def index(self):
            return 0

        def gradients(self):
            return self.tensors

        def is_last(self):
            return True

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    module.dist.all_reduce = lambda tensor, **_: Done([tensor])
    shapes = resnet18()
    length = sum(torch.Size(shape).numel() for shape in shapes)
    fresh = 1e-3 * (torch.rand(4, length).sum(0) - 2)
    bucket = Bucket(torch.empty(length), shapes)
    state = module.PowerSGDState(Alone(), matrix_approximation_rank=rank, start_powerSGD_iter=2)
    state.iter = state.start_powerSGD_iter
    seconds = []
    for at in range(warm + steps):
        bucket.flat.copy_(fresh)
        start = time.perf_counter()
        with torch.no_grad():
            module.powerSGD_hook(state, bucket)
        if at >= warm:
            seconds.append(time.perf_counter() - start)
    share = (bucket.flat - fresh).norm() / fresh.norm()
    assert 0 < share < 10, f"the hook has not compressed: {share}"
    print(json.dumps({"framework": "torch " + torch.__version__, "rank": rank, "elements": length, "seconds": seconds}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", default="1,2,4,8,32", help="columns of the factors, separated by commas")
    p.add_argument("--runs", type=int, default=5, help="of each side; the median of all steps counts")
    p.add_argument("--steps", type=int, default=20, help="measured in each run")
    p.add_argument("--warm", type=int, default=3, help="steps before these")
    p.add_argument("--core", type=int, help="the core that both sides run on")
    p.add_argument("--binary", type=pathlib.Path, help="our example `powersgd`, if it is built already")
    p.add_argument("--python", type=pathlib.Path, help="a Python with torch and numpy, if there is one already")
    p.add_argument("--theirs", type=int, metavar="RANK", help="only PyTorch's side, once, in this process")
    a = p.parse_args()
    if a.theirs:
        return theirs(a.theirs, a.steps, a.warm)

    if a.binary is None:
        a.binary = ROOT / "target/release/examples/powersgd"
        build = ["cargo", "build", "--release", "-q", "-p", "gradwire-exchange", "--example", "powersgd"]
        subprocess.run(build, cwd=ROOT, check=True)
    python = install(a)
    pin = ["taskset", "-c", a.core] if a.core is not None else []
    rows = []
    for rank in map(int, a.ranks.split(",")):
        sides = ([a.binary, rank, a.steps, a.warm],
                 [python, __file__, "--theirs", rank, "--steps", a.steps, "--warm", a.warm])
        runs = []
        for _ in range(a.runs):
            runs.append([measure(pin + side)["seconds"] for side in sides])
            o, t = (1e3 * statistics.median(side) for side in runs[-1])
            print(f"rank {rank}: {o:.2f} against {t:.2f} ms, {t / o:.2f}", file=sys.stderr, flush=True)
        o, t = (1e3 * statistics.median(sum(side, [])) for side in zip(*runs))
        ratios = [statistics.median(t) / statistics.median(o) for o, t in runs]
        rows.append(f"| {rank} | {o:.2f} | {t:.2f} | **{t / o:.2f}** "
                    f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) |")
    print(f"\nResNet-18 (CIFAR-10), one thread, milliseconds a step, medians of {a.runs} interleaved runs.\n")
    print("| rank | gradwire | PyTorch's hook | ratio | ratios of pairs: median (range) |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
