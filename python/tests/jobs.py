"""What the processes of the DDP tests do."""

import os
import signal
import threading
import time
import warnings

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch

# Where models and gradients are: "cuda:0" for the same tests on a GPU, which all processes share.
DEVICE = os.environ.get("GRADWIRE_TEST_DEVICE", "cpu")
# What backward raises: PyTorch's error around ours, or ours where another bucket has met it before.
RAISED = (gradwire.Error, RuntimeError)


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    ).to(DEVICE, dtype)


def _parameter(length, dtype=torch.float32):
    return torch.nn.Parameter(torch.zeros(length, dtype=dtype, device=DEVICE))


def batch(rank, step, dtype=torch.float32):
    """Inputs whose first ten numbers decide their class."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 64, generator=generator)
    return inputs.to(DEVICE, dtype), inputs[:, :10].argmax(1).to(DEVICE)


def backward(module, rank, step, dtype=torch.float32):
    inputs, labels = batch(rank, step, dtype)
    loss = torch.nn.functional.cross_entropy(module(inputs).float(), labels)
    loss.backward()
    return loss.item()


class Product(torch.nn.Module):
    """Weights times inputs, and inputs that each rank takes to a power of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(40, 20, device=DEVICE))

    def forward(self, inputs, rank):
        return self.weight * inputs ** (1 + rank)


def as_pytorch_tests_its_hooks(rank, world_size, scheme, settings):
    torch.manual_seed(2020)
    inputs = torch.randn(40, 20).to(DEVICE)
    found = []
    for hooked in [False, True]:
        ddp = DistributedDataParallel(Product())
        if hooked:
            state = gradwire.torch.State(scheme, parameters=ddp, **settings)
            ddp.register_comm_hook(state, gradwire.torch.hook)
        ddp(inputs, rank).mean().backward()
        found.append(gradients(ddp))
    return found


def gradients(module):
    return _flat(one.grad for one in module.parameters())


def weights(module):
    return _flat(module.parameters())


def _flat(tensors):
    return torch.cat([one.detach().float().reshape(-1) for one in tensors]).cpu().numpy()


def wrapped(scheme, bucket_cap_mb=0.2, dtype=torch.float32, **settings):
    ddp = DistributedDataParallel(model(dtype), bucket_cap_mb=bucket_cap_mb)
    state = gradwire.torch.State(scheme, **settings)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    return ddp, state


def train(rank, world_size, scheme, settings, steps):
    """Losses, final weights, and what the states tell."""
    ddp, state = wrapped(scheme, timeout=30, **settings)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    losses, sent = [], []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(backward(ddp, rank, step))
        optimizer.step()
        sent.append(state.traffic.wire_bytes)
    return losses, weights(ddp), sent, state.step, state.wire_bytes


def means(rank, world_size, scheme, settings, steps):
    """Of each step, this rank's own gradient and the mean that the hook made; weights stay."""
    plain = model()
    ddp, state = wrapped(scheme, timeout=30, **settings)
    found = []
    for step in range(steps):
        plain.zero_grad()
        ddp.zero_grad()
        backward(plain, rank, step)
        backward(ddp, rank, step)
        found.append((gradients(plain), gradients(ddp), state.traffic.wire_bytes))
    return found


def without_hook(rank, world_size, steps):
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.2)
    found = []
    for step in range(steps):
        ddp.zero_grad()
        backward(ddp, rank, step)
        found.append(gradients(ddp))
    return found


def half(rank, world_size, scheme, dtype):
    """Gradients of 16 bits: the mean of the third step, what it cost, and the mean of the ranks' own in
    float32."""
    ddp, state = wrapped(scheme, dtype=dtype, timeout=30)
    plain = model(dtype)
    for step in range(3):
        plain.zero_grad()
        ddp.zero_grad()
        backward(plain, rank, step, dtype)
        backward(ddp, rank, step, dtype)
    return gradients(plain), gradients(ddp), str(ddp.module[0].weight.grad.dtype), state.traffic.wire_bytes


