#!/usr/bin/env python3
"""Writes feedback.json: three forms of error feedback in float64, with several ranks, from published code.

usage: feedback.py CCLOCO GEN_SGD ONEBIT > feedback.json   (with PyTorch, einops and NumPy), where the files are

`decay`     CCLOCO, src/tplr/ccloco.py of github.com/tplr-y/CCLoco, commit 5bfce52: the optimizer of SparseLoCo (Sarfi et
            al. 2025, arXiv 2508.15706) under its first name. It runs once for each rank, by itself and with a learning
            rate of 1: what a rank sends is what leaves its error buffer. The mean is the paper's, over all ranks: the
            authors' code takes that over the ranks that sent an element.
`efsgdm`    GEN_SGD, gen_sgd.py of github.com/IgorSokoloff/Parameter-Agnostic-Error-Feedback-through-Momentum, commit
            c743d20: its EF21_SGDM (Fatkhullin et al. 2023, arXiv 2305.15155). It begins with the first gradient, which is
            zero here, as v and h begin with zero in Gradwire. What a step takes is what the weights move by at a rate of 1.
`momentum`  ONEBIT, deepspeed/runtime/fp16/onebit/adam.py of github.com/microsoft/DeepSpeed, commit 38327e0: 1-bit Adam
            (Tang et al. 2021, arXiv 2102.02888), one optimizer for each rank in a thread of its own. What joins them is
            given to it: the mean of what is compressed with the residual, and nothing compressed on the way back. Its
            first step makes buffers, its second is uncompressed, and has zero gradients here.

All compress to the largest quarter of each chunk of 8.
"""
import contextlib
import importlib.util
import json
import sys
import threading
import types

import numpy as np
import torch
import torch.distributed

