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
        local.reduce_()
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


def _mean(value, world_size):
    """The mean over ranks: added up in order of rank, times 1/N."""
    given = [torch.empty_like(value) for _ in range(world_size)]
    dist.all_gather(given, value.contiguous())
    total = given[0]
    for one in given[1:]:
        total = total + one
    return total * numpy.float32(1 / world_size)


def streamed(rank, world_size, settings, count, kind):
    """This rank's weights and the outer ones after each step, the last of which is told to be; whether it ended with
    equal statistics of batch norm."""
    module = {"plain": model, "normed": normed}[kind]()
    scheme, settings = settings
    optimizer, local = _made(module, scheme, {"bucketing": "parameter", **settings})
    found, losses = [], []
    for step in range(count):
        optimizer.zero_grad()
        losses.append(backward(module, rank, step))
        local.reduce_()
        optimizer.step()
        local.step(last=step == count - 1)
        found.append((weights(module), local._outer.numpy().copy()))
    return found, losses, [one.numpy().copy() for one in module.buffers()], local.wire_bytes, local.rounds


def streamed_plainly(rank, world_size, fragments, settings, count):
    """The same arithmetic by PyTorch alone: post-local SGD (Lin et al. 2020), then algorithm 2 of Streaming DiLoCo
    (Douillard et al. 2025)."""
    module = model()
    named = dict(module.named_parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    steps, after, outer = settings["steps"], settings["after"], settings["outer"]
    delay, mix = outer.get("delay", 0), outer.get("mix", 0.5) if outer.get("delay") else 0
    away, found = None, []

    def update(fragment, mix):
        for name in fragment:
            rules[name].step()
            with torch.no_grad():
                named[name].copy_(named[name] * numpy.float32(mix) + kept[name] * numpy.float32(1 - mix))

    for step in range(1, count + 1):
        if step == after + 1:
            kept = {name: one.detach().clone() for name, one in named.items()}
            rules = {name: torch.optim.SGD([one], lr=0.7, momentum=0.9, nesterov=True) for name, one in kept.items()}
        optimizer.zero_grad()
        backward(module, rank, step - 1)
        if step <= after:
            for one in named.values():
                one.grad = _mean(one.grad, world_size)
        optimizer.step()
        at = step - after
        if away and (step == count or at == away[1]):
            update(away[0], mix)
            away = None
        due = [one for p, one in enumerate(fragments, 1) if at > 0 and (at - p * steps // len(fragments)) % steps == 0]
        for fragment in fragments if step == count and at > 0 else due:
            for name in fragment:
                kept[name].grad = _mean(kept[name] - named[name].detach(), world_size)
            if step == count or not delay:
                update(fragment, 0)
            else:
                away = fragment, at + delay
        found.append(weights(module))
    return found


def post_local(rank, world_size):
    """Three steps that exchange gradients, of which the first has one that is not finite and is left out, and one that
    does not; the two good ones with an Averager, too. Weights and bytes of both after each of these, residuals before and
    after the last step, what a call in the wrong order says, and the error of the first step."""
    settings = {"ratio": 0.1}
    module, other = model(), model()
    optimizer, local = _made(module, "topk", {**settings, "after": 3, "steps": 2})
    beside, averager = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.5), gradwire.torch.Averager("topk", timeout=30, **settings)
    try:
        local.step() if rank == 1 else local.reduce_()
    except gradwire.Error as error:
        said = f"{type(error).__name__}: {error}"
    backward(module, rank, 0)
    if rank == 1:
        module[0].weight.grad[1, 2] = float("nan")
    now = module[2].weight.grad.clone()
    try:
        local.reduce_()
    except gradwire.NonFiniteError as error:
        spoilt = error.rank, error.parameter, torch.equal(now, module[2].weight.grad)
    local.step()
    found = []
    for step in range(2):
        for one in (optimizer, beside):
            one.zero_grad()
        backward(module, rank, step)
        backward(other, rank, step)
        sent, expected = local.reduce_(), averager.reduce_(other)
        optimizer.step()
        beside.step()
        assert local.step() is None
        found.append((weights(module), weights(other), sent.wire_bytes, expected.wire_bytes))
    residual = _told(local)["residual"]
    _steps(module, optimizer, local, rank, range(2, 3))
    return found, residual, _told(local)["residual"], said, spoilt, local.reduce_()


def rates(rank, world_size, scheme):
    """What is said of groups of parameters with learning rates of their own where gradients are exchanged first."""
    module = model()
    optimizer = torch.optim.SGD([{"params": [one], "lr": 0.1 + number} for number, one in enumerate(module.parameters())])
    _, local = _made(module, scheme, {"after": 1, "steps": 1}, optimizer)
    try:
        return _steps(module, optimizer, local, rank, range(2)) and None
    except gradwire.InputError as error:
        return str(error)


def late_and_not_finite(rank, world_size):
    """Rank 1's weights are NaN when they leave, and are mended while they are on their way: what is said and by which step,
    whether weights have changed, and whether the next exchange brings ranks together."""
    module = model()
    outer = {"fragments": 2, "delay": 1}
    optimizer, local = _made(module, "topk", {"ratio": 0.1, "steps": 4, "outer": outer, "bucketing": "parameter"})
    _steps(module, optimizer, local, rank, range(1))
    kept = module[0].weight[1, 2].item()
    if rank == 1:
        with torch.no_grad():
            module[0].weight[1, 2] = float("nan")
    local.step()
    if rank == 1:
        with torch.no_grad():
            module[0].weight[1, 2] = kept
    now, found = weights(module), []
    for call in (gradwire.torch.gather_state, gradwire.torch.DiLoCo.step):
        try:
            call(local)
        except gradwire.NonFiniteError as error:
            found.append((error.rank, error.parameter))
    unchanged = numpy.array_equal(now, weights(module))
    again = [local.step() is not None for _ in range(2)]
    local.step(last=True)
    return found, unchanged, again, weights(module)


def beside(rank, world_size):
    """Rank 1 comes to the exchange only when rank 0 has gone on to its next step: weights after it."""
    module = model()
    optimizer, local = _made(module, "dense", {"steps": 3, "outer": {"delay": 2}})
    _steps(module, optimizer, local, rank, range(2))
    if rank == 1:
        dist.barrier()
    _steps(module, optimizer, local, rank, range(2, 4))
    if rank == 0:
        dist.barrier()
    return _steps(module, optimizer, local, rank, range(4, 5))[1], local._outer.numpy().copy()


def one_refuses(rank, world_size):
    """A layer is not frozen on rank 1 alone when an exchange begins: what each rank says a step later, and that they go on."""
    module = model()
    module[0].requires_grad_(False)
    outer = {"fragments": 2, "delay": 1}
    optimizer, local = _made(module, "dense", {"steps": 4, "outer": outer, "bucketing": "parameter"})
    _steps(module, optimizer, local, rank, range(1))
    module[0].requires_grad_(rank == 1)
    local.step()
    module[0].requires_grad_(False)
    try:
        local.step()
    except gradwire.AbortedError as error:
        said = str(error)
    local.step(last=True)
    return said, weights(module)


def in_fragments(rank, world_size):
    """The optimizer's momentum, averaged a fragment at a time: that of each parameter after each exchange."""
    module = model()
    settings = {"steps": 4, "outer": {"fragments": 2}, "inner": "averaged", "bucketing": "parameter"}
    optimizer, local = _made(module, "dense", settings)
    found = []
    for step in range(2):
        _steps(module, optimizer, local, rank, range(2 * step, 2 * step + 2))
        found.append(_momenta(module, optimizer))
    return found


def moved(rank, world_size, settings, folder, until):
    """What this number of ranks takes up of a file, if there is one, what it saves after some more steps, and the weights
    that it ends with."""
    module, file = model(), Path(folder) / "checkpoint.pt"
    optimizer, local = _made(module, "topk", {"ratio": 0.05, **settings})
    if file.exists():
        local.load_state_dict(torch.load(file, weights_only=True))
    taken = _told(local)
    dist.barrier()
    _steps(module, optimizer, local, rank, until)
    gathered = gradwire.torch.gather_state(local)
    if rank == 0:
        torch.save(gathered, file)
    told = _told(local)
    local.step(last=True)
    return taken, told, weights(module)


def resumed(rank, world_size, scheme, settings, cut, folder, until=7):
    """So many steps at once, and with a checkpoint after `cut` of them; by default in rounds of three."""
    whole = normed()
    optimizer, local = _made(whole, scheme, settings)
    _steps(whole, optimizer, local, rank, range(until))
    made = local.rounds
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
    _steps(again, optimizer, local, rank, range(4))  # All of it is forgotten, and a mean on its way.
    saved = torch.load(file, weights_only=True)
    local.load_state_dict(saved)
    local_state = saved["ranks"][0]
    _steps(again, optimizer, local, rank, range(cut, until))
    named = {name: one.numpy().copy() for name, one in again.state_dict().items()}
    assert local.rounds == made
    return {name: one.numpy().copy() for name, one in whole.state_dict().items()}, named, made, "mean" in local_state


def returned(rank, world_size):
    """Four steps twice from one saved state, in the middle of a round, with batch norm's tensors replaced in between: what
    weights, statistics and momentum came to each time."""
    module = normed()
    optimizer, local = _made(module, "dense", {"steps": 3})
    _steps(module, optimizer, local, rank, range(2))
    module.double().float()
    saved = local.state_dict()
    ends = []
    for _ in range(2):
        local.load_state_dict(saved)
        _steps(module, optimizer, local, rank, range(2, 6))
        statistics = module[1].running_mean.numpy().copy()
        ends.append((weights(module), statistics, _momentum(optimizer, module)))
    return ends


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
    keys = ("outer", "outer_momentum", "weights", "mean", "residual", "average", "estimate")
    vectors = {key: saved[key] for key in keys if key in saved}
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
        "after": lambda: make(module, optimizer, after=-1),
        "half a fragment": lambda: make(module, optimizer, outer={"fragments": 1.5}),
        "no fragment": lambda: make(module, optimizer, outer={"fragments": 0}),
        "many fragments": lambda: make(module, optimizer, steps=3, outer={"fragments": 4}),
        "one bucket": lambda: make(module, optimizer, outer={"fragments": 2}, timeout=30),
        "early": lambda: make(module, optimizer, outer={"delay": -1}),
        "late": lambda: make(module, optimizer, steps=5, outer={"fragments": 2, "delay": 2}),
        "too late": lambda: make(module, optimizer, steps=2, outer={"fragments": 2, "delay": 1}),
        "mix": lambda: make(module, optimizer, outer={"delay": 1, "mix": 1}),
        "waits": lambda: make(module, optimizer, inner="averaged", outer={"delay": 1}),
        "norm": lambda: make(module, optimizer, outer={"fragments": 2}, clip_norm=1.0, bucketing="parameter"),
        "momentum after": lambda: make(module, optimizer, "dgc", after=2),
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
        "disagree on gradients": lambda: make(module, optimizer, after=rank, timeout=30),
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
        "no rounds": {**fits, "rounds": None},
        "gradients": {**fits, "done": -2},
        "fragments": {**fits, "fragments": 2},
        "no such fragment": {**fits, "taken": 1},
        "no due": {**fits, "mean": fits["outer"]},
        "short mean": {**fits, "mean": short, "due": 2},
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


def lost(rank, world_size, settings):
    """Rank 1 is gone before the end of a round."""
    module = model()
    optimizer, local = _made(module, "topk", {"ratio": 0.1, **settings})
    _steps(module, optimizer, local, rank, range(3))
    if rank == 1:
        os.kill(os.getpid(), jobs.KILL)
    try:
        _steps(module, optimizer, local, rank, range(3, 8))
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


def replayed(rank, world_size, folder, settings, steps, begin, seen):
    """The steps behind `begin` of a run of the native trainer from its checkpoint, with its gradients: the bytes of each
    exchange, and after each step of `seen` what there is beside what the trainer has. `steps` has each one's learning rate."""
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

    first = gradients(begin + 1)
    names = sorted(first)
    module = torch.nn.Module()
    for number, name in enumerate(names):
        module.register_parameter(f"p{number:03}", torch.nn.Parameter(torch.zeros_like(first[name])))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    _, local = _made(module, settings.pop("scheme"), settings, optimizer)
    saved = local.state_dict()
    sizes = [first[name].numel() for name in names]
    for key, flat in checkpoint(begin).items():
        saved[key] = dict(zip(saved["outer"], flat.split(sizes)))
    # Local steps begin at a round's end, or some steps that exchange gradients are behind them.
    saved["weights"] = saved["outer"]
    saved["done"] = min(0, begin - settings.get("after", 0))
    saved["step"] = begin if saved["done"] else begin // settings["steps"]
    local.load_state_dict(saved)
    sent, found = [], []
    for step in range(begin + 1, len(steps) + 1):
        for one, gradient in zip(module.parameters(), (gradients(step)[name] for name in names)):
            one.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = steps[step]
        before = local.wire_bytes
        gave = local.reduce_()
        optimizer.step()
        gave = local.step(last=step == len(steps)) or gave
        if gave:
            # In the last step a mean may have come before the step's own.
            earlier = local.wire_bytes - before - gave.wire_bytes
            sent += [one for one in (earlier, gave.wire_bytes) if one]
        if step in seen:
            told, theirs = _told(local), checkpoint(step)
            found.append({name: (told[name], one.numpy()) for name, one in theirs.items()})
    return sent, found


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