def resumed(rank, world_size, scheme, settings, folder):
    """Six steps at once, and three with a checkpoint and three more from it."""

    def part(steps, weights_before=None, saved=None):
        ddp, state = wrapped(scheme, timeout=30, parameters=None, **settings)
        if saved is not None:
            ddp.module.load_state_dict(weights_before)
            state.load_state_dict(saved)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
        for step in steps:
            optimizer.zero_grad()
            backward(ddp, rank, step)
            optimizer.step()
        return ddp, state

    whole, _ = part(range(6))
    ddp, state = part(range(3))
    gathered = gradwire.torch.gather_state(state)
    assert (gathered is None) == (rank != 0)
    file = os.path.join(folder, "checkpoint.pt")
    if rank == 0:
        torch.save({"model": ddp.module.state_dict(), "gradwire": gathered}, file)
    dist.barrier()
    loaded = torch.load(file, map_location=DEVICE, weights_only=True)
    again, state = part(range(3, 6), loaded["model"], loaded["gradwire"])
    residuals = [one.get("residual") for one in loaded["gradwire"]["ranks"]]
    if residuals[0] is not None:
        residuals = [{name: part.cpu().numpy() for name, part in one.items()} for one in residuals]
    return weights(whole), weights(again), state.step, residuals


def killed(rank, world_size, scheme, settings, victim, how, timeout):
    """One rank is gone in its fourth step; what the others meet, and after how many seconds."""
    ddp, state = wrapped(scheme, timeout=timeout, **settings)
    for step in range(3):
        backward(ddp, rank, step)
    if rank == victim:
        os.kill(os.getpid(), how)
    begin = time.monotonic()
    try:
        backward(ddp, rank, 3)
    except RAISED as error:
        first = str(error)
    else:
        return None
    seconds = time.monotonic() - begin
    return first, seconds, type(state.failure).__name__, state.failure.rank


def not_finite(rank, world_size):
    """One rank's gradient is NaN in the second step; the third is tried again."""
    module = model()
    averager = gradwire.torch.Averager("topk", ratio=0.1, timeout=30)
    found = []
    for step in range(3):
        module.zero_grad()
        backward(module, rank, step)
        if step == 1 and rank == 1:
            module[2].weight.grad[3, 4] = float("nan")
        before = gradients(module)
        try:
            averager.reduce_(module)
            found.append(None)
        except gradwire.NonFiniteError as error:
            unchanged = numpy.array_equal(before, gradients(module), equal_nan=True)
            found.append(
                (str(error), error.rank, error.step, error.parameter, error.index, unchanged)
            )
    return found, averager.step, gradients(module)


def not_finite_in_ddp(rank, world_size, scheme, rank_of_nan):
    """The same inside of DDP: what backward raises, and the steps and gradients after one that works."""
    ddp, state = wrapped(scheme, timeout=30)
    backward(ddp, rank, 0)
    inputs, labels = batch(rank, 1)
    if rank == rank_of_nan:
        inputs[0, 0] = float("nan")
    loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
    if rank_of_nan is None:
        loss = 3e38 * ddp(inputs)[:, 0].mean()  # Finite on each rank, and their sum is not.
    try:
        loss.backward()
    except RuntimeError as error:
        found = str(error), state.step, state.failure
        ddp.zero_grad()
        backward(ddp, rank, 2)
        return *found, state.step, gradients(ddp)
    return None


def averaged(rank, world_size, scheme, settings, steps):
    """An own loop with an Averager: the mean of one step, and the weights after some."""
    module = model()
    averager = gradwire.torch.Averager(scheme, timeout=30, **settings)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(backward(module, rank, step))
        averager.reduce_(module)
        optimizer.step()
    return losses, weights(module), averager.traffic.wire_bytes


