#!/usr/bin/env python3
"""What communication hooks cost in a step of DDP, in turns: gradwire's, PyTorch's own, and codecs in Python.

usage: benches/pytorch/hooks.py [--world 2] [--rounds 15] [--hooks none,fp16,powersgd,…] [--ratio 0.01] [--rank 4] [--dtype bfloat16]

The parameters are those of a ResNet-18 for CIFAR-10 (11.2 million), and their gradient is given: backward is
one addition for each element, so that a step is almost the hook alone. The processes run on this machine
with one thread each, joined by gloo over loopback. `python-topk` is a top-k hook as GRACE has it: `torch.topk` of
the magnitudes, values and positions in one all_gather each, a residual, the mean by scatter. Every
round takes one step of each hook; the first three rounds are not counted. Then one process encodes alone: the
top-k codec in Python, and gradwire's codecs. Prints Markdown tables of medians in milliseconds.
Install: gradwire, torch, numpy. Quiet the machine first: what else runs is in the figures.
"""
import argparse
import os
import statistics
import tempfile
import time

from powersgd import resnet18

HOOKS = ["none", "fp16", "powersgd", "python-topk", "gradwire-dense", "gradwire-powersgd", "gradwire-topk", "gradwire-sidco"]


class PythonTopk:
    """The top-k codec of one flat gradient, with a residual."""

    def __init__(self, ratio):
        self.ratio, self.residual = ratio, None

    def encode(self, flat):
        import torch
        due = flat if self.residual is None else flat + self.residual
        count = max(1, round(self.ratio * due.numel()))
        _, positions = torch.topk(due.abs(), count, sorted=False)
        values = due[positions]
        self.residual = due.clone()
        self.residual[positions] = 0
        return values, positions


def python_topk(codec):
    import torch
    import torch.distributed as dist

    def hook(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        flat = bucket.buffer()
        values, positions = codec.encode(flat)
        world = dist.get_world_size()
        all_values = [torch.empty_like(values) for _ in range(world)]
        all_positions = [torch.empty_like(positions) for _ in range(world)]
        dist.all_gather(all_values, values)
        dist.all_gather(all_positions, positions)
        flat.zero_()
        for one, at in zip(all_values, all_positions):
            flat.index_add_(0, at, one, alpha=1 / world)
        future = torch.futures.Future()
        future.set_result(flat)
        return future

    return hook


def wrapped(name, a):
    """A module whose gradient is its argument, wrapped with this hook."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    import gradwire.torch

    class Given(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.zeros(shape, dtype=getattr(torch, a.dtype)) for shape in resnet18())

        def forward(self, given):
            return sum((weight * one).sum() for weight, one in zip(self.weights, given))

    # One bucket: PyTorch's hooks of several rounds need that over gloo.
    ddp = torch.nn.parallel.DistributedDataParallel(Given(), bucket_cap_mb=1000)
    if name == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=a.rank, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name == "python-topk":
        ddp.register_comm_hook(None, python_topk(PythonTopk(a.ratio)))
    elif name.startswith("gradwire-"):
        scheme = name.removeprefix("gradwire-")
        settings = {"topk": {"ratio": a.ratio}, "sidco": {"ratio": a.ratio}, "powersgd": {"rank": a.rank}}
        state = gradwire.torch.State(scheme, parameters=ddp, **settings.get(scheme, {}))
        ddp.register_comm_hook(state, gradwire.torch.hook)
    return ddp


def process(rank, a, store):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=a.world)
    draw = torch.Generator().manual_seed(rank)
    given = [torch.randn(shape, generator=draw).to(getattr(torch, a.dtype)) for shape in resnet18()]
    names = a.hooks.split(",")
    modules = {name: wrapped(name, a) for name in names}
    times = {name: [] for name in names}
    for round_ in range(a.rounds + 3):
        for name, module in modules.items():
            module.zero_grad()
            loss = module(given)
            dist.barrier()
            begin = time.perf_counter()
            loss.backward()
            if round_ >= 3:
                times[name].append(1e3 * (time.perf_counter() - begin))
    if rank == 0:
        print(f"\n{a.world} processes, ResNet-18's gradient, {a.rounds} rounds\n")
        print("| hook | backward with it, ms: median (range) | less backward without exchange |\n|---|---|---|")
        alone = plain_backward(given, a.rounds)
        for name in names:
            m = statistics.median(times[name])
            print(f"| `{name}` | {m:.0f} ({min(times[name]):.0f}–{max(times[name]):.0f}) | {m - alone:.0f} |")
        encoding(given, a)
    dist.barrier()


def plain_backward(given, rounds):
    """Backward of the same module without DDP."""
    import torch
    weights = [torch.zeros_like(one, requires_grad=True) for one in given]
    times = []
    for _ in range(rounds):
        for weight in weights:
            weight.grad = None
        loss = sum((weight * one).sum() for weight, one in zip(weights, given))
        begin = time.perf_counter()
        loss.backward()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def encoding(given, a):
    import torch

    import gradwire
    flat = torch.cat([one.reshape(-1) for one in given]).float()
    array = flat.numpy()
    python = PythonTopk(a.ratio)
    codecs = {"python-topk": lambda step: python.encode(flat)}
    for name in ("topk", "sidco", "dgc", "qsgd"):
        settings = {} if name == "qsgd" else {"ratio": a.ratio}
        codec = gradwire.Compressor(name, **settings)
        codecs[f"gradwire `{name}`"] = lambda step, codec=codec: codec.encode(array, step)
    times = {name: [] for name in codecs}
    for step in range(1, a.rounds + 4):
        for name, encode in codecs.items():
            begin = time.perf_counter()
            encode(step)
            if step > 3:
                times[name].append(1e3 * (time.perf_counter() - begin))
    base = statistics.median(times["python-topk"])
    print("\n| codec, one process | encode, ms: median (range) | against `torch.topk` |\n|---|---|---|")
    for name, all_ in times.items():
        m = statistics.median(all_)
        print(f"| {name} | {m:.1f} ({min(all_):.1f}–{max(all_):.1f}) | {base / m:.2f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--hooks", default=",".join(HOOKS))
    p.add_argument("--ratio", type=float, default=0.01)
    p.add_argument("--rank", type=int, default=4)
    p.add_argument("--dtype", default="float32", help="of the parameters and their gradient")
    a = p.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch.multiprocessing as mp
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, args=(a, os.path.join(folder, "store")), nprocs=a.world)


if __name__ == "__main__":
    main()
