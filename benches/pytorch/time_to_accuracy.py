#!/usr/bin/env python3
"""Seconds to a test accuracy on CIFAR-10: the recipe `cifar10-93` in PyTorch and in the native trainer, in turns.

usage: benches/pytorch/time_to_accuracy.py --data DIR [--target 93] [--seeds 1,2,3,4,5] [--seats 1x2,2x1] [--epochs 12]
                                           [--sides native,pytorch] [--python PYTHON] [--binary PROGRAM]
                                           [--precision f32|bf16] [--settings eager,compile,bf16,compile+bf16]

PyTorch trains in one process of two threads or in two ranks of one (DDP over gloo), in one of its two memory layouts and of
its settings (eager, torch.compile, bf16 autocast, both): whichever took fewer seconds for a few steps before the first run;
--precision is the native side's. Memory is the sum over ranks. The native trainer with the recipe's two workers. Both: the net, batch 1,024, rates,
decay, Lookahead, flips, translations, label smoothing and test views of the recipe, evaluated after the same
epochs; seconds are of steps and evaluations until the first evaluation that found the target, without reading the
data. They draw other initial weights, orders and translations. Prints a line for each run and a table at the end.
Install: torch and numpy for --python.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
BATCH, EVALUATE_EVERY, PROBE_STEPS = 1024, 6, 3
LAYOUTS = ("channels_last", "contiguous_format")
RATE, MOMENTUM, DECAY, BIAS_RATE, SMOOTHING = 1.5, 0.85, 0.00133, 64.0, 0.2
START, PEAK, END = 0.2, 0.23, 0.07
SLOW_DECAY, SLOW_RAMP, SLOW_EVERY = 0.774, 3, 5
TRANSLATE, WHITENED_FROM, TESTS = 2, 5000, 10_000


def rate_of(step, steps):
    """The triangle, of a step counted from 0."""
    peak = int(steps * PEAK)
    if step < peak:
        return START + (1 - START) * step / peak
    return 1 + (END - 1) * (step - peak) / (steps - peak)


class Slow:
    """Lookahead: slow weights, and running statistics alike."""

    def __init__(self, model):
        self.values = {name: value.clone() for name, value in model.state_dict().items()}

    def meet(self, model, decay):
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.values[name].lerp_(value, 1 - decay)
                value.copy_(self.values[name])


def epoch_of(pixels, flipped, epoch, draw, order, share):
    """A share of each of the epoch's batches: alternating flips, translations with reflected borders."""
    import torch
    flip = flipped if epoch % 2 == 0 else ~flipped
    side = 2 * TRANSLATE + 1
    top, left = (torch.randint(0, side, (len(pixels), 1, 1), generator=draw) for _ in range(2))
    rows = top + torch.arange(32).view(1, 32, 1)
    columns = left + torch.arange(32).view(1, 1, 32)
    columns = torch.where(flip.view(-1, 1, 1), columns.flip(2), columns)
    channel = torch.arange(3).view(1, 3, 1, 1)
    for part in torch.randperm(len(pixels), generator=order).split(BATCH):
        part = part[share]
        padded = torch.nn.functional.pad(pixels[part], (TRANSLATE,) * 4, "reflect")
        yield part, padded[torch.arange(len(part)).view(-1, 1, 1, 1), channel, rows[part][:, None], columns[part][:, None]]


def views_of(model, pixels):
    """Mean logits of an image, and of the image moved by a pixel either way, each also mirrored."""
    import torch

    def both(seen):
        return 0.5 * model(seen) + 0.5 * model(seen.flip(3))

    padded = torch.nn.functional.pad(pixels, (1,) * 4, "reflect")
    moved = 0.5 * both(padded[:, :, :32, :32]) + 0.5 * both(padded[:, :, 2:, 2:])
    return 0.5 * both(pixels) + 0.5 * moved