def beside_a_default_device(rank, world_size):
    """A step where tensors that name no device have no memory, and one where those that name no type are of 16 bits: this
    rank's gradient, and the means."""
    module = model()
    averager = gradwire.torch.Averager("dense", timeout=30)
    backward(module, rank, 0)
    own = gradients(module)
    with torch.device("meta"):
        averager.reduce_(module)
    mean = gradients(module)
    module = model()
    backward(module, rank, 0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        gradwire.torch.Averager("dense", timeout=30).reduce_(module)
    finally:
        torch.set_default_dtype(before)
    return own, mean, gradients(module)


def missing_gradient(rank, world_size):
    """A parameter that only rank 0 uses."""
    module = model()
    averager = gradwire.torch.Averager("dense", timeout=30)
    backward(module, rank, 0)
    own = module[4].bias.grad.cpu().numpy().copy()
    if rank == 1:
        module[4].bias.grad = None
    averager.reduce_(module)
    return own, module[4].bias.grad.cpu().numpy()


def subgroup(rank, world_size):
    """Two groups of two ranks, each averaging for itself."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    averager = gradwire.torch.Averager("dense", process_group=groups[rank // 2], timeout=30)
    parameter = _parameter(3)
    parameter.grad = torch.full_like(parameter, float(rank))
    averager.reduce_([parameter])
    return parameter.grad.tolist(), averager.rank, averager.world_size


def subgroup_of_ddp(rank, world_size):
    """DDP within each pair, and a state that is given no group: this rank's gradient, the mean, and what is
    said of a group across the pairs."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    plain, ddp = model(), DistributedDataParallel(model(), process_group=pairs[rank // 2])
    try:
        gradwire.torch.State("dense", parameters=ddp, process_group=across[rank % 2], timeout=30)
        said = None
    except gradwire.SettingError as error:
        said = str(error)
    state = gradwire.torch.State("dense", parameters=ddp, timeout=30)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    backward(plain, rank, 0)
    backward(ddp, rank, 0)
    return gradients(plain), gradients(ddp), said


class Runs:
    """Runs when it is unpickled."""

    ran = []

    def __reduce__(self):
        return Runs.ran.append, (os.getpid(),)


def gathered_with_code(rank, world_size):
    """Rank 1's state holds what runs when it is unpickled: what rank 0 says of it, and whether it ran."""
    averager = gradwire.torch.Averager("topk", timeout=30)
    if rank == 1:
        averager.state_dict = lambda: {"scheme": Runs()}
    try:
        gradwire.torch.gather_state(averager)
        said = None
    except gradwire.StateError as error:
        said = str(error)
    return said, Runs.ran


def gathered(rank, world_size):
    """A state after a step, by hand and by `gather_state` on rank 1, and what is said of no rank."""
    averager = gradwire.torch.Averager("topk", ratio=0.1, timeout=30)
    parameter = _parameter(100)
    parameter.grad = torch.arange(100.0, device=DEVICE) * (rank + 1)
    averager.reduce_([("weight", parameter)])
    mine, found = averager.state_dict(), gradwire.torch.gather_state(averager, 1)
    try:
        gradwire.torch.gather_state(averager, 2)
        said = None
    except gradwire.InputError as error:
        said = str(error)
    of_all = found and [one["residual"]["weight"].numpy() for one in found["ranks"]]
    return mine["residual"]["weight"].numpy(), of_all, said


def misfits(rank, world_size):
    """Saved states that do not fit: what is said of each, whether the state is what it was, and a state whose tensors
    have gradients, which fits."""
    averager = gradwire.torch.Averager("topk", ratio=0.1, timeout=30)
    parameter = _parameter(100)
    parameter.grad = torch.arange(100.0, device=DEVICE)
    averager.reduce_([("weight", parameter)])
    fits = averager.state_dict()

    def without(key):
        return {name: one for name, one in fits.items() if name != key}

    def residual(values):
        return dict(fits, residual=values)

    other = dict(fits, rank=1)
    bad = {
        "nothing": {"version": 1},
        "no rank": without("rank"),
        "no compressors": without("compressors"),
        "a word for a step": dict(fits, step="one"),
        "no shape": dict(fits, parameters={"weight": "100"}),
        "no tensor": dict(fits, compressors={"seed": 3}),
        "one element": residual({"weight": torch.ones(1)}),
        "too many elements": residual({"weight": torch.ones(101)}),
        "a list": residual({"weight": [0.0] * 100}),
        "another name": residual({"bias": torch.ones(100)}),
        "no name": residual({}),
        "no ranks": {"version": 1, "ranks": []},
        "not in order": {"version": 1, "ranks": [other]},
        "too few ranks": {"version": 1, "ranks": [dict(fits, world_size=2)]},
        "ranks apart": {"version": 1, "ranks": [dict(one, world_size=2) for one in (fits, dict(other, step=2))]},
        "another group": dict(fits, group=[0, 3]),
        "other buckets": dict(fits, compressors={"seed": torch.ones(1)}, buckets=[]),
    }
    said = {}
    for name, saved in bad.items():
        try:
            averager.load_state_dict(saved)
        except gradwire.StateError as error:
            said[name] = str(error)
    now = averager.state_dict()
    kept = now["step"] == 1 and torch.equal(now["residual"]["weight"], fits["residual"]["weight"])
    averager.load_state_dict(residual({"weight": torch.full((10, 10), 2.0, requires_grad=True)}))
    return said, kept, averager.state_dict()["residual"]["weight"].tolist()


def in_memory_order(rank, world_size):
    """Convolutions that lie in memory as channels_last: residuals and means of the hook and of an Averager."""

    def made():
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
        return module.to(DEVICE, memory_format=torch.channels_last)

    def step(module, number):
        images = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(10 * number + rank))
        module(images.to(DEVICE, memory_format=torch.channels_last)).square().mean().backward()

    ddp, module = DistributedDataParallel(made()), made()
    state = gradwire.torch.State("topk", ratio=0.1, parameters=ddp, timeout=30)
    ddp.register_comm_hook(state, gradwire.torch.hook)
    averager = gradwire.torch.Averager("topk", ratio=0.1, timeout=30)
    for number in range(2):
        ddp.zero_grad()
        module.zero_grad()
        step(ddp, number)
        step(module, number)
        averager.reduce_(module)
    left = [one.state_dict()["residual"] for one in (state, averager)]
    found = [{name: part.numpy() for name, part in one.items()} for one in left]
    return *found, gradients(ddp), gradients(module)


