"""What the processes of the tests of local steps do."""

import os
from pathlib import Path

import jobs
import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from jobs import backward, batch, model, weights
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

NESTEROV = {"learning_rate": 0.7, "momentum": 0.9, "nesterov": True}


def normed():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )


def _made(module, scheme, settings, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    return optimizer, gradwire.torch.DiLoCo(module, optimizer, scheme, timeout=30, **settings)


def _steps(module, optimizer, local, rank, steps):
    """Losses, and of each round this rank's weights before and after the exchange and its bytes."""
    losses, rounds = [], []
    for step in steps:
        optimizer.zero_grad()
        losses.append(backward(module, rank, step))
        optimizer.step()
        before = weights(module)
        traffic = local.step()
        if traffic is not None:
            rounds.append((before, weights(module), traffic.wire_bytes))
    return losses, rounds


def train(rank, world_size, scheme, settings, steps, kind="plain"):
    module = {"plain": model, "normed": normed, "half": lambda: model(torch.bfloat16)}[kind]()
    if rank and kind != "half":
        with torch.no_grad():  # Rank 0's are taken.
            module[0].weight.add_(1.0)
    optimizer, local = _made(module, scheme, settings)
    dtype = torch.bfloat16 if kind == "half" else torch.float32
    begin = weights(module)
    losses, rounds = [], []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(backward(module, rank, step, dtype))
        optimizer.step()
        before, vector = weights(module), _momentum(optimizer, module)
        traffic = local.step()
        if traffic is not None:
            after = weights(module), _momentum(optimizer, module)
            statistics = [one.numpy().copy() for one in module.buffers() if one.is_floating_point()]
            rounds.append((before, *after, traffic.wire_bytes, vector, statistics))
    return begin, losses, rounds, local.rounds, local.wire_bytes


def _momentum(optimizer, module):
    vectors = [optimizer.state[one]["momentum_buffer"].float() for one in module.parameters()]
    return torch.cat([one.reshape(-1) for one in vectors]).numpy().copy()


def plain(rank, world_size, steps, rounds, nesterov):
    """The same arithmetic by PyTorch alone: DDP's building blocks, and no Gradwire."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    kept = [one.detach().clone() for one in module.parameters()]
    outer = torch.optim.SGD(kept, lr=0.7, momentum=0.9, nesterov=True) if nesterov else torch.optim.SGD(kept, lr=1.0)
    found = []
    for step in range(steps * rounds):
        optimizer.zero_grad()
        backward(module, rank, step)
        optimizer.step()
        if (step + 1) % steps:
            continue
        with torch.no_grad():
            for one, now in zip(kept, module.parameters()):
                one.grad = one - now
                dist.all_reduce(one.grad)
                one.grad *= 1 / world_size
            outer.step()
            for one, now in zip(kept, module.parameters()):
                now.copy_(one)
        found.append(weights(module))
    return found


def resumed(rank, world_size, scheme, settings, cut, folder):
    """Seven steps in rounds of three at once, and with a checkpoint after `cut` of them."""
    whole = normed()
    _steps(whole, *_made(whole, scheme, settings), rank, range(7))
    part = normed()
    optimizer, local = _made(part, scheme, settings)
    _steps(part, optimizer, local, rank, range(cut))
    gathered = gradwire.torch.gather_state(local)
    file = os.path.join(folder, "checkpoint.pt")
    if rank == 0:
        torch.save(gathered, file)
    dist.barrier()
    again = normed()
    with torch.no_grad():
        again[0].weight.zero_()
    optimizer, local = _made(again, scheme, settings)
    local.load_state_dict(torch.load(file, weights_only=True))
    _steps(again, optimizer, local, rank, range(cut, 7))
    named = {name: one.numpy().copy() for name, one in again.state_dict().items()}
    return {name: one.numpy().copy() for name, one in whole.state_dict().items()}, named, local.rounds


def before(rank, world_size, scheme, settings, folder):
    """Five steps in rounds of three, saved: this rank's weights and residuals, and the outer weights."""
    module = model()
    optimizer, local = _made(module, scheme, settings)
    _steps(module, optimizer, local, rank, range(5))
    gathered = gradwire.torch.gather_state(local)
    if rank == 0:
        torch.save(gathered, os.path.join(folder, "checkpoint.pt"))
    dcp.save({"gradwire": gradwire.torch.Checkpoint(local)}, checkpoint_id=os.path.join(folder, "parts"))
    return _told(local)


def elsewhere(rank, world_size, scheme, settings, folder, parts):
    """What another number of ranks takes up of it, or of each rank's part, and that they go on with equal
    weights."""
    module = model()
    optimizer, local = _made(module, scheme, settings)
    if parts:
        folder = os.path.join(folder, "parts")
        dcp.load({"gradwire": gradwire.torch.Checkpoint(local, folder)}, checkpoint_id=folder)
    else:
        local.load_state_dict(torch.load(os.path.join(folder, "checkpoint.pt"), weights_only=True))
    told = _told(local)
    _steps(module, optimizer, local, rank, range(5, 6))
    return told, weights(module), local.rounds


def _told(local):
    saved = local.state_dict()
    vectors = {key: saved[key] for key in ("outer", "outer_momentum", "weights", "residual", "average", "estimate") if key in saved}
    return {
        key: numpy.concatenate([one[name].numpy().ravel() for name in sorted(one)]) for key, one in vectors.items()
    }


def refused(rank, world_size):
    """What is said of bad input, and that all ranks go on after it."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    other = torch.optim.SGD(model().parameters(), lr=0.1)
    make = gradwire.torch.DiLoCo
    calls = {
        "steps": lambda: make(module, optimizer, steps=0),
        "half a step": lambda: make(module, optimizer, steps=1.5),
        "stranger": lambda: make(module, other),
        "no optimizer": lambda: make(module, module),
        "rate": lambda: make(module, optimizer, outer={"learning_rate": 0}),
        "momentum": lambda: make(module, optimizer, outer={"momentum": 1}),
        "word": lambda: make(module, optimizer, outer={"momentum": "0.9"}),
        "nesterov": lambda: make(module, optimizer, outer={"nesterov": True}),
        "unknown": lambda: make(module, optimizer, outer={"lr": 0.7}),
        "inner": lambda: make(module, optimizer, inner="mine"),
        "twice": lambda: make(module, optimizer, "dgc", outer=NESTEROV),
        "signs": lambda: make(module, optimizer, "signsgd", magnitude="unit"),
        "signs and momentum": lambda: make(
            module, optimizer, "signsgd", magnitude="unit", outer={"learning_rate": 0.01, "momentum": 0.9}
        ),
        "signs by a rule": lambda: make(
            module, optimizer, "topk", rules=[{"match": "*.bias", "scheme": {"kind": "signsgd", "magnitude": "unit"}}]
        ),
        "wrapped": lambda: make(DistributedDataParallel(module), optimizer),
        "disagree": lambda: make(module, optimizer, steps=2 + rank, timeout=30),
        "doubles": lambda: make(module.double(), torch.optim.SGD(module.parameters(), lr=0.1), timeout=30),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
        except gradwire.Error as error:
            said[name] = f"{type(error).__name__}: {error}"
    state = gradwire.torch.State("dense", timeout=30)
    module = model()
    local = make(module, torch.optim.SGD(module.parameters(), lr=0.1), steps=1, timeout=30)
    fits = local.state_dict()
    short = {**fits["outer"], "2.bias": torch.zeros(1)}
    for name, saved in {
        "saved": gradwire.torch.Averager("dense", timeout=30).state_dict(),
        "short": {**fits, "outer": short},
        "groups": {**fits, "optimizer": {"param_groups": []}},
        "no optimizer saved": {name: one for name, one in fits.items() if name != "optimizer"},
        "not done": {**fits, "done": None},
    }.items():
        try:
            local.load_state_dict(saved)
        except gradwire.Error as error:
            said[name] = f"{type(error).__name__}: {error}"
    state.close()
    unchanged = all(torch.equal(one, local.state_dict()["outer"][name]) for name, one in fits["outer"].items())
    return said, unchanged and local.step() is not None


def not_finite(rank, world_size):
    """Rank 1's weights are NaN at the end of a round, and are mended for the next call."""
    module = model()
    optimizer, local = _made(module, "topk", {"ratio": 0.1, "steps": 2})
    _steps(module, optimizer, local, rank, range(3))
    kept = module[2].weight[1, 2].item()
    if rank == 1:
        with torch.no_grad():
            module[2].weight[1, 2] = float("nan")
    now = weights(module)
    try:
        local.step()
    except gradwire.NonFiniteError as error:
        found = str(error), error.rank, error.parameter
    unchanged = numpy.array_equal(now, weights(module), equal_nan=True)
    if rank == 1:
        with torch.no_grad():
            module[2].weight[1, 2] = kept
    return *found, unchanged, local.step() is not None, local.rounds, weights(module)


def unfrozen(rank, world_size):
    """A layer that is not trained, and then is: its values after a round, and what the next round says."""
    module = model()
    module[0].requires_grad_(False)
    if rank:
        with torch.no_grad():  # Rank 0's are taken.
            module[0].weight.add_(1.0)
    optimizer, local = _made(module, "dense", {"steps": 1})
    _steps(module, optimizer, local, rank, range(1))
    kept = module[0].weight.detach().numpy().copy()
    module[0].requires_grad_(True)
    try:
        _steps(module, optimizer, local, rank, range(1, 2))
    except gradwire.Error as error:
        return kept, weights(module), str(error)
    return None


def lost(rank, world_size):
    """Rank 1 is gone before the end of a round."""
    module = model()
    optimizer, local = _made(module, "topk", {"ratio": 0.1, "steps": 2})
    _steps(module, optimizer, local, rank, range(3))
    if rank == 1:
        os.kill(os.getpid(), jobs.KILL)
    try:
        _steps(module, optimizer, local, rank, range(3, 4))
    except gradwire.PeerLostError as error:
        return error.rank, str(error)
    return None


class Branches(torch.nn.Module):
    """A layer, and a branch that rank 1 does not use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.branch = torch.nn.Linear(64, 10), torch.nn.Linear(64, 10)

    def forward(self, inputs):
        output = self.stem(inputs)
        return output + self.branch(inputs) if self.used else output


def uneven(rank, world_size, steps):
    """The optimizers of two ranks have momentum of different parameters until the last step: each one's before and
    after the last exchange."""
    module = Branches()
    optimizer, local = _made(module, "dense", {"steps": 1, "inner": "averaged"})
    for step in range(steps):
        module.used = rank == 0 or step == 3
        optimizer.zero_grad()
        backward(module, rank, step)
        optimizer.step()
        before = _momenta(module, optimizer)
        local.step()
    return before, _momenta(module, optimizer), weights(module)


def _momenta(module, optimizer):
    states = {name: optimizer.state.get(one, {}) for name, one in module.named_parameters()}
    return {name: one["momentum_buffer"].numpy().copy() for name, one in states.items() if one}


def in_groups(rank, world_size):
    """DDP within each pair, local steps across: this rank's weights at the end of a round."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    ddp = DistributedDataParallel(model(), process_group=pairs[rank // 2])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    local = gradwire.torch.DiLoCo(
        ddp, optimizer, "topk", ratio=0.1, steps=2, process_group=across[rank % 2], timeout=30
    )
    _steps(ddp, optimizer, local, rank, range(4))
    return weights(ddp), local.rounds


