"""PyTorch's features beside the hook: each is a few steps of training, as a process of two does them.

A feature is a function `(rank, hook)` that trains and returns what it trained: `hook(ddp)` registers one
or does nothing, and is called once for each wrapper.
"""

import contextlib
import copy
import functools
import multiprocessing
import os
import pickle
import time
import warnings

import jobs
import numpy
import torch
import torch.distributed as dist
from jobs import DEVICE, backward, batch, gradients, model, weights
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import gradwire.fsdp
import gradwire.torch

STEPS = 3


def _train(ddp, rank, forward=None, optimizer=None, context=contextlib.nullcontext):
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), lr=0.2)
    for step in range(STEPS):
        optimizer.zero_grad()
        with context():
            inputs, labels = batch(rank, step)
            output = (ddp if forward is None else forward)(inputs)
            loss = torch.nn.functional.cross_entropy(output.float(), labels)
        loss.backward()
        optimizer.step()


def _wrapped(module, hook, bucket_cap_mb=0.2, **arguments):
    ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, **arguments)
    hook(ddp)
    return ddp


def accumulated(rank, hook):
    ddp = _wrapped(model(), hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    for step in range(STEPS):
        optimizer.zero_grad()
        with ddp.no_sync():
            backward(ddp, rank, 2 * step)
        backward(ddp, rank, 2 * step + 1)
        optimizer.step()
    return [ddp]


class Branches(torch.nn.Module):
    """Every second call leaves a branch out."""

    def __init__(self):
        super().__init__()
        self.stem, self.branch = model(), torch.nn.Linear(64, 10)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        output = self.stem(inputs)
        return output + self.branch(inputs) if self.calls % 2 else output


def unused(rank, hook):
    ddp = _wrapped(Branches(), hook, find_unused_parameters=True)
    _train(ddp, rank)
    return [ddp]


def static_graph(rank, hook):
    ddp = _wrapped(model(), hook, static_graph=True)
    _train(ddp, rank)
    return [ddp]


def static_graph_of_types(rank, world_size):
    """What backward says of a model of several types whose graph is said to be static."""
    module = model()
    module[4].to(torch.bfloat16)
    ddp = DistributedDataParallel(module, static_graph=True)
    state = gradwire.torch.State("topk", parameters=ddp, timeout=30)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
        output = ddp(batch(rank, 0)[0])
    return said_by(lambda: output.float().square().mean().backward())


def bucket_views(rank, hook):
    ddp = _wrapped(model(), hook, gradient_as_bucket_view=True)
    _train(ddp, rank)
    return [ddp]


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model()

    def forward(self, inputs):
        first, rest = self.inner[:2], self.inner[2:]
        return rest(torch.utils.checkpoint.checkpoint(first, inputs, use_reentrant=False))


def checkpointed(rank, hook):
    ddp = _wrapped(Checkpointed(), hook)
    _train(ddp, rank)
    return [ddp]


def autocast(rank, hook):
    ddp = _wrapped(model(), hook)
    kind = torch.device(DEVICE).type
    _train(ddp, rank, context=lambda: torch.autocast(kind, dtype=torch.bfloat16))
    return [ddp]


def compiled_model(rank, hook):
    ddp = _wrapped(torch.compile(model(), backend="aot_eager"), hook, bucket_cap_mb=25)
    _train(ddp, rank)
    return [ddp]


def compiled_wrapper(rank, hook):
    ddp = _wrapped(model(), hook, bucket_cap_mb=25)
    _train(ddp, rank, forward=torch.compile(ddp, backend="aot_eager"))
    return [ddp]


def tied(rank, hook):
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    module[2].weight = module[0].weight
    ddp = _wrapped(module, hook)
    _train(ddp, rank, forward=lambda inputs: ddp(inputs)[:, :10])
    return [ddp]


def several_models(rank, hook):
    first, second = (_wrapped(model(), hook) for _ in range(2))
    both = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.2)
    _train(first, rank, lambda inputs: first(inputs) + second(inputs.flip(1)), both)
    return [first, second]


