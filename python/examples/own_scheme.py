"""A scheme in a few lines of Python trains a model with DistributedDataParallel, beside the native scheme
of the same arithmetic: same bytes, same weights.

    torchrun --nproc-per-node 2 own_scheme.py
"""

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.contract
import gradwire.torch


class Half:
    """Every element as a float of 16 bits; what rounding misses is added to the next gradient."""

    law = "contraction"

    def encode(self, gradient, step):
        return numpy.clip(gradient, -65504, 65504).astype("<f2").tobytes()

    def decode(self, message, length):
        return numpy.frombuffer(message, "<f2").astype(numpy.float32)


def train(scheme, **settings):
    """The weights after some steps, and the bytes of each."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))
    ddp = DistributedDataParallel(model)
    state = gradwire.torch.State(scheme, parameters=ddp, **settings)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    samples = torch.Generator().manual_seed(dist.get_rank())
    sent = []
    for _ in range(50):
        inputs = torch.randn(64, 100, generator=samples)
        loss = torch.nn.functional.cross_entropy(ddp(inputs), inputs[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sent.append(state.traffic.wire_bytes)
    state.close()
    return torch.nn.utils.parameters_to_vector(model.parameters()), sent, loss.item()


gradwire.contract.check(Half())
dist.init_process_group("gloo")
weights, sent, loss = train(Half())
native_weights, native_sent, _ = train("half", feedback=True)
assert torch.equal(weights, native_weights)
# A scheme in Python also sends a checksum of the mean.
assert all(mine == its + 28 for mine, its in zip(sent, native_sent))
if dist.get_rank() == 0:
    print(f"loss {loss:.3f}, {sent[-1]} bytes a step, {sent[-1] - native_sent[-1]} of them a checksum")
dist.destroy_process_group()
