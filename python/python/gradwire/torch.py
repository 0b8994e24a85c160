"""Compressed gradients inside PyTorch.

`State` and `hook` make a communication hook for DistributedDataParallel:

    state = gradwire.torch.State("sidco", ratio=0.01)
    ddp.register_comm_hook(state, gradwire.torch.hook)

`Averager` averages gradients in loops that have no DistributedDataParallel. `DiLoCo` exchanges every so many
steps how far the weights have come. `gather_state` collects every rank's residual for a checkpoint.
"""

import hashlib
import io
import json
import math
import os
import re
import time
import warnings
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy
import torch
import torch.distributed as dist

from ._errors import (
    AbortedError,
    Error,
    InputError,
    NonFiniteError,
    SettingError,
    StateError,
    TransportError,
)
from ._gloo import Gloo, ranks_of
from ._gradwire import Exchange, Traffic
from ._schemes import Codec

__all__ = ["Averager", "Checkpoint", "DiLoCo", "State", "gather_state", "hook"]

Parameters = Union[torch.nn.Module, Iterable[Tuple[str, torch.Tensor]], Iterable[torch.Tensor]]

# What a saved state is written as; another number is refused.
_VERSION = 1
# What gradients may be made of: their mean is taken in float32.
_TYPES = (torch.float16, torch.bfloat16, torch.float32)
# What `torch.compile` and checkpointed modules put into the names of parameters.
_WRAPPERS = re.compile(r"_orig_mod\.|_checkpoint_wrapped_module\.")
# Schemes whose mean has the same bits in any buckets, and the bytes that they send as one, so that these
# leave while the backward pass still runs.
_ANY_BUCKETS = {"dense", "half", "nonzero"}
_BUCKET = 1 << 22
# What a state has for each element of the gradient; the last two are the same on all ranks.
_VECTORS = ("residual", "velocity", "average", "estimate", "momentum")
# What every saved state has beside them, and of which type.
_HEAD = {"scheme": str, "step": int, "rank": int, "world_size": int, "parameters": dict, "compressors": dict,
         "buckets": list}
# What a rank's part is called in a checkpoint, by its number in the whole job.
_RANK = re.compile(r"rank\.(\d+)$")
# The names of parameters that are numbered.
_NUMBERED = re.compile(r"parameter\.\d+")


