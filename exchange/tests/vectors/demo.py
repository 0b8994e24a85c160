#!/usr/bin/env python3
"""Writes demo.json: the momenta of DeMo (Peng et al. 2024, arXiv 2411.19870) in float64, with several ranks.

usage: demo.py FILE > demo.json   (with PyTorch, einops and NumPy; FILE is demo.py of github.com/bloc97/DeMo, commit 0e48145)

The authors' optimizer runs once for each rank, by itself and with a learning rate of 1. What a rank sends is what leaves its momentum.
The mean is the paper's, over all ranks: the authors' code takes that over the ranks that sent a frequency, and only
its sign. It has no parameters of more than two dimensions: the kernel is a matrix of its first one.
"""
import importlib.util
import json
import sys

import numpy as np
import torch
import torch.distributed

RANKS, STEPS, CHUNK, K, BETA = 3, 5, 4, 3, 0.9
SHAPES = [(6, 10), (7,), (8,), (4, 3, 2)]

spec = importlib.util.spec_from_file_location("authors", sys.argv[1])
authors = importlib.util.module_from_spec(spec)
spec.loader.exec_module(authors)
torch.set_default_dtype(torch.float64)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

random = np.random.default_rng(2411)
gradients = [[[random.laplace(size=s).round(3) for s in SHAPES] for _ in range(RANKS)] for _ in range(STEPS)]


def flat(parts):
    return np.concatenate([np.asarray(part).ravel() for part in parts])


sent, momenta = np.zeros((STEPS, RANKS, flat(gradients[0][0]).size)), []
for r in range(RANKS):
    parameters = [torch.zeros(s[0], *([int(np.prod(s[1:]))] if len(s) > 1 else []), requires_grad=True) for s in SHAPES]
    optimizer = authors.DeMo(parameters, BETA, K, CHUNK, lr=1.0)
    momentum = lambda: flat([optimizer.demo_state[p]["delta"] for p in parameters])
    for step in range(STEPS):
        before = momentum()
        for p, g in zip(parameters, gradients[step][r]):
            p.grad = torch.tensor(g).reshape(p.shape)
        optimizer.step()
        sent[step, r] = BETA * before + flat(gradients[step][r]) - momentum()
    momenta.append(momentum())

print(json.dumps({
    "origin": "demo.json, written by demo.py: momenta of the authors' code (github.com/bloc97/DeMo, commit 0e48145), "
              "their means those of Peng et al. 2024, algorithm 1",
    "gradients": [[flat(rank).tolist() for rank in step] for step in gradients],
    "means": np.round(sent.mean(axis=1), 7).tolist(),
    "momenta": [np.round(m, 7).tolist() for m in momenta],
}))