def program(rank, world_size, text):
    """The page's program: bytes of its rounds, and the weights at their end."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    names = {"gradwire": gradwire, "torch": torch, "model": module}
    names["optimizer"] = torch.optim.AdamW(module.parameters(), lr=1e-2)
    names["batches"] = [batch(rank, step) for step in range(32)]
    exec(compile(text, "page", "exec"), names)
    return names["diloco"].rounds, names["diloco"].traffic.bits_per_parameter, weights(module)


def replayed(rank, world_size, folder, settings, steps):
    """Steps 4 to 9 of a run of the native trainer from its checkpoint, with its gradients: the bytes of each
    round and what the trainer sent, and what is left beside what the trainer has."""
    from safetensors.torch import load_file

    def checkpoint(step):
        files = Path(folder) / "checkpoints" / f"step-{step:08}"
        kept = {}
        for file in ("model", "optimizer", "rank-0000"):
            kept.update(load_file(files / f"{file}.safetensors"))
        flat = {"outer": torch.cat([kept[name].reshape(-1) for name in names])}
        entries = {name: f"exchange/{name}" for name in ("residual", "average", "estimate")}
        entries["outer_momentum"] = "outer/momentum"
        flat.update({name: kept[entry] for name, entry in entries.items() if entry in kept})
        return flat

    def gradients(step):
        kept = load_file(Path(folder) / "gradients" / f"step-{step:06}.safetensors")
        return {name: one for name, one in kept.items() if not name.startswith("residual/")}

    first = gradients(4)
    names = sorted(first)
    module = torch.nn.Module()
    for number, name in enumerate(names):
        module.register_parameter(f"p{number:03}", torch.nn.Parameter(torch.zeros_like(first[name])))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    _, local = _made(module, "topk", {**settings, "steps": 3}, optimizer)
    saved = local.state_dict()
    sizes = [first[name].numel() for name in names]
    for key, flat in checkpoint(3).items():
        saved[key] = dict(zip(saved["outer"], flat.split(sizes)))
    local.load_state_dict(saved)
    sent = []
    for step in range(4, 10):
        for one, gradient in zip(module.parameters(), (gradients(step)[name] for name in names)):
            one.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = steps[step][0]
        optimizer.step()
        traffic = local.step()
        if traffic is not None:
            sent.append((traffic.wire_bytes, steps[step][1]))
    told, theirs = _told(local), checkpoint(9)
    return sent, {name: (told[name], one.numpy()) for name, one in theirs.items()}


def sharded_in_groups(rank, world_size):
    """`fully_shard` within each pair, local steps across: the weights at the end, and those of
    DistributedDataParallel within each pair with the same rounds."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"))
    module = model()
    fully_shard(module, mesh=mesh["within"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    settings = {"outer": NESTEROV, "steps": 2, "inner": "averaged", "process_group": mesh.get_group("across")}
    _, local = _made(module, "dense", settings, optimizer)
    ddp = DistributedDataParallel(model(), process_group=mesh.get_group("within"))
    other, beside = _made(ddp, "dense", settings)
    for step in range(4):
        for one, its, rounds in [(module, optimizer, local), (ddp, other, beside)]:
            its.zero_grad()
            backward(one, rank, step)
            its.step()
            rounds.step()
    whole = [one.full_tensor().detach().numpy().ravel() for one in module.parameters()]
    return numpy.concatenate(whole), weights(ddp), local.rounds
