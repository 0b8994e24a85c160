#!/usr/bin/env python3
"""Writes powersgd.json: what PyTorch's own `powerSGD_hook` comes to, in float64, with several ranks.

usage: powersgd.py > powersgd.json   (with PyTorch, any 2.x)

The ranks are threads of this process; an allreduce adds up in rank order. The hook starts from the
Q that the file gives. Gradients are slowly turning low-rank matrices and noise, the same signal and
another noise on every rank.
"""
import json
import threading

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as module

torch.set_default_dtype(torch.float64)


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


class Ranks:
    """The process group: as many threads, of which each brings its tensor."""
    def __init__(self, size):
        self.barrier = threading.Barrier(size)
        self.posted = [None] * size
        self.local = threading.local()

    def size(self):
        return len(self.posted)

    def allreduce(self, tensor, **_):
        self.posted[self.local.rank] = tensor.clone()
        self.barrier.wait()
        total = sum(self.posted[1:], self.posted[0])
        self.barrier.wait()
        tensor.copy_(total)
        return Done([tensor])


class Bucket:
    """What the hook asks of a bucket: its gradient, flat and by parameter."""
    def __init__(self, flat, shapes):
        self.flat = flat
        lengths = [int(np.prod(shape)) for shape in shapes]
        self.tensors = [part.view(shape) for part, shape in zip(flat.split(lengths), shapes)]

    def buffer(self):
        return self.flat

    def index(self):
        return 0

    def gradients(self):
        return self.tensors

    def is_last(self):
        return True


def gradient(shapes, rank, step):
    """A rank's gradient of a step, to four digits."""
    parts = []
    for number, shape in enumerate(shapes):
        n, m = shape[0], int(np.prod(shape[1:]))
        i, k = np.arange(n)[:, None], np.arange(m)[None, :]
        signal = sum(3.0 / (1 + c) * np.sin(0.7 * i * (c + 1) + 0.2 * step + number) * np.cos(0.45 * k * (c + 1) - 0.1 * step)
                     for c in range(3))
        noise = np.random.default_rng([rank, step, number]).normal(size=(n, m))
        parts.append((signal + 0.3 * noise).ravel())
    return np.round(np.concatenate(parts), 4)


def run(name, shapes, world, rank, steps):
    """One case: the gradients of all ranks, the means of all steps, the residuals after the last."""
    generator = np.random.default_rng(len(name))
    matrices = []
    for shape in shapes:
        n, m = shape[0], int(np.prod(shape[1:]))
        r = min(n, m, rank)
        if (n + m) * r * 2 < n * m:
            matrices.append((n, m, r))
    start = [np.round(generator.normal(size=(m, r)), 4) for n, m, r in matrices]
    group = Ranks(world)
    module.dist.all_reduce = group.allreduce
    means, residuals = [[None] * steps for _ in range(world)], [None] * world
    given = [[gradient(shapes, one, step) for one in range(world)] for step in range(steps)]

    def work(number):
        group.local.rank = number
        state = module.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        state.iter = state.start_powerSGD_iter
        # A view of m by r for each matrix, end to end, is where the hook looks for the last Q.
        state.q_memory_dict[0] = torch.cat([torch.tensor(q).flatten() for q in start])
        state.p_memory_dict[0] = torch.zeros(sum(n * r for n, m, r in matrices))
        for step in range(steps):
            flat = torch.tensor(given[step][number])
            module.powerSGD_hook(state, Bucket(flat, shapes))
            means[number][step] = flat.numpy().copy()
        residuals[number] = state.error_dict[0].numpy()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(world)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(np.array_equal(means[0], other) for other in means)
    digits = lambda values: [float(f"{value:.9g}") for value in values]
    return {"name": name, "shapes": shapes, "rank": rank,
            # Column by column, matrix by matrix.
            "start": [float(value) for q in start for value in q.T.ravel()],
            "gradients": [[list(one) for one in step] for step in given],
            "means": [digits(mean) for mean in means[0]],
            "residuals": [digits(residual) for residual in residuals]}


cases = [run("two ranks, vectors and a small matrix between", [[8, 3, 4], [5], [2, 3], [10, 10]], 2, 2, 4),
         run("three ranks", [[12, 2, 8]], 3, 3, 3)]
print("{")
print(f'"origin": "powersgd.json, written by powersgd.py: powerSGD_hook of PyTorch {torch.__version__} in float64, error feedback and warm start",')
print('"cases": [')
print(",\n".join(json.dumps(case) for case in cases))
print("]\n}")