def adversaries(rank, hook):
    """A generator and a discriminator, in turns."""
    generator = _wrapped(torch.nn.Linear(64, 64), hook)
    judge = _wrapped(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 1)), hook)
    making = torch.optim.SGD(generator.parameters(), lr=0.1)
    judging = torch.optim.SGD(judge.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, _ = batch(rank, step)
        judging.zero_grad()
        (judge(generator(inputs).detach()).mean() - judge(inputs).mean()).backward()
        judging.step()
        making.zero_grad()
        for one in judge.parameters():
            one.requires_grad_(False)
        (-judge.module(generator(inputs)).mean()).backward()
        for one in judge.parameters():
            one.requires_grad_(True)
        making.step()
    return [generator, judge]


def divided_optimizer(rank, hook):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = _wrapped(model(), hook)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    _train(ddp, rank, optimizer=optimizer)
    return [ddp]


def forked_loaders(rank, hook):
    ddp = _wrapped(model(), hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    backward(ddp, rank, 0)  # The hook's thread runs when the loader forks.
    inputs, labels = (one.cpu() for one in batch(rank, 1))
    loader = DataLoader(
        TensorDataset(inputs, labels), batch_size=8, num_workers=1, multiprocessing_context="fork"
    )
    process = multiprocessing.current_process()
    process._config["daemon"] = False  # Else it may have no children.
    try:
        for some, classes in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ddp(some.to(DEVICE)), classes.to(DEVICE)).backward()
            optimizer.step()
    finally:
        process._config["daemon"] = True
    return [ddp]


class Embedded(torch.nn.Module):
    """Two embeddings whose gradients are sparse, and a layer."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Embedding(50, 16, sparse=True)
        self.second = torch.nn.EmbeddingBag(40, 16, sparse=True)
        self.head = torch.nn.Linear(16, 10)

    def forward(self, inputs):
        rows = (inputs.abs() * 10).long() % 40
        return self.head(self.first(rows[:, 0]) + self.second(rows))


def sparse(rank, hook):
    torch.manual_seed(0)
    ddp = _wrapped(Embedded().to(DEVICE), hook)
    _train(ddp, rank)
    assert ddp.module.first.weight.grad.is_sparse
    return [ddp]


def joined(rank, hook):
    """Rank 1 has fewer steps."""
    ddp = _wrapped(model(), hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    with ddp.join():
        for step in range(4 - 2 * rank):
            optimizer.zero_grad()
            backward(ddp, rank, step)
            optimizer.step()
    return [ddp]


def compare(rank, world_size, feature):
    """The weights after a feature without a hook, with `dense`, and with `topk`."""

    def register(scheme, ddp, **settings):
        state = gradwire.torch.State(scheme, timeout=30, parameters=ddp, **settings)
        ddp.register_comm_hook(state, gradwire.torch.hook)
        states.append(state)

    found, states = [], []
    for hook in [
        lambda _: None,
        functools.partial(register, "dense"),
        functools.partial(register, "topk", ratio=0.05, bucketing="parameter"),
    ]:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(numpy.concatenate([weights(one) for one in globals()[feature](rank, hook)]))
    for state in states:
        state.close()
    return found


def said_by(call):
    """The words and the type of what a call raises."""
    try:
        call()
    except jobs.RAISED as error:
        return str(error)
    return None


def refused(rank, world_size, what):
    """What is said of something that does not go together with the hook."""
    if what == "compiled autograd":
        return said_by(lambda: gradwire.torch.hook(state_of(), (torch.zeros(3), torch.zeros(3))))
    if what == "another hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        ddp = DistributedDataParallel(model())
        ddp.register_comm_hook(None, allreduce_hook)  # As `mixed_precision=` does.
        return said_by(lambda: gradwire.torch.State("topk", parameters=ddp, timeout=30))
    if what == "optimizer in backward":
        from torch.distributed.optim import _apply_optimizer_in_backward

        module = model()
        _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.2})
        ddp = DistributedDataParallel(module)
        return said_by(lambda: gradwire.torch.State("topk", parameters=ddp, timeout=30))
    assert what == "join"
    ddp = DistributedDataParallel(model())
    state = gradwire.torch.State("dense", parameters=ddp, timeout=30)
    ddp.register_comm_hook(state, gradwire.torch.hook)

    def uneven():
        with ddp.join(divide_by_initial_world_size=False):
            backward(ddp, rank, 0)

    return said_by(uneven)


def state_of():
    return gradwire.torch.State("dense", timeout=30)


def compiled_autograd(rank, world_size):
    """What backward raises where DistributedDataParallel leaves the reduction to compiled autograd."""
    torch._dynamo.config.optimize_ddp = "python_reducer"
    try:
        ddp, state = jobs.wrapped("topk", timeout=30)
        compiled = torch.compile(ddp, backend="aot_eager")

        def step():
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
                backward(compiled, rank, 0)

        return said_by(step)
    finally:
        torch._dynamo.config.optimize_ddp = True
        torch._dynamo.reset()


def sparse_in_an_averager(rank, world_size):
    """The mean of a sparse gradient, and the ranks' own, as dense ones."""
    torch.manual_seed(0)
    module = Embedded().to(DEVICE)
    inputs, labels = batch(rank, 0)
    torch.nn.functional.cross_entropy(module(inputs), labels).backward()
    own = [one.grad.to_dense().cpu().numpy() for one in module.parameters()]
    averager = gradwire.torch.Averager("dense", timeout=30)
    averager.reduce_(module)
    assert module.first.weight.grad.is_sparse
    return own, [one.grad.to_dense().cpu().numpy() for one in module.parameters()]


def frozen(rank, world_size, named):
    """Two steps, then a part of the model is frozen and all is wrapped anew: the residuals of what is
    left before and after, and what is said."""

    def wrap():
        ddp = DistributedDataParallel(module, bucket_cap_mb=0.2)
        names = module.named_parameters() if named else None
        state = gradwire.torch.State("topk", ratio=0.01, parameters=names, timeout=30)
        ddp.register_comm_hook(state, gradwire.torch.hook)
        return ddp, state

    module = model()
    ddp, state = wrap()
    for step in range(2):
        backward(ddp, rank, step)
    saved = state.state_dict()
    state.close()
    for one in module[0].parameters():
        one.requires_grad_(False)
    ddp, state = wrap()
    state.load_state_dict(saved)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ddp.zero_grad()
        words = said_by(lambda: backward(ddp, rank, 2))
    if words is not None:
        return words
    mean = {name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None}
    plain = model()
    for one in plain[0].parameters():
        one.requires_grad_(False)
    backward(plain, rank, 2)
    own = {name: one.grad for name, one in plain.named_parameters() if one.grad is not None}
    left = state.state_dict()["residual"]
    said = [str(one.message) for one in caught if "another model" in str(one.message)]
    numbers = [
        {name: part[name].cpu().numpy().ravel() for name in own}
        for part in (saved["residual"], own, mean, left)
    ]
    return said, sorted(left), numbers


def scaled_conservation(rank, world_size, scales):
    """Steps whose scale changes: of each element the sums of what was given and of what came, both
    without the scale, and the residual."""

    class Scaler:
        asked = 0

        def get_scale(self):
            self.asked += 1
            return self.now

    scaler = Scaler()
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.2)
    state = gradwire.torch.State("topk", ratio=0.05, parameters=ddp, scaler=scaler, timeout=30)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    plain = model()
    given, came = 0.0, 0.0
    for step, scale in enumerate(scales):
        scaler.now = scale
        plain.zero_grad()
        ddp.zero_grad()
        backward(plain, rank, step)
        inputs, labels = batch(rank, step)
        (torch.nn.functional.cross_entropy(ddp(inputs), labels) * scale).backward()
        given = given + gradients(plain)
        came = came + gradients(ddp) / scale
    residual = state.state_dict()["residual"]
    left = [residual[name].numpy().ravel() for name, _ in ddp.module.named_parameters()]
    return given, came, numpy.concatenate(left), scaler.asked


