#!/usr/bin/env python3
"""Accuracy and bytes of PyTorch DDP with gradwire's hook, next to the native trainer, on CIFAR-10.

usage: benches/pytorch/ddp_cifar10.py --data DIR [--schemes topk,sidco,…] [--seeds 1,2] [--ours-seeds 1]
                                      [--epochs 2] [--images 50000] [--world 2] [--python PYTHON] [--binary PROGRAM]

Both sides train a ResNet-20 with the recipe of `cifar10-dense`: 64 images a worker, SGD with Nesterov
momentum 0.9, learning rate 0.1 that rises for an epoch and falls along a cosine, weight decay 5e-4 but on
norms and biases, crops and flips, convolutions that start as He's (normal, by fan-out). They draw other
initial weights, orders and crops, so that what they reach is compared with the spread over seeds.
--images takes so many training images, a fifth of them from each file. Prints a line for each run and a
Markdown table at the end; `wire` is bytes of one rank and step.
Install: gradwire, torch and numpy for --python.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SCHEMES = ["dense", "topk", "sidco", "dqsgd", "casq", "powersgd"]
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


def images(folder, pattern):
    import numpy
    import torch
    files = sorted(pathlib.Path(folder).rglob(pattern))
    records = numpy.concatenate([numpy.fromfile(file, numpy.uint8).reshape(-1, 3073) for file in files])
    pixels = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    shape = (1, 3, 1, 1)
    pixels = (pixels - torch.tensor(MEAN).view(shape)) / torch.tensor(DEVIATION).view(shape)
    return pixels, torch.from_numpy(records[:, 0].astype(numpy.int64))


def crops(pixels, draw):
    """Each image shifted by up to four pixels, and flipped or not, by itself."""
    import torch
    # What a crop shows of the outside is black, as in the usual pipeline, which pads before it normalises.
    black = -torch.tensor(MEAN).view(1, 3, 1, 1) / torch.tensor(DEVIATION).view(1, 3, 1, 1)
    padded = torch.nn.functional.pad(pixels - black, (4, 4, 4, 4)) + black
    top, left = (torch.randint(0, 9, (len(pixels), 1, 1), generator=draw) for _ in range(2))
    rows = top + torch.arange(32).view(1, 32, 1)
    columns = left + torch.arange(32).view(1, 1, 32)
    flipped = torch.rand(len(pixels), 1, 1, generator=draw) < 0.5
    columns = torch.where(flipped, columns.flip(2), columns)
    image = torch.arange(len(pixels)).view(-1, 1, 1, 1)
    channel = torch.arange(3).view(1, 3, 1, 1)
    return padded[image, channel, rows[:, None], columns[:, None]]


def rank_of_ours(a):
    """One process of PyTorch's side; rank 0 prints a line of JSON."""
    import math

    import torch
    import torch.distributed as dist

    import gradwire.torch
    from models import MODELS

    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    dist.init_process_group("gloo", init_method=f"file://{a.store}", rank=a.rank, world_size=a.world)
    model = MODELS["resnet20"]()
    for one in model.modules():
        if isinstance(one, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(one.weight, mode="fan_out", nonlinearity="relu")
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = gradwire.torch.State(a.scheme, parameters=ddp, seed=a.seed)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    weights = [one for one in ddp.parameters() if one.dim() > 1]
    others = [one for one in ddp.parameters() if one.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    pixels, labels = images(a.data, "data_batch_*.bin")
    order = torch.Generator().manual_seed(a.seed)
    draw = torch.Generator().manual_seed(1000 * a.seed + a.rank)
    per_epoch = len(labels) // (64 * a.world)
    step = 0
    for _ in range(a.epochs):
        mine = torch.randperm(len(labels), generator=order)[a.rank::a.world]
        for part in mine[:per_epoch * 64].split(64):
            step += 1
            through = (step - per_epoch) / max(1, per_epoch * (a.epochs - 1))
            rate = step / per_epoch if step <= per_epoch else 0.5 * (1 + math.cos(math.pi * through))
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * rate
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(ddp(crops(pixels[part], draw)), labels[part]).backward()
            optimizer.step()
    if a.rank == 0:
        ddp.module.eval()
        pixels, labels = images(a.data, "test_batch.bin")
        with torch.no_grad():
            found = torch.cat([ddp.module(part).argmax(1) for part in pixels.split(250)])
        accuracy = (found == labels).double().mean().item()
        print(json.dumps({"accuracy": accuracy, "wire": state.wire_bytes / step, "steps": step}), flush=True)
    dist.barrier()


def of_ours(a, scheme, seed, data):
    with tempfile.TemporaryDirectory() as folder:
        command = [a.python, __file__, "--scheme", scheme, "--seed", seed, "--world", a.world, "--data", data,
                   "--epochs", a.epochs, "--store", pathlib.Path(folder) / "store", "--rank"]
        ranks = [subprocess.Popen(list(map(str, [*command, rank])), stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"}) for rank in range(a.world)]
        said = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            sys.exit(f"{scheme}, seed {seed}: a rank failed")
        return json.loads(said[0].splitlines()[-1])


def of_native(a, scheme, seed, data):
    with tempfile.TemporaryDirectory() as folder:
        command = [a.binary, "train", "cifar10-dense", "--scheme", scheme, "--seed", seed, "--workers", a.world,
                   "--epochs", a.epochs, "--dir", data, "--out", folder,
                   "--set", "dataset.partial=true", "--set", "record.every=1", "--set", "record.histograms_every=0"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
        record = next(pathlib.Path(folder).rglob("metrics.jsonl"))
        events = [json.loads(line) for line in record.read_text().splitlines()]
        summary = next(event["summary"] for event in events if event["event"] == "finished")
        sent = [event["wire_bytes"] for event in events if event["event"] == "step"]
        return {"accuracy": summary["test_accuracy"], "wire": sum(sent) / len(sent), "steps": summary["steps"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="the folder that holds cifar-10-batches-bin")
    p.add_argument("--schemes", default=",".join(SCHEMES))
    p.add_argument("--seeds", default="1,2", help="of the native trainer")
    p.add_argument("--ours-seeds", default="1", help="of DDP with the hook")
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--images", type=int, default=50000)
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--binary", default="gradwire")
    for name in ("--scheme", "--store"):
        p.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--seed", "--rank"):
        p.add_argument(name, type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.rank is not None:
        return rank_of_ours(a)
    source = next(pathlib.Path(a.data).rglob("data_batch_1.bin")).parent
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        part = pathlib.Path(folder) / "cifar-10-batches-bin"
        part.mkdir()
        for i in range(1, 6):
            name = f"data_batch_{i}.bin"
            (part / name).write_bytes((source / name).read_bytes()[:a.images // 5 * 3073])
        for name in ("test_batch.bin", "batches.meta.txt"):
            (part / name).write_bytes((source / name).read_bytes())
        for scheme in a.schemes.split(","):
            found = {}
            for side, run, seeds in (("native", of_native, a.seeds), ("ddp", of_ours, a.ours_seeds)):
                for seed in map(int, seeds.split(",")):
                    one = run(a, scheme, seed, folder)
                    print(json.dumps({"side": side, "scheme": scheme, "seed": seed, **one}), flush=True)
                    found.setdefault(side, []).append(one)
            rows.append((scheme, found))
    print("\n| scheme | native, each seed | DDP with the hook, each seed | native wire | DDP wire |\n|---|---|---|---|---|")
    for scheme, found in rows:
        accuracy = {side: ", ".join(f"{100 * one['accuracy']:.1f}" for one in runs) for side, runs in found.items()}
        wire = {side: sum(one["wire"] for one in runs) / len(runs) for side, runs in found.items()}
        print(f"| `{scheme}` | {accuracy['native']} | {accuracy['ddp']} | {wire['native']:.0f} | {wire['ddp']:.0f} |")


if __name__ == "__main__":
    main()
