#!/usr/bin/env python3
"""Writes onebit_adam.json: 1-bit Adam (Tang et al. 2021, arXiv 2102.02888, algorithm 1) in float64, with two ranks.

usage: onebit_adam.py > onebit_adam.json   (with NumPy)

One bit is a sign and the mean of each side (Seide et al. 2014), with error feedback on every rank and on the server.
As AdamW (Loshchilov & Hutter 2019) the weights decay, and momentum and variance are corrected for their beginning at zero,
the variance by as much as when it was last changed. An element without variance moves by decay alone.
"""
import json

import numpy as np

RANKS, LENGTH, STEPS = 2, 12, 14
S = dict(learning_rate=0.02, warmup_steps=5, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)


def one_bit(x):
    up = x >= 0
    mean = lambda side: x[side].mean() if side.any() else 0.0
    return np.where(up, mean(up), mean(~up))


random = np.random.default_rng(2102)
slope = random.normal(size=LENGTH)
gradients = (slope + random.laplace(size=(STEPS, RANKS, LENGTH))).round(3)
gradients[:, :, -1] = 0
start = random.normal(size=LENGTH).round(3)

x, m, v = start.copy(), np.zeros(LENGTH), np.zeros(LENGTH)
delta, of_server = np.zeros((RANKS, LENGTH)), np.zeros(LENGTH)
b1, b2, after = S["beta1"], S["beta2"], []
for t, g in enumerate(gradients, 1):
    if t <= S["warmup_steps"]:
        mean = g.mean(axis=0)
        m = b1 * m + (1 - b1) * mean
        v = b2 * v + (1 - b2) * mean ** 2
        settled = t
    else:
        sent = np.zeros_like(g)
        for i in range(RANKS):
            due = b1 * m + (1 - b1) * g[i] + delta[i]
            sent[i] = one_bit(due)
            delta[i] = due - sent[i]
        due = sent.mean(axis=0) + of_server
        m = one_bit(due)
        of_server = due - m
    root = np.sqrt(v / (1 - b2 ** settled))
    step = np.where(v > 0, m / (1 - b1 ** t) / (root + S["epsilon"]), 0)
    x = x - S["learning_rate"] * S["weight_decay"] * x - S["learning_rate"] * step
    after.append(x)
print(json.dumps({
    "origin": "onebit_adam.json, written by onebit_adam.py: 1-bit Adam (Tang et al. 2021, algorithm 1) in float64 with NumPy",
    "settings": S, "start": start.tolist(), "gradients": gradients.tolist(),
    "after": np.round(after, 7).tolist(), "variance": np.round(v, 9).tolist(),
}))
