#!/usr/bin/env python3
"""Writes the golden vectors of the models: logits, loss, gradients and running statistics by PyTorch.

usage: python models/tests/golden/make.py [MODEL ...]      (needs: pip install torch numpy)

Weights and inputs come from the hash formulas in reference.py, so only results are stored, one
MODEL.json each. PyTorch computes in f64; the formulas' values are f32, so an f32 implementation
differs by its own rounding alone; a gradient that is nothing but PyTorch's rounding (of a bias that
batch norm takes out again) is stored as the zeros that it is; how far PyTorch's own f32 is off stands under "f32", and how far
its bf16 (autocast) is, under "bf16". Near a kink
of ReLU or a tie of the maximum that rounding could still flip a gradient, so of SEEDS inputs the
one that stays furthest from all kinks is used.

A tensor is stored as a digest: its Euclidean norm, four sums with hashed signs (each differs from
the truth by about the norm of the error, wherever it sits), and some elements at hashed positions.
"""
import json
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import reference

SEEDS = 100
SMOOTHING = 0.1
SIGNED_SUMS = 4
ELEMENTS = 6
ZERO = 1e-12
VOCABULARY, LENGTH = 50, 12


def case(name, seed):
    """Inputs, labels and number of classes of a model's golden case."""
    if name in reference.TEXTS:
        return reference.texts(seed, 4, LENGTH, VOCABULARY), reference.labels(seed, 4, 4), 4
    if name in reference.GPTS:
        tokens = 11
        return reference.sequences(seed, 2, LENGTH, tokens), reference.labels(seed, 2 * LENGTH, tokens), tokens
    batch, side = (4, 8) if name in ("resnet", *reference.CIFAR_BLOCKS) else (2, 32 if name in ("vgg16", "airbench") else 16)
    return reference.images(seed, batch, side, side), reference.labels(seed, batch, 10), 10


def margin(model, inputs):
    """Distance of the training forward pass from the nearest kink."""
    nearest = [float("inf")]

    def at_relu(_, args, out):
        nearest[0] = min(nearest[0], args[0].abs().min().item())
        if out.dim() == 3:  # a maximum over time follows: distance between its best two distinct values
            best, _ = out.max(2, keepdim=True)
            rest = out.masked_fill(out >= best - 1e-12, 0).amax(2, keepdim=True)
            nearest[0] = min(nearest[0], (best - rest)[best > 0].min().item())

    rectified = any(isinstance(m, nn.ReLU) for m in model.modules())

    def at_pool(module, args, _):  # distance between the best two of a window, where ReLU lets the best pass
        windows = F.unfold(args[0].flatten(0, 1).unsqueeze(1), module.kernel_size, stride=module.stride)
        best, second = windows.topk(2, 1).values.unbind(1)
        apart = (best - second)[best > 0] if rectified else best - second
        nearest[0] = min(nearest[0], apart.min().item())

    hooks = [m.register_forward_hook(at_relu) for m in model.modules() if isinstance(m, nn.ReLU)]
    hooks += [m.register_forward_hook(at_pool) for m in model.modules() if isinstance(m, nn.MaxPool2d)]
    with torch.no_grad():
        model(inputs)
    for hook in hooks:
        hook.remove()
    return nearest[0]


def digest(name, tensor):
    flat = tensor.detach().double().flatten()
    signs = [1 - 2 * (reference.hashes(f"{name} sign {i}", len(flat)).astype("int64") >> 31) for i in range(SIGNED_SUMS)]
    at = reference.hashes(f"{name} element", ELEMENTS).astype("int64") % len(flat)
    return {
        "norm": flat.norm().item(),
        "sums": [(flat * torch.from_numpy(s)).sum().item() for s in signs],
        "elements": [flat[i].item() for i in at],
    }


def run(name, dtype, seed):
    inputs, targets, classes = case(name, seed)
    model = reference.build(name, vocabulary=VOCABULARY, classes=classes)
    reference.fill(model)
    weights = torch.float32 if dtype == torch.bfloat16 else dtype
    model = model.to(weights)
    inputs = inputs.to(weights) if inputs.is_floating_point() else inputs
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        model.eval()
        evaluated = model(inputs).to(weights)
        model.train()
        logits = model(inputs).to(weights)
    loss = F.cross_entropy(logits, targets, label_smoothing=SMOOTHING)
    loss.backward()
    return model, evaluated, logits, loss


def furthest_from_kinks(name):
    distances = {}
    for seed in range(SEEDS):
        inputs, _, classes = case(name, seed)
        model = reference.build(name, vocabulary=VOCABULARY, classes=classes)
        reference.fill(model)
        if not any(isinstance(m, (nn.ReLU, nn.MaxPool2d)) for m in model.modules()):
            return 0, None
        distances[seed] = margin(model.train(), inputs)
    best = max(distances, key=distances.get)
    return best, distances[best]


def relative(a, b):
    return ((a.double() - b).norm() / b.norm()).item()


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return value


def write(name):
    seed, distance = furthest_from_kinks(name)
    model, evaluated, logits, loss = run(name, torch.float64, seed)
    gradients = dict(sorted((n, p.grad) for n, p in model.named_parameters() if p.requires_grad))
    largest = max(g.norm() for g in gradients.values())
    rounding = [n for n, g in gradients.items() if g.norm() < ZERO * largest]
    gradients |= {n: torch.zeros_like(gradients[n]) for n in rounding}
    buffers = dict(sorted((n, b) for n, b in model.named_buffers() if b.is_floating_point()))

    def errors(dtype):
        of, by_eval, by_train, _ = run(name, dtype, seed)
        grads = dict(of.named_parameters())
        return {
            "eval_logits": relative(by_eval, evaluated),
            "train_logits": relative(by_train, logits),
            "gradient": max(relative(grads[n].grad, g) for n, g in gradients.items() if n not in rounding),
        }

    f32, bf16 = errors(torch.float32), errors(torch.bfloat16)
    print(f"{name}: seed {seed}, margin {distance}, {sum(g.numel() for g in gradients.values())} parameters; "
          f"errors of PyTorch's own f32: {f32}, of its bf16: {bf16}")
    vocabulary = VOCABULARY if name in reference.TEXTS else logits.shape[1] if name in reference.GPTS else None
    golden = {
        "model": name.split("-")[0], "settings": reference.SETTINGS.get(name, {}), "seed": seed, "smoothing": SMOOTHING, "classes": logits.shape[1],
        "input": list(case(name, seed)[0].shape), "vocabulary": vocabulary,
        "f32": f32, "bf16": bf16, "loss": loss.item(), "eval_logits": evaluated.tolist(), "train_logits": logits.tolist(),
    }
    lines = [f" {json.dumps(k)}: {json.dumps(rounded(v), separators=(',', ':'))}" for k, v in golden.items()]
    for key, tensors in (("gradients", gradients), ("buffers", buffers)):
        rows = [f"  {json.dumps(n)}: {json.dumps(rounded({'shape': list(t.shape), **digest(n, t)}), separators=(',', ':'))}"
                for n, t in tensors.items()]
        lines.append(f" {json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n }")
    path = pathlib.Path(__file__).with_name(f"{name}.json")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or reference.MODELS:
        write(name)