class _Ranks:
    """The exchange of this process, with what State and Averager have in common: a layout that the
    first step fixes, the flat gradient in ordinary memory, the step's number, saved states."""

    # The calls from a warning here to the line that makes the object; 0 for no warning.
    _DEPTH = 2

    def __init__(
        self,
        scheme: Union[str, Codec],
        *,
        process_group: Optional[dist.ProcessGroup] = None,
        timeout: Union[float, timedelta] = 300.0,
        transport: Optional[Gloo] = None,
        **settings: Any,
    ) -> None:
        corrects = "velocity" in _alone(scheme, settings).state()
        if self._DEPTH and corrects and settings.get("momentum_correction") is None:
            warnings.warn(
                f"scheme `{scheme}` applies momentum before it compresses, unless momentum_correction "
                "says otherwise: give the optimizer none, or it acts twice (momentum_correction=0 "
                "leaves it to the optimizer; a momentum_correction that is given ends this warning)",
                stacklevel=self._DEPTH,
            )
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        self._scheme = scheme
        # What a state is saved under, and what ranks must agree on.
        self._scheme_name = scheme if isinstance(scheme, str) else type(scheme).__qualname__
        self._settings = settings
        self._transport = transport or Gloo(process_group, timeout)
        self._exchange: Optional[Exchange] = None
        self._shapes: Dict[str, List[int]] = {}
        self._places: Dict[str, slice] = {}
        # Where they lie in saved states: in order of name.
        self._saved_places: Dict[str, slice] = {}
        self._flat = torch.empty(0, dtype=torch.float32, device="cpu")
        self._view: "numpy.ndarray[Any, Any]" = self._flat.numpy()
        self._saved: Optional[Dict[str, Any]] = None
        self._failure: Optional[BaseException] = None
        self._step = 0
        self._wire_bytes = 0
        self._traffic: Optional[Traffic] = None

    @property
    def rank(self) -> int:
        """This process among those that average."""
        return self._transport.rank

    @property
    def world_size(self) -> int:
        """The number of processes that average."""
        return self._transport.world_size

    @property
    def step(self) -> int:
        """The last step that ended well; steps count from 1."""
        return self._step

    @property
    def traffic(self) -> Optional[Traffic]:
        """What the last step cost; None before the first."""
        return self._traffic

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank's messages have had since the state was made, headers included."""
        return self._wire_bytes

    @property
    def failure(self) -> Optional[BaseException]:
        """What broke the group of ranks, if something did."""
        return self._failure

    def state_dict(self) -> Dict[str, Any]:
        """What this rank has to keep for its next message: the step, the residual by parameter,
        and what the scheme has learnt. Tensors, numbers and strings only, for `torch.save`.

        Every rank has a residual of its own: see `gather_state`. After `close`, or a failure that
        breaks the group of ranks, the residual is gone, and this raises `StateError`.
        """
        if self._exchange is None and self._shapes:
            raise StateError(
                "there is no state to save: this rank's residual went with its exchange "
                f"({self._failure}); go on from an earlier checkpoint"
            ) from self._failure
        if self._exchange is None:
            return dict(self._saved) if self._saved is not None else self._head()
        saved: Dict[str, Any] = self._head()
        for name, values in self._exchange.state().items():
            if name in _VECTORS:
                by_name = {one: values[place].copy() for one, place in self._saved_places.items()}
                saved[name] = {one: torch.from_numpy(part) for one, part in by_name.items()}
            else:
                saved["compressors"][name] = torch.from_numpy(_signed(values).copy())
        return saved

    def load_state_dict(self, saved: Dict[str, Any]) -> None:
        """Takes up what `state_dict` returned on this rank, or what `gather_state` returned, of
        which it takes this rank's part. Before the first step it is kept until then. What was saved
        before the first step goes back to the beginning.

        What `gather_state` returned of another number of ranks is dealt out among those that there
        are now, so that what is still to be applied stays the same; but what a group of some ranks of
        the job has saved goes back to a group of the same ranks. Of a model that has other parameters
        by now, the residuals of those that have the same name and shape are taken up; a warning says
        which are not."""
        saved = _own_part(saved, self._transport)
        if saved["scheme"] != self._scheme_name:
            raise StateError(f"saved state: its scheme is {saved['scheme']}, and not {self._scheme_name}")
        if self._exchange is None:
            self._saved, self._step = dict(saved), saved["step"]
        else:
            self._restore(saved)

    def __reduce__(self) -> Any:
        raise StateError(
            "a state has connections to the other ranks, and is neither pickled nor copied; keep its "
            "`state_dict()`, and make a new state where that is loaded"
        )

    def _head(self) -> Dict[str, Any]:
        return {
            "version": _VERSION,
            "scheme": self._scheme_name,
            "step": self._step,
            "rank": self.rank,
            "world_size": self.world_size,
            "group": self._transport.subgroup,
            "parameters": {name: list(shape) for name, shape in self._shapes.items()},
            "compressors": {},
            "buckets": self._exchange.buckets if self._exchange is not None else [],
        }

    def _restore(self, saved: Dict[str, Any]) -> None:
        assert self._exchange is not None
        if saved["step"] == 0 and not saved["parameters"]:
            # Saved before any step: there was nothing to keep.
            self._exchange, self._step = self._new_exchange(self._shapes), 0
            return
        if saved["parameters"] != self._shapes:
            saved = self._fitting(saved)
        elif saved["compressors"] and saved["buckets"] != self._exchange.buckets:
            raise StateError(
                f"saved state: what the scheme `{self._scheme_name}` has learnt is of other buckets; give `bucketing`, "
                "`dense_below` and `rules` as they were when it was saved"
            )
        entries: Dict[str, Any] = {}
        for name in _VECTORS:
            if name in saved:
                flat = numpy.zeros(len(self._view), dtype=numpy.float32)
                for one, part in saved[name].items():
                    flat[self._saved_places[one]] = part.detach().cpu().numpy().reshape(-1)
                entries[name] = flat
        for name, tensor in saved["compressors"].items():
            values = tensor.detach().cpu().numpy()
            entries[name] = values.view(numpy.uint64) if values.dtype == numpy.int64 else values
        self._exchange.load_state(entries)
        self._step = saved["step"]

    def _fitting(self, saved: Dict[str, Any]) -> Dict[str, Any]:
        """Of the state of a model with other parameters, what fits this one."""
        before = saved["parameters"]
        kept = {one for one, shape in self._shapes.items() if before.get(one) == shape}
        if not kept or any(_NUMBERED.fullmatch(one) for one in kept):
            which = sorted(set(before) ^ set(self._shapes)) or sorted(set(before) - kept)
            raise StateError(
                f"saved state: it is of another model; parameter `{which[0]}` is missing on one "
                "side or has another shape (parameters that both have are taken up where "
                "`parameters=` gives their names)"
            )
        dropped = sorted(set(before) - kept)
        learnt = ", and what the scheme has learnt," if saved["compressors"] else ""
        warnings.warn(
            f"the saved state is of another model: the residuals of {len(kept)} parameters are taken "
            f"up; those of {dropped}{learnt} are dropped; "
            f"{sorted(set(self._shapes) - kept)} begin without",
            stacklevel=2,
        )
        fresh = _Ranks._new_exchange(self, self._shapes).state()
        saved = dict(saved, parameters=self._shapes)
        for name in _VECTORS:
            if name in saved:
                saved[name] = {one: part for one, part in saved[name].items() if one in kept}
                fresh.pop(name, None)
        saved["compressors"] = {name: torch.from_numpy(_signed(one)) for name, one in fresh.items()}
        return saved

    def _new_exchange(self, shapes: Dict[str, List[int]]) -> Exchange:
        """One that has made no step."""
        return Exchange(shapes, self._scheme, self._transport, **self._settings)

    def _build(self, shapes: Dict[str, List[int]], pinned: bool, *agreed: Any) -> None:
        """Fixes the layout, as all ranks have it, which agree on what else is given."""
        agreed = (self._scheme_name, self._settings, shapes, *agreed)
        # NumPy's numbers are settings, too.
        text = json.dumps(agreed, sort_keys=True, default=lambda one: one.item())
        mine = hashlib.sha256(text.encode()).digest()
        digests = self._transport.allgather(numpy.frombuffer(mine, dtype=numpy.uint8).copy())
        for rank, digest in enumerate(digests):
            if digest.tobytes() != digests[0].tobytes():
                raise SettingError(
                    f"rank {rank} has another scheme, other settings or another model than rank 0; "
                    "make the state with the same arguments on every rank"
                )
        exchange = self._new_exchange(shapes)
        self._shapes = {name: shapes[name] for name in sorted(shapes)}
        self._places = {name: slice(begin, end) for name, begin, end in exchange.layout}
        length = 0
        for name, place in sorted(self._places.items()):
            end = length + place.stop - place.start
            self._saved_places[name] = slice(length, end)
            length = end
        self._flat = torch.empty(
            length, dtype=torch.float32, device="cpu", pin_memory=pinned
        )
        self._view = self._flat.numpy()
        self._exchange = exchange
        if self._saved is not None:
            self._restore(self._saved)
            self._saved = None

    def _ended(self, traffic: Traffic) -> None:
        self._step += 1
        self._count(traffic)

    def _count(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._wire_bytes += traffic.wire_bytes

    def _give_up(self, error: BaseException) -> BaseException:
        """Tells the other ranks that this one cannot go on with the step, and remembers what
        breaks the group for good; what concerns one step alone does not."""
        if isinstance(error, (NonFiniteError, AbortedError)):
            return error
        if isinstance(error, InputError) and self._exchange is not None:
            try:
                self._exchange.abort(self._step + 1, str(error))
            except AbortedError:
                return error
            except Error as worse:
                error = worse
        self._failure = error
        self._transport.leave()
        self._exchange = None
        return error

    def _close(self, words: str) -> None:
        self._transport.leave()
        self._exchange = None
        if self._failure is None:
            self._failure = InputError(words)

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Around a step that one call makes: when it raises, the other ranks are told."""
        self._check()
        try:
            yield
        except BaseException as error:
            given_up = self._give_up(error)
            if given_up is error:
                raise
            raise given_up from error

    def _check(self) -> None:
        failure = self._failure
        if failure is None:
            return
        words = f"{failure} (the group of ranks is broken since then; make a new one on every rank)"
        if isinstance(failure, Error):
            told = (failure.rank, failure.step, failure.parameter, failure.index, failure.after)
            raise type(failure)(words, *told) from failure
        raise TransportError(words) from failure


def _signed(values: "numpy.ndarray[Any, Any]") -> "numpy.ndarray[Any, Any]":
    """The same bits in a type that PyTorch has: its unsigned 64-bit type is younger than many of
    its versions."""
    return values.view(numpy.int64) if values.dtype == numpy.uint64 else values


def _alone(scheme: Union[str, Codec], settings: Mapping[str, Any], names: Iterable[str] = ()) -> Exchange:
    """The exchange of one rank, with an element for each of these names: it refuses settings that are not
    possible before anybody waits for anybody."""
    if "parameters" in settings:
        raise SettingError(
            "`parameters` is an argument of State alone: here names are those of the model, or of what "
            "`reduce_` is given; leave it out"
        )
    return Exchange({name: [1] for name in names}, scheme, **settings)


def _own_part(saved: Any, transport: Gloo) -> Dict[str, Any]:
    """This rank's part of what `state_dict` or `gather_state` returned, once all of it is seen to fit itself
    and these ranks."""
    together = isinstance(saved, dict) and "ranks" in saved
    parts = saved["ranks"] if together else [saved]
    if not isinstance(parts, list) or not parts:
        raise StateError("saved state: it holds no rank's part; give what `gather_state` returned")
    for number, part in enumerate(parts):
        _check_part(part)
        if part.get("group") != transport.subgroup:
            known, here = (one or "all ranks of the job" for one in (part.get("group"), transport.subgroup))
            raise StateError(
                f"saved state: it is of the ranks {known}, and this group has {here}; what some ranks have "
                "saved goes back to a group of the same ranks"
            )
        rank, of = (number, len(parts)) if together else (transport.rank, transport.world_size)
        for key, needed in [("rank", rank), ("world_size", of)]:
            if part[key] != needed:
                raise StateError(f"saved state: its {key} is {part[key]}, and not {needed}")
        if _kind(part) != _kind(parts[0]):
            raise StateError(
                f"saved state: rank {rank}'s part is of another step, scheme or model than rank 0's; give the "
                "parts of one checkpoint"
            )
    if not together or len(parts) == transport.world_size:
        return dict(parts[transport.rank if together else 0])
    return _dealt(parts, transport.rank, transport.world_size)


def _kind(part: Dict[str, Any]) -> Any:
    """What the parts of all ranks have in common."""
    vectors = [name for name in _VECTORS if name in part]
    return part["scheme"], part["step"], part["parameters"], vectors, set(part["compressors"])


def _check_part(part: Any) -> None:
    """Refuses what is no rank's state, and one whose entries do not fit each other."""
    if not isinstance(part, dict) or part.get("version") != _VERSION:
        raise StateError(
            "saved state: this is none; give what `state_dict` or `gather_state` returned"
        )
    for key, kind in _HEAD.items():
        if not isinstance(part.get(key), kind):
            raise StateError(f"saved state: its {key} is missing, or is no {kind.__name__}")
    for name, shape in part["parameters"].items():
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            raise StateError(f"saved state: the shape of parameter `{name}` is {shape!r}, and no list of sizes")
    for name, entry in part["compressors"].items():
        if not isinstance(entry, torch.Tensor):
            raise StateError(f"saved state: its entry `{name}` is a `{type(entry).__name__}`, and no tensor")
    for key in _VECTORS:
        if key in part:
            _check_elements(key, part[key], part["parameters"])


def _check_elements(key: str, by_name: Any, shapes: Mapping[str, List[int]]) -> None:
    """Refuses a saved vector that has not these parameters' elements."""
    if not isinstance(by_name, dict) or set(by_name) != set(shapes):
        raise StateError(f"saved state: its {key} is not of the parameters that it names; {sorted(shapes)} are needed")
    for name, shape in shapes.items():
        one, needed = by_name[name], math.prod(shape)
        found = one.numel() if isinstance(one, torch.Tensor) else 0
        if not isinstance(one, torch.Tensor) or found != needed:
            raise StateError(f"saved state: its {key} of `{name}` has {found} elements where {needed} are needed")


def _packed(saved: Dict[str, Any]) -> bytes:
    """A rank's state as the bytes of a file."""
    part = io.BytesIO()
    torch.save(saved, part)
    return part.getvalue()


def _unpacked(part: Any, rank: int) -> Any:
    """What they hold: tensors, numbers, strings, and nothing that runs."""
    try:
        return torch.load(io.BytesIO(part), map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateError(f"saved state: what rank {rank} has saved cannot be read: {error}") from error


def _dealt(ranks: List[Dict[str, Any]], rank: int, world_size: int) -> Dict[str, Any]:
    """The part of this rank in the states of another number of ranks. A residual counts as much as
    its share of the mean: it grows with the number of ranks that it is averaged over."""
    first = ranks[0]
    for one in ranks[1:]:
        if any(
            not torch.equal(values, first["compressors"][name])
            for name, values in one["compressors"].items()
        ):
            raise StateError(
                f"saved state: it is of {len(ranks)} ranks, and there are {world_size}; the scheme "
                f"`{first['scheme']}` has learnt something else on each of them, which cannot be "
                "dealt out; go on with as many ranks, or begin without residuals"
            )
    share = world_size / len(ranks)
    mine = ranks[rank::world_size]
    saved = dict(first, rank=rank, world_size=world_size)
    for name in _VECTORS[:-2]:
        if name in first:
            saved[name] = {
                parameter: sum((one[name][parameter] * share for one in mine), torch.zeros_like(part))
                for parameter, part in first[name].items()
            }
    return saved


class _Task:
    """A bucket of DistributedDataParallel on its way."""

    def __init__(self, bucket: dist.GradBucket, scale: float) -> None:
        self.buffer: torch.Tensor = bucket.buffer()
        self.parameters: List[torch.Tensor] = list(bucket.parameters())
        # A sparse gradient has a bucket of its own, which is the gradient.
        self.gradients = [self.buffer]
        if not self.buffer.is_sparse:
            self.gradients = [_laid(*both) for both in zip(bucket.gradients(), self.parameters)]
        self.scale = scale
        self.is_first: bool = bucket.index() == 0
        self.is_last: bool = bucket.is_last()
        self.names: List[str] = []
        self.mean: Optional[torch.Tensor] = None
        device = self.buffer.device
        self.event: Optional[torch.cuda.Event] = None
        if device.type == "cuda":
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(device))
        self.future: torch.futures.Future[Any] = torch.futures.Future(
            devices=[device] if device.type == "cuda" else []
        )


class _Failed:
    """Stands for an error in a future whose type DistributedDataParallel reads as a tensor."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class State(_Ranks):
    """What the hook of one DistributedDataParallel keeps between calls.

    `scheme` and its settings are those of `gradwire.schemes()`, or it is a `gradwire.Codec`: an object of
    your own. `parameters` gives the names under
    which residuals are kept (the module, or its `named_parameters()`); without it they are numbered
    in the module's order. `start_step` is the first step that is compressed. `bucketing` says what
    is compressed as one: "whole" (the default), "parameter", or a number of bytes; with the last two
    the exchange overlaps with the backward pass, as it does by default where that changes no bit (`dense`,
    `half`, `nonzero`). `timeout` is how long a rank may be silent. `process_group` is the ranks that average:
    by default those of the DistributedDataParallel that `parameters` is, or else all.
    `feedback` is also a form of it, `{"decay": 0.95}`, `{"efsgdm": 0.1}` or `{"momentum": 0.9}`, and `rules`
    give parameters by name another scheme, `[{"match": "*.bias", "scheme": "dense"}]`.
    `momentum_correction` above 0 (0.9 for `dgc`, unless it is given) takes the place of the
    optimizer's momentum, which must be 0 then. `scaler` is the GradScaler, if there is one:
    residuals are kept without its scale, and a gradient that is not finite on one rank is infinite on
    all, so that all of them skip the step.

    Make it on every rank, with the same arguments, after `init_process_group`.
    """

    _DEPTH = 3

    def __init__(
        self,
        scheme: Union[str, Codec],
        *,
        parameters: Optional[Parameters] = None,
        process_group: Optional[dist.ProcessGroup] = None,
        timeout: Union[float, timedelta] = 300.0,
        scaler: Optional[Any] = None,
        **settings: Any,
    ) -> None:
        # One that is switched off skips no step: what is not finite is an error then, as without one.
        if scaler is not None and not getattr(scaler, "is_enabled", lambda: True)():
            scaler = None
        ddp = _plain(parameters)
        if not isinstance(ddp, torch.nn.parallel.DistributedDataParallel):
            ddp = None
        else:
            averaged = ranks_of(ddp.process_group)
            if process_group is not None and ranks_of(process_group) != averaged:
                raise SettingError(
                    f"process_group has the ranks {ranks_of(process_group)}, and this DistributedDataParallel "
                    f"averages over {averaged}; leave process_group out"
                )
            process_group = ddp.process_group
        if parameters is not None:
            parameters = _named(parameters)
            if any(hasattr(one, "to_local") for _, one in parameters):
                raise SettingError(
                    "these parameters are divided over ranks, and DistributedDataParallel's hook is for "
                    "whole ones; compress what `fully_shard` sends with gradwire.fsdp.compress"
                )
        inner = [] if ddp is None else ddp.parameters()
        if getattr(ddp, "_comm_hooks", None) or any(
            hasattr(one, "_in_backward_optimizers") for one in inner
        ):
            raise SettingError(
                "this DistributedDataParallel has a hook already, and takes no other; make it without "
                "`mixed_precision=` (torch.autocast goes with a State), and without optimizers in "
                "backward"
            )
        if isinstance(scheme, str) and scheme in _ANY_BUCKETS:
            if not any(settings.get(key) for key in ("bucketing", "clip_norm", "rules")):
                settings["bucketing"] = _BUCKET
        super().__init__(scheme, process_group=process_group, timeout=timeout, **settings)
        self._names: Optional[Dict[int, str]] = None
        if parameters is not None:
            self._names = {id(tensor): name for name, tensor in parameters}
        if (
            ddp is not None
            and ddp.find_unused_parameters
            and "residual" in Exchange({}, scheme, **settings).state()
        ):
            warnings.warn(
                "find_unused_parameters=True loses residuals: of a parameter that no rank used in a "
                "step the residual is sent, and DistributedDataParallel discards the mean; use "
                "gradwire.torch.Averager instead, or a scheme without error feedback",
                stacklevel=2,
            )
        # Whether messages are the plain values, which can be averaged where they lie.
        self._is_plain = (
            scheme == "dense"
            and scaler is None
            and not any(settings.get(key) for key in ("clip_norm", "rules", "feedback"))
            and self.world_size > 1
        )
        # Whether those of this step are.
        self._averages = False
        self._seconds = 0.0
        self._ddp = None if ddp is None else weakref.ref(ddp)
        self._scaler = scaler
        self._scale = 1.0
        self._tasks: List[_Task] = []
        # Of each group of the exchange's buckets the parameters that it waits for.
        self._awaited: List[List[str]] = []
        self._next = 0
        self._arrived: Set[str] = set()
        # Of each bucket the mean, where values are averaged as they lie.
        self._means: List[torch.Tensor] = []
        self._streams: Dict[torch.device, torch.cuda.Stream] = {}
        # What the rest of a step that failed meets.
        self._step_error: Optional[BaseException] = None
        # Its one thread takes buckets in their order, and is waited for when the process ends.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gradwire")

    def close(self) -> None:
        """Ends the thread and leaves the group of ranks. Not needed at the end of a process."""
        self._worker.shutdown()
        self._close("the state has been closed")

    def _submit(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._check()
        ddp = None if self._ddp is None else self._ddp()
        joining = getattr(getattr(ddp, "_join_config", None), "enable", False)
        if joining and not getattr(ddp, "_divide_by_initial_world_size", True):
            raise InputError(
                "join(divide_by_initial_world_size=False) is not followed: the mean is over all ranks, "
                "also over those that have joined; leave that argument out"
            )
        if self._scaler is not None and bucket.index() == 0:
            self._scale = float(self._scaler.get_scale())  # Waits for the device: once a step.
        task = _Task(bucket, self._scale)
        result = task.future.then(_tensor)
        self._worker.submit(self._handle, task)
        return result

    def _handle(self, task: _Task) -> None:
        """Takes one bucket. Of a step that failed, whatever is still to come fails alike."""
        if task.is_first:
            self._step_error = None
            if self._tasks:
                self._fail(
                    InputError(
                        "the step before ended without its last bucket; static_graph=True does so in the first "
                        "step of a model that has parameters of several types or devices, or sparse gradients: "
                        "leave it out there"
                    )
                )
        error = self._step_error
        self._tasks.append(task)
        if error is None:
            try:
                return self._take(task)
            except BaseException as raised:
                try:
                    error = self._give_up(raised)
                except BaseException as worse:
                    error = self._failure = worse
        self._step_error = error
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Lets backward raise this error, as soon as it waits for one of the step's buckets. What is
        not finite is for the scaler to see, where there is one: on every rank it skips the step."""
        tasks = self._tasks
        self._begin_anew()
        for task in tasks:
            if task.future.done():
                continue
            if self._scaler is None or not isinstance(error, NonFiniteError):
                task.future.set_result(_Failed(error))
                continue
            with self._on_side_stream(task):
                if task.buffer.is_sparse:
                    infinite = torch.full(task.buffer.shape, float("inf"))
                    task.buffer = _sparse(infinite, task.buffer)
                else:
                    task.buffer.fill_(float("inf"))
                task.future.set_result(task.buffer)

    def _begin_anew(self) -> None:
        self._tasks, self._arrived, self._next = [], set(), 0

    def _take(self, task: _Task) -> None:
        if self._exchange is not None:
            if len(self._tasks) == 1:
                self._exchange.begin(self._step + 1)
                self._averages, self._seconds = self._is_plain, 0.0
            self._note(task)
            new = [task]
            if self._averages and not self._average(task):
                # From here on the step goes by messages, and so does what it has averaged: nothing of that
                # has been handed on.
                self._averages, new = False, self._tasks
            if not self._averages:
                for one in new:
                    self._copy_in(one)
                self._run_groups()
        if not task.is_last:
            return
        if self._exchange is None:
            self._learn_layout()
            for one in self._tasks:
                self._note(one)
                self._copy_in(one)
            assert self._exchange is not None
            self._exchange.begin(self._step + 1)
            self._run_groups()
        awaited = [name for names in self._awaited[self._next :] for name in names]
        missing = [name for name in awaited if name not in self._arrived]
        if missing:
            raise InputError(
                f"parameter `{missing[0]}` is in no bucket of this step; make a new State when the "
                "parameters of the model change"
            )
        if self._averages:
            short = sum(
                (4 - one.buffer.element_size()) * one.buffer.numel() for one in self._tasks
            )
            self._ended(self._exchange._averaged(short, self._seconds))
        else:
            self._ended(self._exchange.finish(self._view))
        self._plan(self._tasks)
        self._copy_out()
        self._begin_anew()

    def _learn_layout(self) -> None:
        """Names the parameters of the first step, and builds the exchange."""
        # DistributedDataParallel hands over the last bucket of the module first.
        parameters = [one for task in reversed(self._tasks) for one in task.parameters]
        if self._names is None:
            width = len(str(len(parameters)))
            names = {id(one): f"parameter.{i:0{width}}" for i, one in enumerate(parameters)}
            self._names = names
        shapes = {self._name(one): list(one.shape) for one in parameters}
        self._build(shapes, pinned=any(task.event is not None for task in self._tasks))

    def _new_exchange(self, shapes: Dict[str, List[int]]) -> Exchange:
        exchange = super()._new_exchange(shapes)
        self._awaited = [[name for names in exchange.buckets for name in names]]
        return exchange

    def _name(self, parameter: torch.Tensor) -> str:
        assert self._names is not None
        name = self._names.get(id(parameter))
        if name is None:
            raise InputError(
                f"a parameter of shape {list(parameter.shape)} is not one of this state's; make a State "
                "for each DistributedDataParallel, and give it the parameters of that module"
            )
        return name

    def _note(self, task: _Task) -> None:
        """Checks the parameters of a bucket that has come."""
        task.names = [self._name(one) for one in task.parameters]
        for name, gradient in zip(task.names, task.gradients):
            place = self._places.get(name)
            if place is None or gradient.numel() != place.stop - place.start:
                raise InputError(
                    f"parameter `{name}` has {gradient.numel()} elements, and had others or none in "
                    "the first step; make a new State when the model changes"
                )
            _check_type(name, gradient)
            if name in self._arrived:
                raise InputError(f"parameter `{name}` is in two buckets of this step")
            self._arrived.add(name)

    def _average(self, task: _Task) -> bool:
        """Averages a bucket's values where they lie: no copies in memory of the exchange, no frames. False
        where one rank cannot, or the mean is not finite, and on all of them: then messages say why."""
        values, turn = task.buffer, len(self._tasks) - 1
        if values.is_cuda or values.is_sparse:
            return False
        if turn == len(self._means):
            self._means.append(torch.empty(0, device="cpu"))
        if self._means[turn].shape != values.shape or self._means[turn].dtype != values.dtype:
            self._means[turn] = torch.empty_like(values)
        mean, begin = self._means[turn], time.perf_counter()
        task.mean = mean
        averaged = self._transport.average(values, mean, (self._step + 1) << 24 | turn)
        self._seconds += time.perf_counter() - begin
        return averaged

    def _copy_in(self, task: _Task) -> None:
        with self._on_side_stream(task):
            for name, gradient in zip(task.names, task.gradients):
                self._flat[self._places[name]].copy_(_dense(gradient), non_blocking=True)
        if task.buffer.device in self._streams:
            self._streams[task.buffer.device].synchronize()
        if task.scale != 1.0:
            for name in task.names:
                self._flat[self._places[name]].div_(task.scale)

    def _on_side_stream(self, task: _Task) -> Any:
        """Where copies from and to a GPU run, after what computed the gradient."""
        if task.event is None:
            return nullcontext()
        device = task.buffer.device
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        self._streams[device].wait_event(task.event)
        return torch.cuda.stream(self._streams[device])

    def _run_groups(self) -> None:
        """Exchanges the groups, in their order, as far as their parameters have come."""
        assert self._exchange is not None
        while self._next < len(self._awaited):
            if not all(name in self._arrived for name in self._awaited[self._next]):
                return
            self._exchange.exchange_group(self._next, self._view)
            self._next += 1

    def _plan(self, tasks: Sequence[_Task]) -> None:
        """Lets the next step's groups end where this step's buckets did: DistributedDataParallel
        makes other buckets after the first step, in the order in which gradients come."""
        assert self._exchange is not None
        if self._settings.get("clip_norm"):
            return  # The norm of the whole gradient comes before the first message.
        turn = {name: i for i, task in enumerate(tasks) for name in task.names}
        groups: List[List[int]] = [[] for _ in tasks]
        buckets = self._exchange.buckets  # Each look at them makes all of these lists.
        for bucket, names in enumerate(buckets):
            groups[max((turn[name] for name in names), default=0)].append(bucket)
        groups = [group for group in groups if group]
        awaited = [[name for b in group for name in buckets[b]] for group in groups]
        if awaited != self._awaited:
            self._exchange.set_groups(groups)
            self._awaited = awaited

    def _copy_out(self) -> None:
        for task in self._tasks:
            if self._averages:
                assert task.mean is not None
                task.future.set_result(task.mean)
                continue
            with self._on_side_stream(task):
                for name, gradient in zip(task.names, task.gradients):
                    mean = self._flat[self._places[name]].view(gradient.shape)
                    if task.scale != 1.0:
                        mean.mul_(task.scale)
                    if gradient.is_sparse:
                        task.buffer = _sparse(mean, gradient)
                    else:
                        gradient.copy_(mean, non_blocking=True)
                task.future.set_result(task.buffer)


def _tensor(future: "torch.futures.Future[Any]") -> torch.Tensor:
    value = future.value()
    if isinstance(value, _Failed):
        raise value.error
    assert isinstance(value, torch.Tensor)
    return value


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: `ddp.register_comm_hook(state, gradwire.torch.hook)`."""
    if isinstance(bucket, tuple):
        raise InputError(
            "with compiled autograd DistributedDataParallel hands over one gradient at a time and no "
            "buckets; set `torch._dynamo.config.optimize_ddp = True` before it is made, or use a "
            "gradwire.torch.Averager"
        )
    if not isinstance(state, State):
        raise InputError(
            f"the hook's state is of type `{type(state).__name__}`; give a gradwire.torch.State"
        )
    return state._submit(bucket)


class Averager(_Ranks):
    """Averages gradients over ranks in loops of one's own, or where a wrapper does not do it.

    The arguments are those of `State` but `parameters` and `scaler`. Every rank calls `reduce_` with the
    same parameters, after `backward` and before the optimizer.
    """

    # What is made anew for other parameters.
    _NAME = "an Averager"

    def reduce_(self, parameters: Parameters) -> Traffic:
        """Overwrites the gradient of each parameter by its mean over ranks, and says what that
        cost. A parameter without a gradient counts as zero, and gets one. No two parameters may
        have the same name. When it raises, no gradient has been changed."""
        with self._giving_up():
            return self._reduce(dict(_named(parameters)))

    def _reduce(self, parameters: Dict[str, torch.Tensor]) -> Traffic:
        parameters = {name: one for name, one in parameters.items() if one.requires_grad}
        tensors = {name: _local(one) for name, one in parameters.items()}
        shapes = {name: list(one.shape) for name, one in tensors.items()}
        if self._exchange is None:
            _check_clipping(self._settings, parameters)
            self._build(shapes, pinned=any(one.is_cuda for one in tensors.values()))
        assert self._exchange is not None
        if shapes != self._shapes:
            raise InputError(
                f"the parameters are others than in the first step; make {self._NAME} for each model"
            )
        for name, parameter in parameters.items():
            gradient, place = parameter.grad, self._flat[self._places[name]]
            _check_type(name, parameter if gradient is None else gradient)
            if gradient is None:
                place.zero_()
            else:
                place.copy_(_dense(_local(gradient)))
        traffic = self._exchange.allreduce(self._step + 1, self._view)
        self._ended(traffic)
        with torch.no_grad():
            for name, parameter in parameters.items():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradient = _local(parameter.grad)
                mean = self._flat[self._places[name]].view(gradient.shape)
                if gradient.is_sparse:
                    parameter.grad = _sparse(mean, gradient)
                else:
                    gradient.copy_(mean)
        return traffic


class _Progress(Averager):
    """The exchange of how far weights have come, by fragments of them, and of gradients before that."""

    _DEPTH = 0
    _NAME = "a DiLoCo"

    def __init__(self, scheme: Union[str, Codec], fragments: int, **given: Any) -> None:
        super().__init__(scheme, **given)
        self._fragments = fragments

    def _new_exchange(self, shapes: Dict[str, List[int]]) -> Exchange:
        exchange = super()._new_exchange(shapes)
        # The parameters of each.
        self.fragments = [list(shapes)]
        if self._fragments > 1:
            groups = _divided(exchange, self._fragments)
            exchange.set_groups(groups)
            self.fragments = [[name for one in group for name in exchange.buckets[one]] for group in groups]
        return exchange


def _divided(exchange: Exchange, count: int) -> List[List[int]]:
    """So many runs of an exchange's buckets with about as many elements each: those of the native trainer."""
    buckets = exchange.buckets
    if count > len(buckets):
        runs = "one run" if len(buckets) == 1 else f"{len(buckets)} runs"
        raise SettingError(
            f"outer: fragments = {count}, and the weights lie in {runs} of whole buckets; write fewer fragments, or "
            'smaller buckets: bucketing="parameter", or 1048576 bytes or fewer'
        )
    places = {name: (begin, end) for name, begin, end in exchange.layout}
    length = max(end for _, end in places.values())
    groups: List[List[int]] = [[] for _ in range(count)]
    for number, names in enumerate(buckets):
        middle = (places[names[0]][0] + places[names[-1]][1]) // 2
        share = middle * count // max(1, length)
        # Each fragment has a bucket: neither one of those before is left empty, nor one of those behind.
        begun = sum(map(bool, groups))
        first = max(0, count - len(buckets) + number, begun - 1)
        groups[min(max(share, first), begun, count - 1)].append(number)
    return groups


class DiLoCo:
    """Local steps: every rank trains by itself, and an exchange every `steps` steps (DiLoCo, Douillard et al.
    2023; with `outer` left out local SGD, Stich 2019).

        diloco = gradwire.torch.DiLoCo(model, optimizer, "topk", ratio=0.01, steps=16)
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            diloco.step()

    At the end of such a round ranks exchange their progress, the weights at its beginning minus the
    weights now, by `scheme`, a name or an object of your own, with the settings of `State`. The mean is the
    gradient of the outer optimizer, SGD with `outer = {"learning_rate": 0.7, "momentum": 0.9, "nesterov":
    True}` (DiLoCo's; left out, ranks take the mean of their weights), and all ranks go on from its weights, which
    have the same bits everywhere. Batch norm's statistics are averaged, too. The optimizer's own vectors stay
    each rank's; with `inner="averaged"` those that all ranks' optimizers have are averaged.

    The first `after` steps exchange gradients: call `reduce_` before the optimizer (post-local SGD, Lin et al. 2020).
    Of `outer` these are Streaming DiLoCo's (Douillard et al. 2025, sections 2.2 and 2.3). `fragments` are exchanged one at
    a time, each once in a round; a fragment is a run of whole buckets, as `bucketing` makes them. With a `delay` an
    exchange goes on beside so many steps that follow; then a rank goes on from `mix` times its own weights plus 1 - `mix`
    times the outer ones (0.5 if left out). After such a round ranks' weights differ, until a step that is the `last`.

    `model` is the plain one, and `optimizer` of its parameters. Make it on every rank, with the same
    arguments, after `init_process_group`: the ranks take rank 0's weights.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheme: Union[str, Codec] = "dense",
        *,
        steps: int = 16,
        after: int = 0,
        outer: Optional[Mapping[str, Any]] = None,
        inner: str = "own",
        process_group: Optional[dist.ProcessGroup] = None,
        timeout: Union[float, timedelta] = 300.0,
        **settings: Any,
    ) -> None:
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise SettingError(
                f"steps = {steps!r} is not possible; write how many steps every rank trains by itself, at "
                "least 1"
            )
        if not isinstance(after, int) or isinstance(after, bool) or after < 0:
            raise SettingError(f"after = {after!r} is not possible; write how many steps exchange gradients, 0 or more")
        if inner not in ("own", "averaged"):
            raise SettingError(f'inner = {inner!r} is not possible; write "own" or "averaged"')
        rule = _outer_rule(outer, steps)
        if rule["delay"] and inner == "averaged":
            raise SettingError(
                'inner = "averaged" waits for the ranks, and a delay of outer does not; write inner="own", or delay = 0'
            )
        if rule["fragments"] > 1 and settings.get("clip_norm"):
            raise SettingError(
                "outer: fragments send one part of the progress at a time, and clip_norm needs the norm of all of it; "
                "write fragments = 1, or leave clip_norm out"
            )
        kept = set(_alone(scheme, settings).state())
        if after and "velocity" in kept:
            raise SettingError(
                f"momentum would act on gradients in the first {after} steps, and then on how far ranks have come; write "
                "after=0, or momentum_correction=0"
            )
        if rule["momentum"] and {"velocity", "average", "momentum"} & kept:
            raise SettingError(
                "momentum would act twice, once before the progress is compressed; leave outer's momentum "
                'out, or write momentum_correction=0 and no feedback with a momentum'
            )
        if (rule["momentum"] or rule["learning_rate"] > 0.1) and _has_no_magnitude(scheme, settings):
            raise SettingError(
                f"what scheme {scheme} or one of its rules sends has no magnitude: every round would move a weight as far as "
                "any other, however far ranks have come; write outer without momentum and with a small learning_rate, such as 0.001 (at most "
                '0.1), or a scheme that sends magnitudes (signsgd with magnitude="mean")'
            )
        self._model, self._parameters = model, _trained(model, optimizer)
        self._optimizer, self._inner, self._steps, self._rule = optimizer, inner, steps, rule
        # Whether something of the gradients is still to come when local steps begin.
        self._carries = after > 0 and bool(_alone(scheme, settings, self._parameters).state())
        if any(
            isinstance(one, torch.nn.parallel.DistributedDataParallel) and one.process_group == group
            for group in [process_group or dist.group.WORLD]
            for one in model.modules()
        ):
            raise SettingError(
                "this model is in a DistributedDataParallel, which averages gradients in every step; give the "
                "model itself, or a process_group across the groups that average"
            )
        self._ranks = _Progress(
            scheme, rule["fragments"], process_group=process_group, timeout=timeout, **settings
        )
        self._rest, self._rest_bytes = Averager("dense", transport=self._transport), 0
        _check_clipping(settings, self._parameters)
        tensors = {name: _local(one.detach()) for name, one in self._parameters.items()}
        for name, one in tensors.items():
            _check_type(name, one)
        shapes = {name: list(one.shape) for name, one in tensors.items()}
        pinned = any(one.is_cuda for one in tensors.values())
        self._ranks._build(shapes, pinned, steps, after, rule, inner)
        # The weights of the last exchange and their momentum, and each fragment of them, whose optimizer takes what is
        # exchanged for its gradient.
        self._outer, self._momentum = torch.empty_like(self._ranks._flat), torch.zeros_like(self._ranks._flat)
        places = [self._place(range(number, number + 1)) for number in range(rule["fragments"])]
        self._parts = {number: torch.nn.Parameter(self._outer[place]) for number, place in enumerate(places)}
        self._outer_optimizer = torch.optim.SGD(
            self._parts.values(),
            lr=rule["learning_rate"],
            momentum=rule["momentum"],
            nesterov=rule["nesterov"],
        )
        if rule["momentum"]:
            for part, place in zip(self._parts.values(), places):
                self._outer_optimizer.state[part]["momentum_buffer"] = self._momentum[place]
        # Steps of this round, below 0 while gradients are exchanged, and fragments whose mean has been taken in it.
        self._done, self._taken, self._after = -after, 0, after
        self._rounds, self._reduced = 0, False
        # With a delay: the step of this round in which a mean that is on its way is taken, and what it will have cost.
        self._away: Optional[Tuple[int, "Future[Optional[Traffic]]"]] = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gradwire")
        # Where batch norm has its statistics: `Module.to` and its like put other tensors there.
        self._normalised = {
            f"{name}.{which}": (module, which)
            for name, module in _unwrapped(model).named_modules()
            if isinstance(module, torch.nn.modules.batchnorm._NormBase)
            for which in ("running_mean", "running_var", "num_batches_tracked")
            if getattr(module, which) is not None
        }
        self._take(self._outer, self._parameters)
        # What is not trained is rank 0's from now on: it is not sent again.
        bare, chosen = _unwrapped(model), {id(one) for one in self._parameters.values()}
        others = [one for one in [*bare.parameters(), *bare.buffers()] if id(one) not in chosen]
        first = self.rank == 0
        for tensor in [self._outer, *(_local(one.detach()) for one in others)]:
            mine = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            given = self._transport.alltoall([mine if first else mine[:0]] * self.world_size)
            if not first:
                tensor.copy_(torch.from_numpy(given[0].copy()).view(tensor.dtype).view(tensor.shape))
        self._put(self._outer, self._parameters)

    @property
    def _statistics(self) -> Dict[str, torch.Tensor]:
        """Batch norm's means and variances, and how many batches they are of, by name."""
        return {name: getattr(module, which) for name, (module, which) in self._normalised.items()}

    @property
    def rank(self) -> int:
        """This process among those that average."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """The number of processes that average."""
        return self._ranks.world_size

    @property
    def rounds(self) -> int:
        """The rounds that ended well."""
        return self._rounds

    @property
    def traffic(self) -> Optional[Traffic]:
        """What the last exchange of progress or gradients cost; None before the first."""
        return self._ranks.traffic

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank's messages have had since this was made, headers included."""
        return self._ranks.wire_bytes + self._rest_bytes

    @property
    def _transport(self) -> Gloo:
        return self._ranks._transport

    def reduce_(self) -> Optional[Traffic]:
        """Call it after `backward` and before the optimizer, where `after` is above 0: in that many first steps it
        overwrites each gradient by its mean over ranks, and says what that cost; later it does nothing. When it raises,
        no gradient has been changed."""
        self._ranks._check()
        if self._done >= 0:
            return None
        self._reduced = True
        with self._ranks._giving_up():
            self._rate()  # What is refused where local steps begin is refused now.
            if self._more():
                raise InputError(self._more())
            return self._ranks._reduce(self._parameters)

    def step(self, *, last: bool = False) -> Optional[Traffic]:
        """Call it after each step of the optimizer. Where ranks take the mean of their progress, it says what that
        cost; else it returns None. A step that is the `last` ends the round, and waits for an exchange of all
        fragments: then all ranks have the same weights. When it raises, weights are what they were, and the next
        call tries the exchange again where that is possible."""
        ranks, fragments, traffic = self._ranks, self._rule["fragments"], None
        with ranks._giving_up(), torch.no_grad():
            if self._done < 0:
                self._end_gradient_step()
                return None
            assert ranks._exchange is not None
            if self._done == self._rounds == 0 and self._carries:
                # What was not sent of gradients becomes a change of weights.
                ranks._exchange.rescale(self._rate())
            self._done += 1
            if self._away is not None and (last or self._done >= self._away[0]):
                (_, future), self._away = self._away, None
                traffic = future.result()
                self._update(range(self._taken, self._taken + 1), ranks._step + 1, traffic, True)
            if last:
                # Schemes count the exchanges of a bucket, which may have had this round's.
                every, turn = range(fragments), ranks._step + 1 + (fragments > 1)
                call, *given = self._call(every, turn)
                traffic = call(*given)
                self._update(every, turn, traffic, False)
            elif self._away is None and self._done >= (self._taken + 1) * self._steps // fragments:
                one, turn = range(self._taken, self._taken + 1), ranks._step + 1
                call, *given = self._call(one, turn)
                if self._rule["delay"]:
                    self._away = self._done + self._rule["delay"], self._worker.submit(call, *given)
                else:
                    traffic = call(*given)
                    self._update(one, turn, traffic, False)
        return traffic

    def _end_gradient_step(self) -> None:
        if not self._reduced:
            raise InputError(
                f"the first {self._after} steps exchange gradients, and this is one of them; call `reduce_()` before "
                "the optimizer's step"
            )
        self._reduced = False
        self._done += 1
        if not self._done:
            self._take(self._outer, self._parameters)
            self._average({name: one for name, one in self._statistics.items() if one.is_floating_point()})

    def _call(self, fragments: range, turn: int) -> Tuple[Any, ...]:
        """The call that exchanges how far the weights of some fragments have come, and what it is given. Where this rank
        refuses, that is such a call as well, so that all ranks raise in the same step. What ranks average beside it is
        averaged."""
        count, ranks = self._rule["fragments"], self._ranks
        rest = {}
        if fragments.stop == count:
            rest.update({name: one for name, one in self._statistics.items() if one.is_floating_point()})
        if self._inner == "averaged":
            rest.update(self._shared(self._vectors(self._names(fragments))))
        self._average(rest)
        assert ranks._exchange is not None
        if self._more():
            return ranks._exchange.abort, turn, self._more()
        place, flat = self._place(fragments), ranks._flat
        self._take(flat, self._names(fragments))
        torch.sub(self._outer[place], flat[place], out=flat[place])
        if len(fragments) == count:
            return ranks._exchange.allreduce, turn, ranks._view
        return ranks._exchange.allreduce_group, turn, fragments.start, ranks._view

    def _update(self, fragments: range, turn: int, traffic: Optional[Traffic], late: bool) -> None:
        """Updates the outer weights of some fragments by the mean that has come, and lets the model go on from them;
        where the mean is late, from a mixture with its own."""
        ranks = self._ranks
        if traffic is not None:  # Of a mean that was loaded it is not known.
            ranks._count(traffic)
        for number, part in self._parts.items():
            part.grad = ranks._flat[self._place(range(number, number + 1))] if number in fragments else None
        self._outer_optimizer.step()
        mix, weights, names = numpy.float32(self._rule["mix"] if late else 0), self._outer, self._names(fragments)
        if mix:
            weights, place = torch.empty_like(self._outer), self._place(fragments)
            self._take(weights, names)
            # Rounded as the native trainer does.
            weights[place].mul_(float(mix)).add_(self._outer[place] * float(numpy.float32(1) - mix))
        self._put(weights, names)
        self._taken = fragments.stop
        if self._taken == self._rule["fragments"]:
            self._taken, self._done = 0, self._rule["delay"] if late else 0
            self._rounds, ranks._step = self._rounds + 1, turn

    def _more(self) -> str:
        """What is to be said where parameters are trained that were not at first."""
        more = [name for name in _trained(self._model, self._optimizer) if name not in self._parameters]
        if not more:
            return ""
        return (
            f"`{more[0]}` is trained, and was not when the DiLoCo was made: ranks would not exchange it; make "
            "a new DiLoCo when a parameter is unfrozen, or given to the optimizer"
        )

    def _rate(self) -> float:
        """The optimizer's learning rate, by which what was not sent of gradients is multiplied."""
        rates = sorted({float(group["lr"]) for group in self._optimizer.param_groups})
        if self._carries and len(rates) > 1:
            raise InputError(
                f"the optimizer's groups have the learning rates {rates}, and what was not sent of gradients becomes a change "
                "of weights by one of them; write one, or after=0, or take a scheme that keeps nothing, such as dense"
            )
        return rates[0]

    def _names(self, fragments: range) -> List[str]:
        """The parameters of some fragments, in the order of the exchange."""
        return [name for number in fragments for name in self._ranks.fragments[number]]

    def _place(self, fragments: range) -> slice:
        """Where some fragments lie, one after the other."""
        places = [self._ranks._places[name] for name in self._names(fragments)]
        return slice(min([one.start for one in places], default=0), max([one.stop for one in places], default=0))

    def close(self) -> None:
        """Leaves the group of ranks, once an exchange that is on its way has ended. With a delay call it, or
        `step(last=True)`, before `destroy_process_group`; else it is not needed at the end of a process."""
        self._worker.shutdown()
        self._ranks._close("the local steps have been closed")

    def state_dict(self) -> Dict[str, Any]:
        """What this rank needs to go on: residual, outer weights and momentum, batch norm's statistics, the
        optimizer's state, and in the middle of a round this rank's weights; a mean that is on its way is waited for.
        `gather_state` collects those of all ranks."""
        if self._away is not None:
            self._away[1].result()
        saved = self._ranks.state_dict()
        saved.update(done=self._done, taken=self._taken, fragments=self._rule["fragments"], rounds=self._rounds)
        saved["outer"] = self._by_name(self._outer)
        if self._rule["momentum"]:
            saved["outer_momentum"] = self._by_name(self._momentum)
        if self._done or self._rule["fragments"] > 1:
            now = torch.empty_like(self._outer)
            self._take(now, self._parameters)
            saved["weights"] = self._by_name(now)
        if self._away is not None:
            mean, names = self._by_name(self._ranks._flat), self._names(range(self._taken, self._taken + 1))
            saved["due"], saved["mean"] = self._away[0], {name: mean[name] for name in names}
        saved["statistics"] = {name: one.detach().cpu().clone() for name, one in self._statistics.items()}
        saved["optimizer"] = _on_host(self._optimizer.state_dict())
        return saved

    def load_state_dict(self, saved: Dict[str, Any]) -> None:
        """Takes up what `state_dict` or `gather_state` returned, and gives it to the model and the optimizer
        too. Of another number of ranks every rank takes the mean of their weights and of their optimizers'
        vectors, and the residuals are dealt out: mean progress and what is still to come stay what they were."""
        given, saved = saved, _own_part(saved, self._transport)
        ranks = given.get("ranks") or [saved]
        for part in ranks:
            self._check_saved(part)
        if "ranks" in given and len(ranks) != self.world_size:
            keys = ("weights", "statistics", "optimizer")
            saved.update({key: _mean_of([one.get(key) for one in ranks]) for key in keys})
        if self._away is not None:
            self._away[1].exception()  # What comes of it is dropped.
            self._away = None
        self._ranks.load_state_dict(saved)
        self._optimizer.load_state_dict(_on_host(saved["optimizer"]))
        self._done, self._taken = saved["done"], saved.get("taken", 0)
        self._rounds, self._reduced = saved.get("rounds", saved["step"]), False
        for name, one in self._statistics.items():
            one.copy_(saved["statistics"][name])
        now, mean = torch.empty_like(self._outer), saved.get("mean", {})
        weights, momentum = saved.get("weights") or saved["outer"], saved.get("outer_momentum")
        for name, place in self._ranks._places.items():
            self._outer[place].copy_(saved["outer"][name].view(-1))
            now[place].copy_(weights[name].view(-1))
            if momentum:
                self._momentum[place].copy_(momentum[name].view(-1))
            if name in mean:
                self._ranks._flat[place].copy_(mean[name].view(-1))
        if not momentum:
            self._momentum.zero_()
        if mean:
            self._away = saved["due"], Future()
            self._away[1].set_result(None)
        self._put(now, self._parameters)

    def _check_saved(self, part: Dict[str, Any]) -> None:
        """Refuses a rank's part that is not of this model and optimizer, before anything is changed."""
        if "outer" not in part:
            raise StateError(
                "saved state: it is none of local steps; give what DiLoCo's `state_dict` or `gather_state` returned"
            )
        statistics = part.get("statistics")
        if part["parameters"] != self._ranks._shapes or set(statistics or ()) != set(self._statistics):
            raise StateError("saved state: it is of another model, or the optimizer has other parameters")
        for key in ("outer", "outer_momentum", "weights"):
            if key in part:
                _check_elements(key, part[key], self._ranks._shapes)
        shapes = {name: list(one.shape) for name, one in self._statistics.items()}
        _check_elements("statistics", statistics, shapes)
        try:
            found = [len(group["params"]) for group in part["optimizer"]["param_groups"]]
        except (KeyError, TypeError):
            found = []
        if found != [len(group["params"]) for group in self._optimizer.param_groups]:
            raise StateError("saved state: its optimizer has other groups of parameters than this one")
        if not isinstance(part.get("done"), int) or not isinstance(part.get("rounds", 0), int):
            raise StateError("saved state: it does not say how many steps of a round, and how many rounds, are done")
        if part["done"] < -self._after:
            raise StateError(
                f"saved state: {-part['done']} more steps of it exchange gradients, and here after = {self._after}; write "
                "after as it was"
            )
        fragments, taken = part.get("fragments", 1), part.get("taken", 0)
        if fragments != self._rule["fragments"] or taken not in range(fragments):
            raise StateError(
                f"saved state: its weights have {fragments} fragments, and here {self._rule['fragments']}; write outer's "
                "fragments as they were"
            )
        if "mean" in part:
            names = self._names(range(taken, taken + 1))
            _check_elements("mean", part["mean"], {name: self._ranks._shapes[name] for name in names})
            if not isinstance(part.get("due"), int):
                raise StateError("saved state: it does not say in which step the mean is taken")

    def _take(self, flat: torch.Tensor, names: Iterable[str]) -> None:
        """Copies the weights of these parameters into a vector of the exchange's layout."""
        for name in names:
            flat[self._ranks._places[name]].copy_(_local(self._parameters[name].detach()).reshape(-1))

    def _put(self, flat: torch.Tensor, names: Iterable[str]) -> None:
        """Gives these parameters the weights in such a vector."""
        for name in names:
            local = _local(self._parameters[name].detach())
            local.copy_(flat[self._ranks._places[name]].view(local.shape))

    def _by_name(self, flat: torch.Tensor) -> Dict[str, torch.Tensor]:
        shapes = self._ranks._shapes
        return {
            name: flat[place].view(shapes[name]).clone() for name, place in self._ranks._places.items()
        }

    def _vectors(self, names: Iterable[str]) -> Dict[str, torch.Tensor]:
        """What the optimizer keeps for each element of these parameters, such as its momentum."""
        return {
            f"{name}/{key}": _local(value)
            for name, one in [(name, self._parameters[name]) for name in names]
            for key, value in self._optimizer.state.get(one, {}).items()
            if isinstance(value, torch.Tensor) and value.shape == one.shape and value.dtype in _TYPES
        }

    def _shared(self, vectors: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Those that the optimizers of all ranks have: one makes them when a parameter first has a gradient.
        Where checksums of the names say that some differ, ranks send the names."""
        names = json.dumps(sorted(vectors)).encode()
        for mine in (hashlib.sha256(names).digest(), names):
            heard = [one.tobytes() for one in self._transport.allgather(numpy.frombuffer(mine, dtype=numpy.uint8))]
            self._rest_bytes += len(mine)
            if heard == [mine] * self.world_size:
                return vectors
        common = set.intersection(*(set(json.loads(one)) for one in heard))
        return {name: one for name, one in vectors.items() if name in common}

    def _average(self, tensors: Dict[str, torch.Tensor]) -> None:
        """Overwrites tensors by their mean over ranks, which crosses the wire as float32."""
        if not tensors:
            return
        holders = []
        for name, tensor in tensors.items():
            holder = torch.empty_like(tensor, requires_grad=True)
            holder.grad = tensor
            holders.append((name, holder))
        if set(self._rest._shapes) != set(tensors):
            self._rest = Averager("dense", transport=self._transport)
        self._rest_bytes += self._rest.reduce_(holders).wire_bytes


def _outer_rule(given: Optional[Mapping[str, Any]], steps: int) -> Dict[str, Any]:
    """The settings of an outer optimizer and of its fragments, checked for rounds of so many steps."""
    rule = {"learning_rate": 1.0, "momentum": 0.0, "nesterov": False, "fragments": 1, "delay": 0, "mix": 0.5}
    for key, value in (given or {}).items():
        if key not in rule:
            raise SettingError(f"outer has no setting `{key}`; there are {', '.join(rule)}")
        if not isinstance(value, (bool, int, float)):
            raise SettingError(f"outer: {key} = {value!r} is not possible; write a number, or True or False")
        if type(rule[key]) is int and type(value) is not int:
            raise SettingError(f"outer: {key} = {value!r} is not possible; write a whole number")
        rule[key] = type(rule[key])(value)
    rate, momentum, fragments, delay = (rule[key] for key in ("learning_rate", "momentum", "fragments", "delay"))
    if not 0 < rate < float("inf"):
        raise SettingError(f"outer: learning_rate = {rate} is not possible; write a number above 0")
    for key in ("momentum", "mix"):
        if not 0 <= rule[key] < 1:
            raise SettingError(f"outer: {key} = {rule[key]} is not possible; write at least 0 and below 1")
    if rule["nesterov"] and not momentum:
        raise SettingError("outer: nesterov needs a momentum above 0, such as 0.9")
    for key, least in [("fragments", 1), ("delay", 0)]:
        if rule[key] < least:
            raise SettingError(f"outer: {key} = {rule[key]} is not possible; write {least} or more")
    if fragments > steps:
        raise SettingError(
            f"outer: fragments = {fragments} are exchanged at as many steps of a round, and steps = {steps}; write "
            f"fragments = {steps} or fewer, or steps = {fragments} or more"
        )
    apart = steps // fragments
    if delay and delay >= apart:
        raise SettingError(
            f"outer: delay = {delay} must be below the steps from one exchange to the next, {apart}: steps = {steps} over "
            f"fragments = {fragments}; write delay = {apart - 1}{' or less' if apart > 1 else ''}, or more steps"
        )
    return rule


def _has_no_magnitude(scheme: Union[str, Codec], settings: Mapping[str, Any]) -> bool:
    """Whether what a scheme by name, or one of the rules, makes of a gradient is the same for one that is a thousand
    times as large."""
    rules = [[{**rule, "match": "*"}] for rule in settings.get("rules") or () if isinstance(rule, Mapping)]

    def mean(scale: int, rules: Optional[List[Dict[str, Any]]]) -> Any:
        alone = {**settings, "start_step": 1, "clip_norm": None, "dense_below": 0, "rules": rules}
        gradient = scale * numpy.array([0.5, -0.25, 1, -2, 0.75, -1.5, 0.125, -0.625], dtype=numpy.float32)
        Exchange({"weight": [8]}, scheme, **alone).allreduce(1, gradient)
        return gradient

    return isinstance(scheme, str) and any(
        mean(1, one).any() and numpy.array_equal(mean(1, one), mean(1024, one)) for one in [None, *rules]
    )


def _trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, torch.Tensor]:
    """The parameters of the model that the optimizer has, by name."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise SettingError(f"the optimizer is a `{type(optimizer).__name__}`, and not one of PyTorch")
    named = _named(model)
    known = {id(one) for _, one in named}
    trained = [one for group in groups for one in group["params"]]
    for one in trained:
        if id(one) not in known:
            raise SettingError(
                f"the optimizer has a parameter of shape {list(one.shape)} that is not the model's; make it of "
                "`model.parameters()`"
            )
    chosen = {id(one) for one in trained}
    return {name: one for name, one in named if id(one) in chosen and one.requires_grad}


def _on_host(saved: Any) -> Any:
    """A copy, its tensors in ordinary memory: whoever reads them may have other devices, and training goes on in the others. NumPy's numbers, as a schedule may
    leave, become Python's: `torch.load(weights_only=True)` reads no others."""
    if isinstance(saved, torch.Tensor):
        return saved.detach().to("cpu", copy=True)
    if isinstance(saved, numpy.generic):
        return saved.item()
    if isinstance(saved, dict):
        return {key: _on_host(one) for key, one in saved.items()}
    if isinstance(saved, list):
        return [_on_host(one) for one in saved]
    return saved


def _mean_of(parts: List[Any]) -> Any:
    """The mean of what those ranks have saved that have it: of every floating tensor in it, and the first such rank's of
    all else."""
    parts = [one for one in parts if one is not None]
    if not parts:
        return None
    first = parts[0]
    if isinstance(first, torch.Tensor) and first.is_floating_point():
        return torch.stack([one.double() for one in parts]).mean(0).to(first.dtype)
    if isinstance(first, dict):
        keys = dict.fromkeys(key for one in parts for key in one)
        return {key: _mean_of([one.get(key) for one in parts]) for key in keys}
    return first


def _check_type(name: str, gradient: torch.Tensor) -> None:
    """Refuses a gradient that float32 would not hold."""
    if gradient.dtype not in _TYPES:
        raise InputError(
            f"the gradient of parameter `{name}` is of {gradient.dtype}, and only float16, bfloat16 and "
            "float32 are averaged; convert the model with `model.float()`, and make a complex "
            "parameter a real one with `torch.view_as_real`"
        )


def _laid(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient in a bucket, where it lies as its parameter does in memory, as in channels_last."""
    if parameter.is_contiguous():
        return gradient
    dense = torch.empty_like(parameter, device="meta").stride()
    return gradient.as_strided(parameter.shape, dense) if dense == parameter.stride() else gradient


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """The elements of a gradient end to end."""
    return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)


def _sparse(mean: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The rows of a mean that are not zero, of the type and on the device of a sparse gradient."""
    return mean.to(like.device, like.dtype).to_sparse(like.sparse_dim())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is divided over ranks, or the tensor."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def _check_clipping(settings: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]) -> None:
    """Refuses a limit on a norm of which a rank knows a part: that of parameters that are divided over ranks."""
    divided = next((name for name, one in parameters.items() if _local(one).numel() != one.numel()), None)
    if divided is not None and settings.get("clip_norm"):
        raise SettingError(
            f"clip_norm needs the norm of the whole gradient, and this rank has a part of `{divided}`; leave it out"
        )


def _plain(module: Any) -> Any:
    """What `torch.compile` was given, or the module itself."""
    while isinstance(module, torch.nn.Module) and hasattr(module, "_orig_mod"):
        module = module._orig_mod
    return module


def _unwrapped(module: Any) -> Any:
    """The model itself, without DistributedDataParallel and `torch.compile` around it."""
    module = _plain(module)
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        module = _plain(module.module)
    return module


def _named(parameters: Parameters) -> List[Tuple[str, torch.Tensor]]:
    """Parameters with the names that they have in the model itself: what wrappers put before and
    between them is taken off."""
    parameters = _unwrapped(parameters)
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.named_parameters()
    given: List[Any] = list(parameters)
    if all(isinstance(one, torch.Tensor) for one in given):
        width = len(str(len(given)))
        return [(f"parameter.{i:0{width}}", one) for i, one in enumerate(given)]
    names: Set[str] = set()
    for one in given:
        if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], torch.Tensor)):
            raise InputError(
                "parameters are a module, its `named_parameters()`, or tensors; this holds a "
                f"`{type(one).__name__}`"
            )
        if one[0] in names:
            raise InputError(
                f"two parameters have the name `{one[0]}`; give each a name of its own, such as "
                "`named_parameters()` of a module that holds both"
            )
        names.add(one[0])
    return [(_WRAPPERS.sub("", name), one) for name, one in given]


