"""A callback gives Lightning's DistributedDataParallel the hook, and every rank's residual a place in checkpoints.

    pip install lightning
    torchrun --nproc-per-node 2 with_lightning.py
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import gradwire.torch


class Compress(lightning.Callback):
    """The arguments are those of `gradwire.torch.State`."""

    def __init__(self, scheme, **settings):
        self.scheme, self.settings, self.saved = scheme, settings, None

    def on_train_start(self, trainer, module):
        ddp = trainer.strategy.model
        self.state = gradwire.torch.State(self.scheme, parameters=ddp, **self.settings)
        if self.saved is not None:
            self.state.load_state_dict(self.saved)
        ddp.register_comm_hook(self.state, gradwire.torch.hook)

    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["gradwire"] = gradwire.torch.gather_state(self.state)

    def on_load_checkpoint(self, trainer, module, checkpoint):
        self.saved = checkpoint["gradwire"]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(
            torch.nn.Linear(100, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10)
        )
        self.losses = []

    def training_step(self, batch, _):
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


lightning.seed_everything(0)
inputs = torch.randn(6400, 100)
loader = DataLoader(TensorDataset(inputs, inputs[:, :10].argmax(1)), batch_size=32, shuffle=True)
module, compress = Module(), Compress("topk", ratio=0.01)
trainer = lightning.Trainer(
    accelerator="auto" if torch.cuda.is_available() else "cpu",
    devices=2,
    strategy="ddp",
    max_epochs=1,
    callbacks=[compress],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, loader)
trainer.save_checkpoint("last.ckpt")
first, last = sum(module.losses[:10]) / 10, sum(module.losses[-10:]) / 10
if trainer.is_global_zero:
    traffic = compress.state.traffic
    print(
        f"loss {first:.3f} to {last:.3f} in {compress.state.step} steps, {traffic.wire_bytes} bytes a "
        f"step, {traffic.dense_bytes} uncompressed"
    )