def different(rank, world_size, what):
    """Ranks that do not agree: what each raises."""
    parameter = _parameter(8 if what != "model" or rank == 0 else 9)
    parameter.grad = torch.ones_like(parameter)
    scheme = "topk" if what != "scheme" or rank == 0 else "qsgd"
    seed = rank if what == "seed" else 0
    averager = gradwire.torch.Averager(scheme, seed=seed, timeout=30)
    try:
        averager.reduce_([parameter])
    except gradwire.Error as error:
        return type(error).__name__, str(error)
    return None


def another_model(rank, world_size):
    """One State with two wrappers, a hook registered twice, and other parameters in an Averager."""
    ddp, state = wrapped("topk", timeout=30)
    backward(ddp, rank, 0)
    said = []
    try:
        ddp.register_comm_hook(state, gradwire.torch.hook)
    except RuntimeError as error:
        said.append(str(error))
    other = DistributedDataParallel(model())
    other.register_comm_hook(state, gradwire.torch.hook)
    try:
        backward(other, rank, 1)
    except RuntimeError as error:
        said.append(str(error))
    averager = gradwire.torch.Averager("topk", timeout=30)
    module = model()
    backward(module, rank, 0)
    averager.reduce_(module)
    try:
        averager.reduce_(list(module.parameters())[:2])
    except gradwire.InputError as error:
        said.append(str(error))
    averager.reduce_(module)
    return said


def aborted(rank, world_size):
    """Rank 1 alone hands over something wrong: both raise, and both can go on."""
    module = model()
    averager = gradwire.torch.Averager("topk", timeout=30)
    backward(module, rank, 0)
    averager.reduce_(module)
    given = module if rank == 0 else list(module.parameters())[:2]
    try:
        averager.reduce_(given)
        said = None
    except gradwire.Error as error:
        said = type(error).__name__, str(error)
    averager.reduce_(module)
    return said, averager.step


def missing_rank(rank, world_size, timeout):
    """Rank 1 never comes to the exchange."""
    averager = gradwire.torch.Averager("dense", timeout=timeout)
    parameter = _parameter(3)
    parameter.grad = torch.ones_like(parameter)
    begin = time.monotonic()
    if rank == 1:
        time.sleep(4 * timeout)
        return None
    try:
        averager.reduce_([parameter])
    except gradwire.PeerTimeoutError as error:
        seconds = time.monotonic() - begin
        try:
            averager.reduce_([parameter])
        except gradwire.PeerTimeoutError as again:
            return str(error), error.rank, seconds, parameter.grad.tolist(), str(again), again.after
    return None


def state_without_peer(rank, world_size, timeout):
    """Rank 1 is gone before it has made its state: what rank 0 meets, and after how many seconds."""
    if rank == 1:
        os.kill(os.getpid(), KILL)
    begin = time.monotonic()
    try:
        gradwire.torch.State("topk", timeout=timeout)
    except gradwire.TransportError as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return None