def pytorch_side(a):
    """One rank; rank 0 prints a line of JSON: of --probe the seconds of a few steps in each layout and setting."""
    import torch
    import torch.distributed as dist
    from ddp_cifar10 import images
    from models import MODELS

    torch.set_num_threads(a.threads)
    if a.ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{a.store}", rank=a.rank, world_size=a.ranks)
    share = slice(a.rank, None, a.ranks)
    pixels, labels = images(a.data, "data_batch_*.bin")
    tests, answers = (of_all[share] for of_all in images(a.data, "test_batch.bin"))

    def prepared(layout, setting, seed):
        torch.manual_seed(seed)
        model = MODELS["airbench"]().to(memory_format=getattr(torch, layout))
        model.prepare(pixels[:WHITENED_FROM])
        of_norms = [value for name, value in model.named_parameters() if "bn" in name and value.requires_grad]
        others = [value for name, value in model.named_parameters() if "bn" not in name and value.requires_grad]
        groups = [{"params": of_norms, "weight_decay": DECAY / BIAS_RATE, "factor": BIAS_RATE},
                  {"params": others, "weight_decay": DECAY, "factor": 1.0}]
        trained = model
        if a.ranks > 1:
            trained = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
        if "compile" in setting:
            trained = torch.compile(trained)
        return model, trained, torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM, nesterov=True)

    def autocast(setting):
        return torch.autocast("cpu", torch.bfloat16, enabled="bf16" in setting)

    def step(trained, optimizer, layout, setting, seen, right, rate):
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate * group["factor"]
        optimizer.zero_grad(set_to_none=True)
        with autocast(setting):
            logits = trained(seen.contiguous(memory_format=getattr(torch, layout)))
            loss = torch.nn.functional.cross_entropy(logits, right, label_smoothing=SMOOTHING)
        loss.backward()
        optimizer.step()

    def probed(layout, setting):
        _, trained, optimizer = prepared(layout, setting, 0)
        seen, right = pixels[:BATCH][share], labels[:BATCH][share]
        step(trained, optimizer, layout, setting, seen, right, 0.01)
        began = time.perf_counter()
        for _ in range(PROBE_STEPS):
            step(trained, optimizer, layout, setting, seen, right, 0.01)
        return time.perf_counter() - began

    def say(answer):
        if a.rank == 0:
            print(json.dumps(answer))

    if a.probe:
        ways = [(layout, setting) for layout in LAYOUTS for setting in a.settings.split(",")]
        return say([[probed(*way), a.ranks, a.threads, *way] for way in ways])
    layout, setting = a.layout, a.settings
    draw, order = torch.Generator().manual_seed(1000 * a.seed), torch.Generator().manual_seed(a.seed)
    flipped = torch.rand(len(pixels), generator=draw) < 0.5
    steps = a.epochs * -(-len(pixels) // BATCH)
    # What torch.compile makes of either size of a batch is no part of the run.
    _, trained, optimizer = prepared(layout, setting, 0)
    for size in (BATCH, len(pixels) % BATCH or BATCH):
        step(trained, optimizer, layout, setting, pixels[:size][share], labels[:size][share], 0.01)
    began, evaluations, done = time.perf_counter(), [], 0
    model, trained, optimizer = prepared(layout, setting, a.seed)
    slow = Slow(model)
    for epoch in range(a.epochs):
        model.train()
        for part, seen in epoch_of(pixels, flipped, epoch, draw, order, share):
            step(trained, optimizer, layout, setting, seen, labels[part], rate_of(done, steps))
            done += 1
            if done % SLOW_EVERY == 0:
                slow.meet(model, SLOW_DECAY * (done / steps) ** SLOW_RAMP)
            if done == steps:
                slow.meet(model, 1.0)
        if (epoch + 1) % EVALUATE_EVERY == 0 or epoch + 1 == a.epochs:
            model.eval()
            for values in model.buffers() if a.ranks > 1 else ():
                if values.is_floating_point():
                    dist.all_reduce(values)
                    values /= a.ranks
            memory_format = getattr(torch, layout)
            with torch.no_grad(), autocast(setting):
                found = [views_of(model, part.contiguous(memory_format=memory_format)).argmax(1) for part in tests.split(500)]
            right = (torch.cat(found) == answers).sum()
            if a.ranks > 1:
                dist.all_reduce(right)
            evaluations.append([time.perf_counter() - began, right.item() / TESTS])
    memory = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if a.ranks > 1:
        dist.all_reduce(memory)
    say({"evaluations": evaluations, "memory": memory.item(), "layout": f"{layout}, {setting}, {a.ranks} x {a.threads}"})


def ranks_of_pytorch(a, ranks, threads, *more):
    """What rank 0 of so many processes says."""
    with tempfile.TemporaryDirectory() as folder:
        command = [a.python, __file__, "--data", a.data, "--threads", threads, "--epochs", a.epochs, "--ranks", ranks,
                   "--store", pathlib.Path(folder) / "store", *more, "--rank"]
        # Their words go to files: a full pipe of one would stop all.
        said = [(pathlib.Path(folder) / f"out{rank}", pathlib.Path(folder) / f"err{rank}") for rank in range(ranks)]
        processes = [subprocess.Popen(list(map(str, [*command, rank])), stdout=out.open("w"), stderr=err.open("w"))
                     for rank, (out, err) in enumerate(said)]
        for process, (_, err) in zip(processes, said):
            if process.wait():
                for other in processes:
                    other.kill()
                sys.exit(f"PyTorch failed:\n{err.read_text()}")
        return json.loads(said[0][0].read_text().splitlines()[-1])


def of_pytorch(a, seed):
    if a.way is None:
        seatings = [tuple(map(int, seats.split("x"))) for seats in a.seats.split(",")]
        tried = [way for seats in seatings for way in ranks_of_pytorch(a, *seats, "--probe", "--settings", a.settings)]
        for seconds, ranks, threads, layout, setting in tried:
            print(f"pytorch, {ranks} x {threads}, {layout}, {setting}: {seconds:.2f} s for {PROBE_STEPS} steps", flush=True)
        a.way = min(tried)[1:]
    ranks, threads, layout, setting = a.way
    return ranks_of_pytorch(a, ranks, threads, "--layout", layout, "--settings", setting, "--seed", seed)


def of_native(a, seed):
    with tempfile.TemporaryDirectory() as folder:
        command = [a.binary, "train", "cifar10-93", "--seed", seed, "--epochs", a.epochs, "--dir", a.data,
                   "--out", folder, "--precision", a.precision]
        # GNU time tells the peak of one child among several.
        timed = ["/usr/bin/time", "-f", "%M", *map(str, command)]
        done = subprocess.run(timed, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
        record = next(pathlib.Path(folder).rglob("metrics.jsonl"))
        seconds, evaluations = 0.0, []
        for event in map(json.loads, record.read_text().splitlines()):
            if event["event"] == "epoch":
                seconds += event["seconds"] + event["evaluation_seconds"]
                if event.get("test_accuracy") is not None:
                    evaluations.append([seconds, event["test_accuracy"]])
        return {"evaluations": evaluations, "memory": int(done.stderr.splitlines()[-1]) / 1024, "layout": ""}


def about(values, unit):
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread} {unit}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="the folder that holds cifar-10-batches-bin")
    p.add_argument("--target", type=float, default=93.0, help="in percent")
    p.add_argument("--seeds", default="1,2,3,4,5")
    p.add_argument("--seats", default="1x2,2x1", help="PyTorch's ranks x threads, of which the fastest counts")
    p.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--sides", default="native,pytorch")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--binary", default="target/release/gradwire")
    p.add_argument("--precision", default="f32", help="of the native trainer: f32 or bf16")
    p.add_argument("--settings", default="eager,compile,bf16,compile+bf16", help="PyTorch's, of which the fastest counts")
    for name, kind in (("--seed", int), ("--rank", int), ("--ranks", int), ("--store", str), ("--layout", str)):
        p.add_argument(name, type=kind, help=argparse.SUPPRESS)
    p.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.rank is not None:
        return pytorch_side(a)
    a.way = None
    sides = {"native": of_native, "pytorch": of_pytorch}
    runs = {side: [] for side in a.sides.split(",")}
    for seed in a.seeds.split(","):
        for side, all_of_side in runs.items():
            run = sides[side](a, int(seed))
            all_of_side.append(run)
            at = ", ".join(f"{100 * accuracy:.2f} % at {seconds:.0f} s" for seconds, accuracy in run["evaluations"])
            print(f"{side} seed {seed}: {at}; {run['memory']:.0f} MB at most {run['layout']}", flush=True)
    print(f"\n| side | test accuracy | reached {a.target:g} % | seconds to it | seconds of a run | MB at most |")
    print("|---|---|---|---|---|---|")
    for side, of_side in runs.items():
        last = [100 * run["evaluations"][-1][1] for run in of_side]
        firsts = [[s for s, accuracy in run["evaluations"] if 100 * accuracy >= a.target][:1] for run in of_side]
        reached = [first[0] for first in firsts if first]
        whole = [run["evaluations"][-1][0] for run in of_side]
        memory = max(run["memory"] for run in of_side)
        print(f"| {side} | {about(last, '%')} | {len(reached)} of {len(of_side)} | {about(reached, 's')} | "
              f"{about(whole, 's')} | {memory:.0f} |")
    if len(runs) == 2:
        first, second = ([run["evaluations"][-1][0] for run in of_side] for of_side in runs.values())
        ratios = [b / a for a, b in zip(first, second)]
        print(f"\na run: {list(runs)[1]} takes {statistics.median(ratios):.2f} times as long as {list(runs)[0]} "
              f"(median of {len(ratios)} pairs, {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