RANKS, LENGTH, STEPS, CHUNK, K = 3, 24, 6, 8, 2
BETA, ETA, BETA1 = 0.9, 0.25, 0.8
torch.set_default_dtype(torch.float64)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def module(path):
    """The module in a file. DeepSpeed's asks for some of its own, of which it needs little here."""
    comm = types.SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: 0)
    accelerator = lambda: types.SimpleNamespace(empty_cache=lambda: None)
    stubs = {
        "deepspeed": {"comm": comm},
        "deepspeed.accelerator": {"get_accelerator": accelerator},
        "deepspeed.utils": {},
        "deepspeed.utils.torch": {"required_torch_version": lambda **_: True},
        # Where it is told whether MPI knows about GPUs, it is given what joins its ranks.
        "deepspeed.runtime.comm.mpi": {"MpiBackend": lambda joined: joined},
    }
    for name, content in stubs.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content)
    spec = importlib.util.spec_from_file_location("published", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def largest(x):
    """The largest of each chunk, all else 0."""
    chunks = x.reshape(-1, CHUNK)
    places = chunks.abs().topk(K, dim=1).indices
    return torch.zeros_like(chunks).scatter(1, places, chunks.gather(1, places)).reshape(x.shape)


def sparseloco(published, gradients):
    sent, residuals = np.zeros((STEPS, RANKS, LENGTH)), []
    for rank in range(RANKS):
        parameter = torch.zeros(LENGTH, requires_grad=True)
        optimizer = published.CCLoco([parameter], lr=1.0, error_decay=BETA, top_k=K, chunk_size=CHUNK)
        buffer = lambda: optimizer.state[parameter]["error_buffer"].numpy().copy()
        for step in range(STEPS):
            before = buffer()
            parameter.grad = torch.tensor(gradients[step, rank])
            optimizer.step()
            sent[step, rank] = BETA * before + gradients[step, rank] - buffer()
        residuals.append(buffer())
    return sent.mean(axis=1), residuals


def ef21_sgdm(published, gradients):
    parameter = torch.zeros(LENGTH, requires_grad=True)
    optimizer = published.SGDGen([parameter], lr=1.0, eta=ETA, n_workers=RANKS, comp=largest, error_feedback="EF21_SGDM")
    means = []
    for of_ranks in [np.zeros((RANKS, LENGTH)), *gradients]:
        before = parameter.detach().numpy().copy()
        for rank in range(RANKS):
            parameter.grad = torch.tensor(of_ranks[rank])
            optimizer.step_local_global(rank)
        means.append(before - parameter.detach().numpy())
    state = optimizer.state[parameter]
    return means[1:], [(state[f"v_{rank}"] - state[f"g_{rank}"]).numpy() for rank in range(RANKS)]


class Joined:
    """What joins the ranks of 1-bit Adam: the mean of what each compresses, and what both ways keep."""

    def __init__(self, ranks, length, compress, back=lambda mean: mean):
        self.size, self.length, self.compress, self.back = ranks, length, compress, back
        self.barrier, self.sent = threading.Barrier(ranks), [None] * ranks
        self.residuals, self.of_mean = [torch.zeros(length) for _ in range(ranks)], torch.zeros(length)

    def of(self, rank):
        def compressed_allreduce(momentum, *_):
            due = momentum + self.residuals[rank]
            self.sent[rank] = self.compress(due)
            self.residuals[rank] = due - self.sent[rank]
            if self.barrier.wait() == 0:
                due = sum(self.sent) / self.size + self.of_mean
                self.mean = self.back(due)
                self.of_mean = due - self.mean
            self.barrier.wait()
            return self.mean.clone()
        return types.SimpleNamespace(size=self.size, compressed_allreduce=compressed_allreduce)


def onebit_adam(published, gradients, joined, betas, warmup=1):
    """Of each step the momentum that all ranks have, after the `warmup` first ones of the mean gradient, and the variance."""
    momenta, variance = [None] * joined.size, [None] * joined.size

    def on(rank):
        parameter = torch.zeros(joined.length, requires_grad=True)
        engine = types.SimpleNamespace(local_rank=0, enable_backward_allreduce=True)
        settings = dict(betas=betas, freeze_step=warmup + 1, comm_backend_name="mpi", cuda_aware=joined.of(rank))
        optimizer = published.OnebitAdam([parameter], engine, **settings)
        found = []
        for step, of_ranks in enumerate([np.zeros_like(gradients[0]), *gradients]):
            # Until then its engine averages gradients.
            parameter.grad = torch.tensor(of_ranks.mean(axis=0) if step <= warmup else of_ranks[rank])
            optimizer.step()
            found.append(optimizer.state[parameter]["exp_avg"].numpy().copy())
        momenta[rank], variance[rank] = found[1:], optimizer.state[parameter]["exp_avg_sq"].numpy()

    threads = [threading.Thread(target=on, args=(rank,)) for rank in range(joined.size)]
    with contextlib.redirect_stdout(sys.stderr):
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert all(np.array_equal(momenta[0], of_rank) for of_rank in momenta)
    return momenta[0], variance[0]


if __name__ == "__main__":
    random = np.random.default_rng(47)
    gradients = random.laplace(size=(STEPS, RANKS, LENGTH)).round(3)
    joined = Joined(RANKS, LENGTH, largest)
    nothing = np.zeros((1, RANKS, LENGTH))
    momenta, _ = onebit_adam(module(sys.argv[3]), np.concatenate([nothing, gradients]), joined, (BETA1, 0.999))
    found = {
        "decay": sparseloco(module(sys.argv[1]), gradients),
        "efsgdm": ef21_sgdm(module(sys.argv[2]), gradients),
        "momentum": (momenta[1:], [residual.numpy() for residual in joined.residuals]),
    }
    print(json.dumps({
        "origin": "feedback.json, written by feedback.py from github.com/tplr-y/CCLoco (5bfce52), "
                  "IgorSokoloff/Parameter-Agnostic-Error-Feedback-through-Momentum (c743d20) and microsoft/DeepSpeed (38327e0)",
        "gradients": gradients.tolist(),
        **{name: {"means": np.round(means, 9).tolist(), "residuals": np.round(residuals, 9).tolist()}
           for name, (means, residuals) in found.items()},
    }))