def scaler_skips(rank, world_size):
    """Rank 1 alone has an infinite gradient in the second step: scales, and whether weights moved."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.2)
    scaler = torch.amp.GradScaler(torch.device(DEVICE).type, init_scale=1024.0)
    state = gradwire.torch.State("topk", ratio=0.1, parameters=ddp, scaler=scaler, timeout=30)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    found = []
    for step in range(3):
        before = weights(ddp)
        inputs, labels = batch(rank, step)
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        loss = loss * float("inf") if (rank, step) == (1, 1) else loss
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), not numpy.array_equal(before, weights(ddp))))
    return found, weights(ddp), state.step


def scaler_off(rank, world_size):
    """Rank 1 alone has an infinite gradient, and the scaler is switched off: what backward says, and whether weights
    stayed."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.2)
    scaler = torch.amp.GradScaler(torch.device(DEVICE).type, enabled=False)
    state = gradwire.torch.State("topk", ratio=0.1, parameters=ddp, scaler=scaler, timeout=30)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    before = weights(ddp)
    inputs, labels = batch(rank, 0)
    loss = torch.nn.functional.cross_entropy(ddp(inputs), labels) * (float("inf") if rank else 1.0)
    try:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    except RuntimeError as error:  # PyTorch's, around the hook's.
        return str(error), numpy.array_equal(before, weights(ddp))
    return None


