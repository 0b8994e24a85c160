#!/usr/bin/env python3
"""Reference values for `muon`, in f64 from the formulas of torch.optim.Muon (PyTorch 2.9) with
`adjust_lr_fn="match_rms_adamw"`, which itself computes in bfloat16, and of torch.optim.AdamW.

usage: muon.py > muon.json      (pip install numpy)
"""
import json
import numpy as np

random = np.random.default_rng(7)


def orthogonal(x, iterations):
    wide = x if x.shape[0] <= x.shape[1] else x.T
    y = wide / (np.linalg.norm(wide) + 1e-7)
    for _ in range(iterations):
        gram = y @ y.T
        y = 3.4445 * y + (-4.775 * gram + 2.0315 * gram @ gram) @ y
    return y if wide is x else y.T


def case(name, shape, steps=3, learning_rate=0.05, momentum=0.9, nesterov=True, iterations=5, weight_decay=0.1):
    settings = dict(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov, iterations=iterations,
                    weight_decay=weight_decay)
    rounded = lambda values: values.astype(np.float32).astype(np.float64)
    weights = start = rounded(random.standard_normal(shape))
    gradients = [rounded(random.standard_normal(shape) * 10.0 ** (1 - step)) for step in range(steps)]
    mean, square, after = np.zeros(shape), np.zeros(shape), []
    for step, gradient in enumerate(gradients, 1):
        if len(shape) > 1 and name != "fc.weight":
            mean = momentum * mean + (1 - momentum) * gradient
            update = (1 - momentum) * gradient + momentum * mean if nesterov else mean
            matrix = orthogonal(update.reshape(shape[0], -1), iterations)
            size = 0.2 * np.sqrt(max(matrix.shape)) * learning_rate
            weights = (1 - learning_rate * weight_decay) * weights - size * matrix.reshape(shape)
        else:
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.95 * square + 0.05 * gradient**2
            decay = weight_decay if len(shape) > 1 else 0.0
            root = np.sqrt(square) / np.sqrt(1 - 0.95**step) + 1e-8
            weights = (1 - learning_rate * decay) * weights - learning_rate / (1 - 0.9**step) * mean / root
        after.append(weights)
    flat = lambda values: [float(np.float32(value)) for value in values.ravel()]
    return {"name": name, "shape": list(shape), "settings": settings, "start": flat(start),
            "gradients": [flat(gradient) for gradient in gradients], "after": [flat(weights) for weights in after]}


print(json.dumps({"numpy": np.__version__, "cases": [
    case("conv1.weight", (3, 2, 2, 2)),
    case("conv2.weight", (4, 3), nesterov=False, iterations=3),
    case("layers.0.linear1.weight", (2, 5), weight_decay=0.0),
    case("fc.weight", (2, 3)),
    case("bn1.weight", (5,)),
]}))