class _Unread:
    """What stands for a rank's part until it has been read. A checkpoint is never written of it."""

    def __reduce__(self) -> Any:
        raise StateError("this Checkpoint was made with a folder, to load; to save, give Checkpoint(state) without one")


class Checkpoint:
    """A state for `torch.distributed.checkpoint`, where every rank writes its own part:

        dcp.save({"model": ..., "gradwire": Checkpoint(state)}, checkpoint_id=folder)
        dcp.load({"model": ..., "gradwire": Checkpoint(state, folder)}, checkpoint_id=folder)

    `state` is a `State`, an `Averager`, a `DiLoCo` or a `gradwire.fsdp.State`. To load, give the folder too: the number
    of ranks that wrote it may be another one.
    """

    def __init__(self, state: Any, folder: Union[str, "os.PathLike[str]", None] = None) -> None:
        if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5):
            raise SettingError(
                f"Checkpoint needs PyTorch 2.5 or newer, and this is {torch.__version__}: before, a checkpoint has what is no "
                "tensor of the first rank alone; use gather_state"
            )
        self._state = state
        self._folder = folder

    def state_dict(self) -> Dict[str, Any]:
        """This rank's part under its number in the whole job; to load, what is to be read."""
        transport = self._state._transport
        if self._folder is None:
            return {f"rank.{transport.ranks[transport.rank]}": _packed(self._state.state_dict())}
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        written = FileSystemReader(self._folder).read_metadata().state_dict_metadata
        found = {int(match[1]) for name in written for match in [_RANK.search(name)] if match}
        if not found:
            raise StateError(f"saved state: {self._folder} holds none; it was saved without a Checkpoint")
        needed = set(transport.subgroup or found)
        if not needed <= found:
            raise StateError(
                f"saved state: {self._folder} has no part of rank {min(needed - found)}; what some ranks have saved "
                "goes back to a group of the same ranks"
            )
        return {f"rank.{rank}": _Unread() for rank in needed}

    def load_state_dict(self, read: Dict[str, Any]) -> None:
        """Takes up what was read: as `load_state_dict` of the state does."""
        ranks = sorted(int(name.partition(".")[2]) for name in read)
        parts = [_unpacked(read[f"rank.{rank}"], rank) for rank in ranks]
        self._state.load_state_dict({"version": _VERSION, "ranks": parts})


def gather_state(state: Any, destination: int = 0) -> Optional[Dict[str, Any]]:
    """Every rank's state on rank `destination` of those that average, for one checkpoint; None on the others. All
    of them call it, between two steps. `load_state_dict` of every rank takes the result."""
    if not 0 <= destination < state.world_size:
        raise InputError(f"destination = {destination} is none of the {state.world_size} ranks that average")
    mine = numpy.frombuffer(_packed(state.state_dict()), dtype=numpy.uint8)
    parts = [mine if rank == destination else mine[:0] for rank in range(state.world_size)]
    given = state._transport.alltoall(parts)
    if state.rank != destination:
        return None
    ranks = [_unpacked(part.tobytes(), rank) for rank, part in enumerate(given)]
    return {"version": _VERSION, "ranks": ranks}
