#!/usr/bin/env python3
"""Writes feedback.json: three forms of error feedback as their papers write them, in float64, with several ranks.

usage: feedback.py > feedback.json   (with NumPy)

`decay` is algorithm 1 of SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706) from the pseudo-gradients on, `efsgdm`
algorithm 1 of EF21-SGDM (Fatkhullin et al. 2023, arXiv 2305.15155) with v and h from 0, h kept by every rank,
`momentum` lines 7 to 12 of algorithm 1 of 1-bit Adam (Tang et al. 2021, arXiv 2102.02888) with nothing compressed on the
way back; all with the largest quarter of each chunk of 8.
"""
import json

import numpy as np

RANKS, LENGTH, STEPS, CHUNK, RATIO = 3, 20, 6, 8, 0.25
BETA, ETA, BETA1 = 0.9, 0.25, 0.8


def largest(x):
    """The largest of each chunk, all else 0."""
    kept = np.zeros_like(x)
    for start in range(0, len(x), CHUNK):
        part = x[start:start + CHUNK]
        k = max(1, round(RATIO * len(part)))
        places = start + np.argsort(-np.abs(part), kind="stable")[:k]
        kept[places] = x[places]
    return kept


def sparseloco(gradients):
    e = np.zeros((RANKS, LENGTH))
    means = []
    for of_ranks in gradients:
        sent = np.zeros_like(e)
        for r in range(RANKS):
            e[r] = BETA * e[r] + of_ranks[r]
            sent[r] = largest(e[r])
            e[r] = e[r] - sent[r]
        means.append(sent.mean(axis=0))
    return means, e


def ef21_sgdm(gradients):
    v, h = np.zeros((RANKS, LENGTH)), np.zeros((RANKS, LENGTH))
    means = []
    for of_ranks in gradients:
        for r in range(RANKS):
            v[r] = (1 - ETA) * v[r] + ETA * of_ranks[r]
            h[r] = h[r] + largest(v[r] - h[r])
        means.append(h.mean(axis=0))
    return means, v - h


def onebit_adam(gradients):
    delta, m = np.zeros((RANKS, LENGTH)), np.zeros(LENGTH)
    means = []
    for of_ranks in gradients:
        sent = np.zeros_like(delta)
        for r in range(RANKS):
            own = BETA1 * m + (1 - BETA1) * of_ranks[r]
            sent[r] = largest(own + delta[r])
            delta[r] = own + delta[r] - sent[r]
        m = sent.mean(axis=0)
        means.append(m)
    return means, delta


random = np.random.default_rng(47)
gradients = random.laplace(size=(STEPS, RANKS, LENGTH)).round(3)
out = {"origin": "feedback.json, written by feedback.py: SparseLoCo, EF21-SGDM and 1-bit Adam in float64 with NumPy",
       "gradients": gradients.tolist()}
for name, run in [("decay", sparseloco), ("efsgdm", ef21_sgdm), ("momentum", onebit_adam)]:
    means, residuals = run(gradients)
    out[name] = {"means": np.round(means, 9).tolist(), "residuals": np.round(residuals, 9).tolist()}
print(json.dumps(out))
