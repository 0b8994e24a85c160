#!/usr/bin/env python3
"""Checks that models saved by gradwire load strictly into the PyTorch references and agree there.

usage: cargo run --release -p gradwire-models --example export -- FOLDER
       python models/tests/golden/check.py FOLDER/*.safetensors
       python models/tests/golden/check.py --model resnet20 runs/out/…/model.safetensors

The model's name is the file's, or --model's; its sizes are read from the file. Where
NAME.logits.json lies beside the file, PyTorch's logits for the golden input must equal it.
Needs: pip install torch numpy safetensors
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import load_file

import reference


def check(path, name):
    state = load_file(path)
    heads = ("fc.weight", "linear.weight", "classifier.weight", "tokens.weight")
    sizes = {"classes": len(next(state[n] for n in heads if n in state))}
    if name in reference.GPTS:
        sizes["length"] = len(state["positions.weight"])
    elif name in reference.TEXTS:
        sizes["vocabulary"] = len(state["embedding.weight"])
    else:
        first = next(state[n] for n in ("conv1.weight", "features.0.weight", "whiten.weight") if n in state)
        sizes["channels"] = first.shape[1]
    model = reference.build(name, **sizes)
    model.load_state_dict(state, strict=True)
    model.eval()
    print(f"{path}: loads into {name}, {sum(p.numel() for p in model.parameters())} parameters", end="")
    logits = path.with_name(f"{path.stem}.logits.json")
    if logits.exists():
        expected = torch.tensor(json.loads(logits.read_text()))
        golden = json.loads(pathlib.Path(__file__).with_name(f"{name}.json").read_text())
        if name in reference.GPTS:
            inputs = reference.sequences(golden["seed"], *golden["input"], sizes["classes"])
        elif name in reference.TEXTS:
            inputs = reference.texts(golden["seed"], *golden["input"], sizes["vocabulary"])
        else:
            inputs = reference.images(golden["seed"], *golden["input"])
        with torch.no_grad():
            error = (model(inputs) - expected).norm() / expected.norm()
        print(f"; logits differ by {error:.1e} of their norm", end="")
        assert error < 1e-4, "the logits are not PyTorch's"
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--model", choices=reference.MODELS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for file in arguments.files:
        check(file, arguments.model or file.stem)