def shared_momentum(rank, world_size):
    """Of three steps this rank's gradient, and what came of it with a momentum that ranks share."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.2)
    state = gradwire.torch.State("dense", feedback={"momentum": 0.5}, parameters=ddp, timeout=30)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    plain, steps = model(), []
    for step in range(3):
        plain.zero_grad()
        ddp.zero_grad()
        backward(plain, rank, step)
        backward(ddp, rank, step)
        steps.append((gradients(plain), gradients(ddp)))
    return steps


def names_of_compiled(rank, world_size):
    """The names under which residuals of a compiled model are saved, and whether the plain model goes on
    from them as the compiled one does."""
    found, saved = [], None
    for wrap in (lambda module: torch.compile(module, backend="eager"), lambda module: module):
        ddp = DistributedDataParallel(wrap(model()))
        state = gradwire.torch.State("topk", ratio=0.05, parameters=ddp, timeout=30)
        ddp.register_comm_hook(state, gradwire.torch.hook)
        backward(ddp, rank, 0)
        if saved is None:
            saved = state.state_dict()
        else:
            state.load_state_dict(saved)
        ddp.zero_grad()
        backward(ddp, rank, 1)
        found.append(gradients(ddp))
    torch._dynamo.reset()
    plain = [name for name, _ in model().named_parameters()]
    return list(saved["residual"]), sorted(plain), *found


def leaves_while_others_join(rank, world_size, timeout):
    """Rank 1 has joined and is killed there, while rank 0 still trains: what rank 0 meets."""
    ddp, state = jobs.wrapped("topk", timeout=timeout)
    begin, errors = time.monotonic(), None
    try:
        with ddp.join():
            for step in range(2 if rank == 1 else 6):
                backward(ddp, rank, step)
                if rank == 0 and step == 3:
                    time.sleep(0.5)
            if rank == 1:
                os.kill(os.getpid(), jobs.KILL)
    except jobs.RAISED as error:
        errors = str(error)
    return errors, time.monotonic() - begin


def other_world(rank, world_size, saved):
    """Loads the states of another number of ranks: this rank's residual."""
    averager = gradwire.torch.Averager("topk", ratio=0.01, timeout=30)
    averager.load_state_dict(saved)
    parameter = torch.nn.Parameter(torch.zeros(100, device=DEVICE))
    parameter.grad = torch.zeros_like(parameter)
    averager.reduce_([("weight", parameter)])
    left = averager.state_dict()["residual"]["weight"].numpy()
    return left, parameter.grad.cpu().numpy(), averager.step