def accumulated(rank, world_size):
    """Two backward passes a step, the first without synchronisation; against their mean."""
    ddp, state = wrapped("dense", timeout=30)
    plain = model()
    for step in (0, 2):
        plain.zero_grad()
        ddp.zero_grad()
        with ddp.no_sync():
            backward(ddp, rank, step)
        backward(ddp, rank, step + 1)
        backward(plain, rank, step)
        backward(plain, rank, step + 1)
    return gradients(plain), gradients(ddp), state.step


def groups_of_steps(rank, world_size, bucket_cap_mb):
    """How many groups each step had, and the weights: the buckets of DDP change nothing else."""
    ddp, state = wrapped("topk", bucket_cap_mb, ratio=0.1, bucketing="parameter", timeout=30)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    groups = []
    for step in range(4):
        optimizer.zero_grad()
        backward(ddp, rank, step)
        optimizer.step()
        groups.append(len(state._awaited))
    return groups, weights(ddp)


STOP, KILL = signal.SIGSTOP, signal.SIGKILL


def half_a_step(rank, world_size):
    """Backward of rank 0 fails in the user's own code, after some buckets; then all go on."""
    ddp, state = wrapped("dense", 0.05, bucketing="parameter", timeout=30)
    for step in range(2):
        ddp.zero_grad()
        backward(ddp, rank, step)
    inputs, labels = batch(rank, 2)
    output = ddp(inputs)
    if rank == 0:
        output.register_hook(lambda gradient: 1 / 0)
    try:
        torch.nn.functional.cross_entropy(output, labels).backward()
    except ZeroDivisionError:
        # Gone: the others are told by the connection.
        state.close()
        return "own"
    except RAISED as error:
        return str(error)
    return None


def _second_step_fails(ddp, state, rank):
    """What backward of the second step raises, after how many seconds, and what `close` leaves."""
    begin = time.monotonic()
    try:
        backward(ddp, rank, 1)
    except RAISED as error:
        said = str(error)
    else:
        said = None
    seconds = time.monotonic() - begin
    state.close()
    return said, seconds, type(state.failure).__name__


def refused(rank, world_size, giving_up_fails):
    """PyTorch refuses every message of the second step."""
    ddp, state = wrapped("topk", timeout=30)
    backward(ddp, rank, 0)

    def refuse(*_, **__):
        raise ValueError("no such group")

    if giving_up_fails:
        state._give_up = refuse
    send, receive = dist.isend, dist.irecv
    dist.isend = dist.irecv = refuse
    try:
        return _second_step_fails(ddp, state, rank)
    finally:
        dist.isend, dist.irecv = send, receive


def destroyed(rank, world_size, folder):
    """The process group is destroyed and made anew before the second step."""
    ddp, state = wrapped("topk", timeout=30)
    backward(ddp, rank, 0)
    dist.barrier()
    dist.destroy_process_group()
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    return _second_step_fails(ddp, state, rank)


def saved_too_late(rank, world_size):
    """What `state_dict` says before and after `close`, of states with and without a step."""
    ddp, state = wrapped("topk", timeout=30)
    backward(ddp, rank, 0)
    saved = state.state_dict()
    state.close()
    loaded = gradwire.torch.State("topk", timeout=30)
    loaded.load_state_dict(saved)
    loaded.close()
    assert loaded.state_dict()["residual"] is saved["residual"]
    try:
        state.state_dict()
    except gradwire.StateError as error:
        return str(error)
    return None


def unused(rank, world_size):
    """Two parameters whose gradients are 1, 2, 3 and so on, times the rank's number. After the first
    step none uses the second one: the sum of its means, and the sum that was to come."""
    averager = gradwire.torch.Averager("topk", ratio=0.1, timeout=30)
    first, second = (_parameter(500) for _ in range(2))
    own = torch.arange(1.0, 501.0, device=DEVICE)
    total = torch.zeros_like(own)
    second.grad = own * (rank + 1)
    for _ in range(12):
        first.grad = torch.zeros_like(first)
        averager.reduce_([first, second])
        total += second.grad
        second.grad = None
    return total.tolist(), (own * 1.5).tolist()


