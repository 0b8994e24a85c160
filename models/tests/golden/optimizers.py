#!/usr/bin/env python3
"""Golden values for the optimizer kernels, from PyTorch's own optimizers.

usage: optimizers.py > optimizers.json      (pip install torch)
Each case: a parameter of 19 values, five gradients, and the parameter after every update.
"""
import json
import torch

torch.manual_seed(3)
SIZE, STEPS = 19, 5
start = torch.randn(SIZE)
grads = [torch.randn(SIZE) * 10 ** (1 - s) for s in range(STEPS)]
round_trip = lambda t: [float(v) for v in t]  # the shortest decimal of the f64 that equals the f32


def case(kind, **options):
    p = torch.nn.Parameter(start.clone())
    optimizer = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind]([p], **options)
    after = []
    for g in grads:
        p.grad = g.clone()
        optimizer.step()
        after.append(round_trip(p.detach()))
    return {"kind": kind, **options, "after": after}


cases = [
    case("sgd", lr=0.1, momentum=0.0, weight_decay=0.0, nesterov=False),
    case("sgd", lr=0.1, momentum=0.0, weight_decay=5e-4, nesterov=False),
    case("sgd", lr=0.1, momentum=0.9, weight_decay=0.0, nesterov=False),
    case("sgd", lr=0.05, momentum=0.9, weight_decay=1e-2, nesterov=False),
    case("sgd", lr=0.05, momentum=0.9, weight_decay=1e-2, nesterov=True),
    case("adamw", lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2),
    case("adamw", lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.0),
]
print(json.dumps({"torch": torch.__version__.split("+")[0], "start": round_trip(start),
                  "grads": [round_trip(g) for g in grads], "cases": cases}))