def remade(rank, world_size, folder):
    """Groups are destroyed and made anew, with a state that goes on: weights as if they were not."""

    def steps(numbers, module, saved):
        ddp = DistributedDataParallel(module)
        state = gradwire.torch.State("topk", ratio=0.05, parameters=ddp, timeout=30)
        ddp.register_comm_hook(state, gradwire.torch.hook)
        if saved is not None:
            state.load_state_dict(saved)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
        for step in numbers:
            optimizer.zero_grad()
            backward(ddp, rank, step)
            optimizer.step()
        saved = state.state_dict()
        state.close()
        return saved

    whole, parts = model(), model()
    steps(range(4), whole, None)
    saved = steps(range(2), parts, None)
    dist.barrier()
    dist.destroy_process_group()
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    steps(range(2, 4), parts, saved)
    return weights(whole), weights(parts)


def _divided():
    from torch.distributed.fsdp import fully_shard

    module = model()
    for layer in (module[0], module[4]):
        fully_shard(layer)
    return fully_shard(module)


def _sharded(scheme, **settings):
    module = _divided()
    if scheme is None:
        for one in (module, module[0], module[4]):
            one.set_force_sum_reduction_for_comms(True)
        return module, None
    return module, gradwire.fsdp.compress(module, scheme, timeout=30, **settings)


def _whole(module):
    return numpy.concatenate(
        [one.full_tensor().detach().float().cpu().numpy().ravel() for one in module.parameters()]
    )


def _shard_steps(module, rank, steps):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    for step in steps:
        optimizer.zero_grad()
        backward(module, rank, step)
        optimizer.step()


def sharded(rank, world_size, scheme, settings):
    """The weights after some steps of `fully_shard`, and of DistributedDataParallel with the same scheme
    and a bucket for each parameter; and what the state tells."""
    module, state = _sharded(scheme, **settings)
    ddp = DistributedDataParallel(model())
    if scheme is not None:
        other = gradwire.torch.State(scheme, parameters=ddp, timeout=30, **settings)
        ddp.register_comm_hook(other, gradwire.torch.hook)
    _shard_steps(module, rank, range(3))
    _shard_steps(ddp, rank, range(3))
    told = None
    if state is not None:
        told = state.step, state.wire_bytes, sorted(state.traffic), sorted(state.state_dict()["parameters"])
    return _whole(module), weights(ddp), told


