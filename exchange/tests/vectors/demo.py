#!/usr/bin/env python3
"""Writes demo.json: DeMo (Peng et al. 2024, arXiv 2411.19870, algorithm 1) in float64, with several ranks.

usage: demo.py > demo.json   (with NumPy)

The transform is taken from a Fourier transform of each row and its mirror image, and the way back is the inverse of
its matrix. Each side of a tile is the largest divisor of the parameter's that is at most CHUNK, as in the authors'
code. What ranks take is the mean over all ranks.
"""
import json

import numpy as np

RANKS, STEPS, CHUNK, K, BETA = 3, 5, 4, 3, 0.9
SHAPES = [(6, 10), (7,), (8,), (4, 3, 2)]


def matrix(n):
    """The orthonormal DCT-II of length n: frequencies by places."""
    x = np.eye(n)
    spectrum = np.fft.fft(np.concatenate([x, x[::-1]]), axis=0)[:n]
    turned = (spectrum * np.exp(-0.5j * np.pi * np.arange(n) / n)[:, None]).real / 2
    turned[0] *= np.sqrt(1 / n)
    turned[1:] *= np.sqrt(2 / n)
    return turned


def side(n):
    return max(part for part in range(1, CHUNK + 1) if n % part == 0)


def fast(m):
    """The strongest K frequencies of each tile, back in place."""
    rows = m.reshape(m.shape[0], -1) if m.ndim > 1 else m[None]
    h, w = side(rows.shape[0]), side(rows.shape[1])
    sent = np.zeros_like(rows)
    for y in range(0, rows.shape[0], h):
        for x in range(0, rows.shape[1], w):
            frequencies = matrix(h) @ rows[y:y + h, x:x + w] @ matrix(w).T
            weak = np.argsort(-np.abs(frequencies).ravel(), kind="stable")[K:]
            frequencies.ravel()[weak] = 0
            sent[y:y + h, x:x + w] = np.linalg.inv(matrix(h)) @ frequencies @ np.linalg.inv(matrix(w)).T
    return sent.reshape(m.shape)


random = np.random.default_rng(2411)
gradients = [[[random.laplace(size=s).round(3) for s in SHAPES] for _ in range(RANKS)] for _ in range(STEPS)]
momenta = [[np.zeros(s) for s in SHAPES] for _ in range(RANKS)]
means = []
for of_ranks in gradients:
    sent = []
    for r in range(RANKS):
        momenta[r] = [BETA * m + g for m, g in zip(momenta[r], of_ranks[r])]
        q = [fast(m) for m in momenta[r]]
        momenta[r] = [m - q for m, q in zip(momenta[r], q)]
        sent.append(np.concatenate([part.ravel() for part in q]))
    means.append(np.mean(sent, axis=0))


def flat(parts):
    return np.concatenate([part.ravel() for part in parts])


print(json.dumps({
    "origin": "demo.json, written by demo.py: DeMo (Peng et al. 2024, algorithm 1) in float64 with NumPy",
    "gradients": [[flat(rank).tolist() for rank in step] for step in gradients],
    "means": np.round(means, 7).tolist(),
    "momenta": [np.round(flat(m), 7).tolist() for m in momenta],
}))
