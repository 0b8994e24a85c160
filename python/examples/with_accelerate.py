"""Hugging Face Accelerate prepares model, optimizer and loader; the hook goes onto the prepared model.

    pip install accelerate
    torchrun --nproc-per-node 2 with_accelerate.py
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import gradwire.torch

accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(100, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
inputs = torch.randn(6400, 100)
loader = DataLoader(TensorDataset(inputs, inputs[:, :10].argmax(1)), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

state = gradwire.torch.State("topk", ratio=0.01, parameters=model)
model.register_comm_hook(state, gradwire.torch.hook)

losses = []
for inputs, labels in loader:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
accelerator.print(
    f"loss {first:.3f} to {last:.3f} in {state.step} steps, {state.traffic.wire_bytes} bytes a step, "
    f"{state.traffic.dense_bytes} uncompressed"
)
accelerator.end_training()