class Heads(torch.nn.Module):
    """A trunk, and two heads of which a step may use one, both or none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = torch.nn.Linear(64, 32)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(32, 10) for _ in range(2))

    def forward(self, inputs, used):
        hidden = self.trunk(inputs).relu()
        return sum(self.heads[head](hidden) for head in used) + hidden[:, :10]


def sharded_and_unused(rank, world_size, scheme, settings):
    """The weights after steps in which ranks use other parameters of a unit, or none of a unit: of
    `fully_shard`, and of an Averager, which takes what has no gradient for zero."""
    from torch.distributed.fsdp import fully_shard

    def train(module, average):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
        for step, used in enumerate([(0, 1), (rank,), (1,), ()]):
            optimizer.zero_grad()
            inputs, labels = batch(rank, step)
            torch.nn.functional.cross_entropy(module(inputs, used), labels).backward()
            average(module)
            optimizer.step()

    whole, divided = Heads().to(DEVICE), Heads().to(DEVICE)
    averager = gradwire.torch.Averager(scheme, bucketing="parameter", timeout=30, **settings)
    train(whole, averager.reduce_)
    fully_shard(divided.trunk)
    fully_shard(divided)
    state = gradwire.fsdp.compress(divided, scheme, bucketing="parameter", timeout=30, **settings)
    train(divided, lambda _: None)
    return _whole(divided), weights(whole), state.step


def sharded_resumed(rank, world_size):
    """Four steps at once, and two and two with a checkpoint between them."""
    whole, _ = _sharded("topk", ratio=0.05)
    _shard_steps(whole, rank, range(4))
    part, state = _sharded("topk", ratio=0.05)
    _shard_steps(part, rank, range(2))
    gathered = [gradwire.torch.gather_state(state)]
    dist.broadcast_object_list(gathered)
    model_state = part.state_dict()
    again, state = _sharded("topk", ratio=0.05)
    again.load_state_dict(model_state)
    state.load_state_dict(gathered[0])
    _shard_steps(again, rank, range(2, 4))
    return _whole(whole), _whole(again), state.step


def sharded_with_a_late_head(rank, world_size):
    """The same with a unit that only the last two steps use: weights at once and in two parts, and the last step
    of every unit."""
    from torch.distributed.fsdp import fully_shard

    def made():
        module = Heads().to(DEVICE)
        fully_shard(module.heads[1])
        fully_shard(module)
        return module, gradwire.fsdp.compress(module, "topk", ratio=0.1, timeout=30)

    def train(module, steps):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
        for step in steps:
            optimizer.zero_grad()
            inputs, labels = batch(rank, step)
            used = (0,) if step < 2 else (0, 1)
            torch.nn.functional.cross_entropy(module(inputs, used), labels).backward()
            optimizer.step()

    whole, _ = made()
    train(whole, range(4))
    part, state = made()
    train(part, range(2))
    gathered = [gradwire.torch.gather_state(state)]
    dist.broadcast_object_list(gathered)
    model_state = part.state_dict()
    again, state = made()
    again.load_state_dict(model_state)
    state.load_state_dict(gathered[0])
    train(again, range(2, 4))
    return _whole(whole), _whole(again), state.step


def sharded_and_refused(rank, world_size):
    """What does not go together with `fully_shard`."""
    module, _ = _sharded("topk", ratio=0.05)
    said = [
        said_by(lambda: gradwire.fsdp.compress(module, "topk", timeout=30)),
        said_by(lambda: gradwire.torch.State("topk", parameters=module, timeout=30)),
        said_by(lambda: gradwire.fsdp.compress(DistributedDataParallel(model()), "topk", timeout=30)),
        said_by(lambda: gradwire.fsdp.compress(model(), "topk", timeout=30)),
        said_by(lambda: gradwire.fsdp.compress(_divided(), "topk", parameters=module, timeout=30)),
        said_by(lambda: gradwire.fsdp.compress(_divided(), "topk", rules=[{"match": "9.*", "scheme": "dense"}])),
        said_by(lambda: gradwire.fsdp.compress(_divided(), "topk", clip_norm=1.0)),
        said_by(lambda: gradwire.torch.Averager("topk", clip_norm=1.0, timeout=30).reduce_(_divided())),
    ]
    inputs, labels = batch(rank, 1)
    if rank == 1:
        inputs[0, 0] = float("nan")
    step = said_by(lambda: torch.nn.functional.cross_entropy(module(inputs), labels).backward())
    return said, step


def sharded_of_types(rank, world_size):
    """One unit whose gradients have two types."""
    from torch.distributed.fsdp import fully_shard

    module = torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.Linear(10, 10)).to(DEVICE)
    module[1].weight.grad_dtype = torch.bfloat16
    module = fully_shard(module)
    gradwire.fsdp.compress(module, "topk", timeout=30)
    inputs, labels = batch(rank, 1)
    return said_by(lambda: torch.nn.functional.cross_entropy(module(inputs), labels).backward())


def sharded_checkpoint(rank, world_size, folder):
    """`fully_shard` and its state saved and loaded by torch.distributed.checkpoint: the weights as if they
    were not, and this rank's residuals."""
    import torch.distributed.checkpoint as dcp

    part, state = _sharded("topk", ratio=0.05)
    _shard_steps(part, rank, range(2))
    checkpoint = {"model": part.state_dict(), "gradwire": gradwire.torch.Checkpoint(state)}
    dcp.save(checkpoint, checkpoint_id=folder)
    left = {name: one.numpy() for name, one in state.state_dict()["residual"].items()}
    _shard_steps(part, rank, range(2, 4))
    again, state = _sharded("topk", ratio=0.05)
    model_state = again.state_dict()
    loaded = {"model": model_state, "gradwire": gradwire.torch.Checkpoint(state, folder)}
    dcp.load(loaded, checkpoint_id=folder)
    again.load_state_dict(model_state)
    _shard_steps(again, rank, range(2, 4))
    said = None
    try:
        dcp.save(loaded, checkpoint_id=folder + "-again")
    except dcp.CheckpointException as error:
        said = str(error)
    return _whole(part), _whole(again), left, said


