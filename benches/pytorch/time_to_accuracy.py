#!/usr/bin/env python3
"""Seconds to a test accuracy on CIFAR-10: the recipe `cifar10-93` in PyTorch and in the native trainer, in turns.

usage: benches/pytorch/time_to_accuracy.py --data DIR [--target 93] [--seeds 1,2,3,4,5] [--threads 2] [--epochs 12]
                                           [--sides native,pytorch] [--python PYTHON] [--binary PROGRAM]
                                           [--precision f32|bf16] [--settings eager,compile,bf16,compile+bf16]

PyTorch trains in one process with so many threads, in whichever of its two memory layouts and of its settings (eager,
torch.compile, bf16 autocast, both) took fewer seconds for a few steps at the beginning; --precision is the native
side's. The native trainer with the recipe's two workers. Both: the net, batch 1,024, rates,
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
RATE, MOMENTUM, DECAY, BIAS_RATE, SMOOTHING = 1.5, 0.85, 0.00133, 64.0, 0.2
START, PEAK, END = 0.2, 0.23, 0.07
SLOW_DECAY, SLOW_RAMP, SLOW_EVERY = 0.774, 3, 5
TRANSLATE, WHITENED_FROM = 2, 5000


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


def epoch_of(pixels, flipped, epoch, draw, order):
    """The epoch's batches: alternating flips, translations with reflected borders."""
    import torch
    padded = torch.nn.functional.pad(pixels, (TRANSLATE,) * 4, "reflect")
    flip = flipped if epoch % 2 == 0 else ~flipped
    side = 2 * TRANSLATE + 1
    top, left = (torch.randint(0, side, (len(pixels), 1, 1), generator=draw) for _ in range(2))
    rows = top + torch.arange(32).view(1, 32, 1)
    columns = left + torch.arange(32).view(1, 1, 32)
    columns = torch.where(flip.view(-1, 1, 1), columns.flip(2), columns)
    channel = torch.arange(3).view(1, 3, 1, 1)
    for part in torch.randperm(len(pixels), generator=order).split(BATCH):
        image = part.view(-1, 1, 1, 1)
        yield part, padded[image, channel, rows[part][:, None], columns[part][:, None]]


def views_of(model, pixels):
    """Mean logits of an image, and of the image moved by a pixel either way, each also mirrored."""
    import torch

    def both(seen):
        return 0.5 * model(seen) + 0.5 * model(seen.flip(3))

    padded = torch.nn.functional.pad(pixels, (1,) * 4, "reflect")
    moved = 0.5 * both(padded[:, :, :32, :32]) + 0.5 * both(padded[:, :, 2:, 2:])
    return 0.5 * both(pixels) + 0.5 * moved


def pytorch_side(a):
    import torch
    from ddp_cifar10 import images
    from models import MODELS

    torch.set_num_threads(a.threads)
    pixels, labels = images(a.data, "data_batch_*.bin")
    tests, answers = images(a.data, "test_batch.bin")

    def prepared(layout, seed):
        torch.manual_seed(seed)
        model = MODELS["airbench"]().to(memory_format=layout)
        model.prepare(pixels[:WHITENED_FROM])
        of_norms = [value for name, value in model.named_parameters() if "bn" in name and value.requires_grad]
        others = [value for name, value in model.named_parameters() if "bn" not in name and value.requires_grad]
        groups = [{"params": of_norms, "weight_decay": DECAY / BIAS_RATE, "factor": BIAS_RATE},
                  {"params": others, "weight_decay": DECAY, "factor": 1.0}]
        return model, torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM, nesterov=True)

    def autocast(setting):
        return torch.autocast("cpu", torch.bfloat16, enabled="bf16" in setting)

    def step(model, optimizer, layout, setting, seen, right, rate):
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate * group["factor"]
        optimizer.zero_grad(set_to_none=True)
        with autocast(setting):
            logits = model(seen.contiguous(memory_format=layout))
            loss = torch.nn.functional.cross_entropy(logits, right, label_smoothing=SMOOTHING)
        loss.backward()
        optimizer.step()

    def run_by(model, setting):
        return torch.compile(model) if "compile" in setting else model

    def probed(way):
        layout, setting = way
        model, optimizer = prepared(layout, 0)
        model = run_by(model, setting)
        step(model, optimizer, layout, setting, pixels[:BATCH], labels[:BATCH], 0.01)
        began = time.perf_counter()
        for _ in range(PROBE_STEPS):
            step(model, optimizer, layout, setting, pixels[:BATCH], labels[:BATCH], 0.01)
        return time.perf_counter() - began

    layouts = [torch.channels_last, torch.contiguous_format]
    layout, setting = min(((l, s) for l in layouts for s in a.settings.split(",")), key=probed)
    draw, order = torch.Generator().manual_seed(1000 * a.seed), torch.Generator().manual_seed(a.seed)
    flipped = torch.rand(len(pixels), generator=draw) < 0.5
    steps = a.epochs * -(-len(pixels) // BATCH)
    began, evaluations, done = time.perf_counter(), [], 0
    model, optimizer = prepared(layout, a.seed)
    slow = Slow(model)
    trained = run_by(model, setting)
    for epoch in range(a.epochs):
        model.train()
        for part, seen in epoch_of(pixels, flipped, epoch, draw, order):
            step(trained, optimizer, layout, setting, seen, labels[part], rate_of(done, steps))
            done += 1
            if done % SLOW_EVERY == 0:
                slow.meet(model, SLOW_DECAY * (done / steps) ** SLOW_RAMP)
            if done == steps:
                slow.meet(model, 1.0)
        if (epoch + 1) % EVALUATE_EVERY == 0 or epoch + 1 == a.epochs:
            model.eval()
            with torch.no_grad(), autocast(setting):
                found = [views_of(model, part.contiguous(memory_format=layout)).argmax(1) for part in tests.split(500)]
            accuracy = (torch.cat(found) == answers).double().mean().item()
            evaluations.append([time.perf_counter() - began, accuracy])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"evaluations": evaluations, "memory": memory, "layout": f"{layout}, {setting}".removeprefix("torch.")}))


def of_pytorch(a, seed):
    command = [a.python, __file__, "--data", a.data, "--seed", seed, "--threads", a.threads, "--epochs", a.epochs,
               "--settings", a.settings]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"PyTorch, seed {seed}, failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


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
    p.add_argument("--threads", type=int, default=2, help="of PyTorch")
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--sides", default="native,pytorch")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--binary", default="target/release/gradwire")
    p.add_argument("--precision", default="f32", help="of the native trainer: f32 or bf16")
    p.add_argument("--settings", default="eager,compile,bf16,compile+bf16", help="PyTorch's, of which the fastest counts")
    p.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.seed is not None:
        return pytorch_side(a)
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