def warned(rank, world_size, scheme, settings, find_unused_parameters):
    """The warnings of a State for a wrapper that looks for unused parameters."""
    ddp = DistributedDataParallel(model(), find_unused_parameters=find_unused_parameters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradwire.torch.State(scheme, parameters=ddp, timeout=30, **settings)
    return [str(one.message) for one in caught if one.filename == __file__]


def warned_of_momentum(rank, world_size, kind, scheme, settings):
    """The warnings of a State or an Averager that is made here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(gradwire.torch, kind)(scheme, timeout=30, **settings)
    return [str(one.message) for one in caught if one.filename == __file__]


def named_twice(rank, world_size):
    """Two parameters of one name, between two steps that fit: what is said, and what is changed."""
    first, second = (_parameter(2) for _ in range(2))
    averager = gradwire.torch.Averager("dense", timeout=30)
    averager.reduce_([("first", first), ("second", second)])
    for one in (first, second):
        one.grad = torch.full_like(one, float(rank))
    try:
        averager.reduce_([("first", first), ("first", second)])
        said = None
    except gradwire.InputError as error:
        said = str(error)
    before = [one.grad.tolist() for one in (first, second)]
    averager.reduce_([("first", first), ("second", second)])
    return said, before, [one.grad.tolist() for one in (first, second)]


def other_types(rank, world_size, dtype):
    """An Averager is given a gradient of a type that it does not take, and then one that it does."""
    averager = gradwire.torch.Averager("dense", timeout=30)
    parameter = _parameter(3, dtype)
    parameter.grad = torch.full_like(parameter, rank + 1)
    try:
        averager.reduce_([("scale", parameter)])
        said = None
    except gradwire.InputError as error:
        said = str(error)
    unchanged = torch.equal(parameter.grad, torch.full_like(parameter, rank + 1))
    fitting = _parameter(3)
    fitting.grad = torch.full_like(fitting, float(rank))
    averager.reduce_([("scale", fitting)])
    return said, unchanged, fitting.grad.tolist()


def doubles_in_ddp(rank, world_size):
    """What backward of a model in float64 raises, and whether that breaks the group of ranks."""
    ddp, state = wrapped("dense", dtype=torch.float64, timeout=30)
    try:
        backward(ddp, rank, 0, torch.float64)
    except RuntimeError as error:
        return str(error), state.failure
    return None


def back_to_the_beginning(rank, world_size, settings):
    """Three steps, and three more after loading what was saved before the first: their means."""
    ddp, state = wrapped("topk", 0.05, timeout=30, **settings)
    saved = state.state_dict()

    def part():
        found = []
        for step in range(3):
            ddp.zero_grad()
            backward(ddp, rank, step)
            found.append(gradients(ddp))
        return found

    first = part()
    state.load_state_dict(saved)
    begun = state.step
    return first, part(), begun, state.step


def in_pieces(rank, world_size):
    """Messages about as long as a piece, to each rank another: of each turn, whether all came."""
    gloo, lengths = gradwire._gloo.Gloo(None, 30.0), [0, 1, 999, 1000, 1001, 3500]

    def message(turn, giver, taker):
        length = lengths[(turn + giver + 2 * taker) % len(lengths)]
        generator = numpy.random.default_rng([turn, giver, taker])
        return generator.integers(0, 256, length, dtype=numpy.uint8)

    def turn(number):
        found = gloo.alltoall([message(number, rank, taker) for taker in range(world_size)])
        expected = [message(number, giver, rank) for giver in range(world_size)]
        return all(numpy.array_equal(one, other) for one, other in zip(found, expected))

    piece, gradwire._gloo._PIECE = gradwire._gloo._PIECE, 1000
    try:
        return [turn(number) for number in range(len(lengths))]
    finally:
        gradwire._gloo._PIECE = piece


def overlapped(rank, world_size, scheme):
    """Whether something is sent before the backward pass has come to the first layer, which waits for it."""
    bucket, gradwire.torch._BUCKET = gradwire.torch._BUCKET, 100_000
    ddp, state = wrapped(scheme, 0.05, timeout=30)
    gradwire.torch._BUCKET = bucket
    for step in range(2):
        backward(ddp, rank, step)
    sent, seen = threading.Event(), []

    def noted(call):
        def inner(*arguments):
            sent.set()
            return call(*arguments)

        return inner

    transport = state._transport
    transport.average, transport.alltoall = noted(transport.average), noted(transport.alltoall)
    transport.allgather = noted(transport.allgather)

    def awaited(gradient):
        seen.append(sent.wait(5))

    ddp.module[0].register_forward_hook(lambda *given: given[2].register_hook(awaited) and None)
    backward(ddp, rank, 2)
    return seen


def averaged_in_pieces(rank, world_size):
    """Vectors of every length and type, averaged by the transport: whether each is the mean in order of
    rank; what is said of one that is not finite on one rank; and a message that meets values."""
    gloo = gradwire._gloo.Gloo(None, 30.0)

    def vector(giver, length, dtype):
        generator = torch.Generator().manual_seed(1000 * giver + length)
        return torch.randn(length, generator=generator).to(dtype)

    def right(length, dtype, mark):
        mean = torch.full((length,), 7.0, dtype=dtype)
        averaged = gloo.average(vector(rank, length, dtype), mean, mark)
        total = vector(0, length, dtype).float()
        for giver in range(1, world_size):
            total = total + vector(giver, length, dtype).float()
        return averaged and torch.equal(mean, (total * numpy.float32(1 / world_size)).to(dtype))

    stretch = gradwire._gloo._STRETCH // 4
    lengths = [0, 1, 3, 5, 1000, stretch + 1, 4 * stretch]
    types = [torch.float32, torch.bfloat16, torch.float16]
    found = [right(length, dtype, length) for length in lengths for dtype in types]
    spoilt = vector(rank, 1000, torch.float32)
    if rank == 1:
        spoilt[777] = float("inf")
    refused = [gloo.average(spoilt, torch.empty(1000), 1), gloo.average(spoilt[:rank], torch.empty(rank), 2)]
    if rank != 1:
        refused.append(gloo.average(spoilt, torch.empty(1000), 3))
    messages = gloo.allgather(numpy.full(3, rank, dtype=numpy.uint8))
    return found, refused, [one.tolist() for one in messages], right(10, torch.float32, 4)


def announced(rank, world_size):
    """Rank 1 announces the longest message and sends nothing of it: whom rank 0 misses, and the
    most memory that it asks for at once."""
    gloo = gradwire._gloo.Gloo(None, 2.0)
    if rank == 1:
        header = torch.tensor([gradwire._gloo._MESSAGE, gradwire._gloo._LONGEST, 0])
        gloo._send(header, 0, gradwire._gloo._HEADER).wait()
        return None
    empty, asked = torch.empty, []

    def noted(*size, **options):
        asked.append(size[0])
        return empty(*size, **options)

    torch.empty = noted
    try:
        gloo.allgather(numpy.zeros(3, dtype=numpy.uint8))
    except gradwire.PeerTimeoutError as error:
        return error.rank, max(asked)
    finally:
        torch.empty = empty
    return None


def scaled(rank, world_size, program):
    """Three steps of the page's program with a GradScaler; in the second one rank 1 alone has a
    gradient that is infinite. Scales, whether the weights moved, and the last weights."""
    module = model()
    names = {
        "gradwire": gradwire,
        "model": module,
        "optimizer": torch.optim.SGD(module.parameters(), lr=0.2),
        "scaler": torch.amp.GradScaler(torch.device(DEVICE).type, init_scale=1024.0),
        "averager": gradwire.torch.Averager("topk", ratio=0.1, timeout=30),
    }
    found = []
    for step in range(3):
        before = weights(module)
        inputs, labels = batch(rank, step)
        loss = torch.nn.functional.cross_entropy(module(inputs), labels)
        names["loss"] = loss * float("inf") if (rank, step) == (1, 1) else loss
        names["optimizer"].zero_grad()
        exec(program, names)
        found.append((names["scaler"].get_scale(), not numpy.array_equal(before, weights(module))))
    residual = names["averager"].state_dict()["residual"]
    largest = max(part.abs().max().item() for part in residual.values())
    return found, weights(module), largest


def own_scheme_fails(rank, world_size, scheme):
    """What backward raises where rank 1 alone encodes something wrong in its second step, and where the
    third succeeds: whether the gradients are those of before, the weights after it."""
    scheme.where = lambda: rank == 1
    ddp, state = wrapped(scheme, timeout=30)
    backward(ddp, rank, 0)
    begin = time.monotonic()
    try:
        backward(ddp, rank, 1)
    except RuntimeError as error:
        said = str(error)
    else:
        said = None
    return said, time.monotonic() - begin, state.step, state.failure