def sharded_elsewhere(rank, world_size, folder):
    """The same checkpoint in another number of ranks: this rank's residuals, and a step that works."""
    import torch.distributed.checkpoint as dcp

    module, state = _sharded("topk", ratio=0.05)
    dcp.load({"gradwire": gradwire.torch.Checkpoint(state, folder)}, checkpoint_id=folder)
    left = {name: one.numpy() for name, one in state.state_dict()["residual"].items()}
    _shard_steps(module, rank, range(1))
    return left, state.step


def sharded_over_several(rank, world_size):
    """What is said of units that are divided over different ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"))
    module = model()
    fully_shard(module[0], mesh=mesh["across"])
    fully_shard(module, mesh=mesh["within"])
    return said_by(lambda: gradwire.fsdp.compress(module, "topk", timeout=30))


def states_of_groups(rank, world_size, folder):
    """Each pair averages for itself and all save into one folder: this rank's residual before and after, by the
    checkpoint and by what the pair has gathered; and what is said where groups are others."""
    import torch.distributed.checkpoint as dcp

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]

    def averager(group):
        return gradwire.torch.Averager("topk", ratio=0.1, process_group=group, timeout=30)

    def load(group):
        new = averager(group)
        dcp.load({"gradwire": gradwire.torch.Checkpoint(new, folder)}, checkpoint_id=folder)
        return new.state_dict()["residual"]["weight"].numpy()

    first = averager(pairs[rank // 2])
    parameter = torch.nn.Parameter(torch.zeros(100, device=DEVICE))
    parameter.grad = torch.arange(100.0, device=DEVICE) * (rank + 1)
    first.reduce_([("weight", parameter)])
    dcp.save({"gradwire": gradwire.torch.Checkpoint(first)}, checkpoint_id=folder)
    gathered = gradwire.torch.gather_state(first)
    every = [None] * world_size
    dist.all_gather_object(every, gathered)
    mine, others = every[rank // 2 * 2], every[2 - rank // 2 * 2]
    again = averager(pairs[rank // 2])
    again.load_state_dict(mine)
    residuals = [one.state_dict()["residual"]["weight"].numpy() for one in (first, again)]
    said = [
        said_by(lambda: again.load_state_dict(others)),
        said_by(lambda: averager(None).load_state_dict(mine)),
        said_by(lambda: load(across[rank % 2])),
        said_by(lambda: load(None)),
    ]
    return *residuals, load(pairs[rank // 2]), said


def averaged_shards(rank, world_size, scheme, settings):
    """`fully_shard` within each pair and an Averager across: the whole mean gradients, this rank's own ones,
    and the elements that the averager has."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"))
    module, plain = model(), model()
    fully_shard(module, mesh=mesh["within"])
    averager = gradwire.torch.Averager(
        scheme, process_group=mesh.get_group("across"), timeout=30, **settings
    )
    backward(plain, rank, 0)
    backward(module, rank, 0)
    module[4].bias.requires_grad_(False)  # It stays what the pair has.
    traffic = averager.reduce_(module)
    whole = [one.grad.full_tensor().numpy().ravel() for one in module.parameters()]
    return numpy.concatenate(whole), gradients(plain), traffic.parameters


def pickled(rank, world_size):
    """The hook by pickle, and what is said of its state."""
    state = gradwire.torch.State("topk", timeout=30)
    assert pickle.loads(pickle.dumps(gradwire.torch.hook)) is gradwire.torch.hook
    said = [said_by(lambda: pickle.dumps(state)), said_by(lambda: copy.deepcopy(state))]
    state.close()
    return said


def around(rank, world_size, wrapper):
    """Gradients with one of PyTorch's hooks around ours, and the rank's own."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    plain, ddp = model(), DistributedDataParallel(model(), bucket_cap_mb=0.2)
    state = gradwire.torch.State("dense", parameters=ddp, timeout=30)
    ddp.register_comm_hook(state, getattr(default_hooks, wrapper)(gradwire.torch.hook))
    for step in range(2):
        plain.zero_grad()
        ddp.zero_grad()
        backward(plain, rank, step)
        backward(ddp, rank, step)
    return gradients(plain), gradients(ddp), state.traffic.wire_bytes
