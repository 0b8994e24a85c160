#!/usr/bin/env python3
"""Writes onebit_adam.json: 1-bit Adam (Tang et al. 2021, arXiv 2102.02888) in float64, with two ranks.

usage: onebit_adam.py ONEBIT > onebit_adam.json   (with PyTorch and NumPy; ONEBIT is deepspeed/runtime/fp16/onebit/adam.py
of github.com/microsoft/DeepSpeed, commit 38327e0)

Momentum and variance are DeepSpeed's own. What joins its ranks is given to it: one bit is a sign and the mean of each side (Seide
et al. 2014), with error feedback on every rank and on the server. DeepSpeed corrects neither for its beginning at zero; the
weights here are AdamW's (Loshchilov & Hutter 2019): they decay, and momentum and variance are corrected, the variance
by as much as when it was last changed. An element without variance moves by decay alone.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[2] / "exchange/tests/vectors"))
from feedback import Joined, module, onebit_adam

RANKS, LENGTH, STEPS = 2, 12, 14
S = dict(learning_rate=0.02, warmup_steps=5, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)


def one_bit(x):
    up = x >= 0
    mean = lambda side: x[side].mean() if side.any() else torch.tensor(0.0)
    return torch.where(up, mean(up), mean(~up))


random = np.random.default_rng(2102)
slope = random.normal(size=LENGTH)
gradients = (slope + random.laplace(size=(STEPS, RANKS, LENGTH))).round(3)
gradients[:, :, -1] = 0
x = start = random.normal(size=LENGTH).round(3)

b1, b2, after = S["beta1"], S["beta2"], []
joined = Joined(RANKS, LENGTH, one_bit, back=one_bit)
momenta, variance = onebit_adam(module(sys.argv[1]), gradients, joined, (b1, b2), S["warmup_steps"])
# The variance of a step of the warm-up is that of a run which freezes there.
frozen_at = [min(t, S["warmup_steps"]) for t in range(1, STEPS + 1)]
for t, (m, settled) in enumerate(zip(momenta, frozen_at), 1):
    short = Joined(RANKS, LENGTH, one_bit, back=one_bit)
    _, v = onebit_adam(module(sys.argv[1]), gradients[:settled], short, (b1, b2), settled)
    root = np.sqrt(v / (1 - b2 ** settled))
    step = np.where(v > 0, m / (1 - b1 ** t) / (root + S["epsilon"]), 0)
    x = x - S["learning_rate"] * S["weight_decay"] * x - S["learning_rate"] * step
    after.append(x)
print(json.dumps({
    "origin": "onebit_adam.json, written by onebit_adam.py: momentum and variance of github.com/microsoft/DeepSpeed (38327e0)",
    "settings": S, "start": start.tolist(), "gradients": gradients.tolist(),
    "after": np.round(after, 7).tolist(), "variance": np.round(variance, 9).tolist(),
}))
