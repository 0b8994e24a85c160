"""Compressed gradients under `fully_shard` (FSDP2).

    fully_shard(model)
    state = gradwire.fsdp.compress(model, "topk", ratio=0.01)

Each rank's gradients of a unit of `fully_shard` are compressed as they come out of the backward pass, and
each rank keeps its part of the mean: what `fully_shard` does by reduce-scatter.
"""

import math
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from ._errors import InputError, SettingError, StateError
from ._gloo import Gloo, ranks_of
from ._gradwire import Traffic
from ._schemes import Codec
from .torch import _VECTORS, _WRAPPERS, _alone, _check_type, _own_part, _Ranks

__all__ = ["State", "compress"]


class _Unit(_Ranks):
    """The reduce-scatter of one unit of `fully_shard`."""

    def __init__(
        self, shapes: Dict[str, List[int]], sources: List[Any], scheme: Union[str, Codec], **given: Any
    ) -> None:
        super().__init__(scheme, **given)
        # As the unit has them, which is the order of the gradients that it gives.
        self.parameters = shapes
        # What `fully_shard` knows of each.
        self._sources = sources

    def allocate(
        self, size: Any, *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """What `fully_shard` asks for room."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Overwrites `output_tensor` by this rank's part of the mean, or of the sum."""
        with self._giving_up():
            self._reduce(output_tensor, input_tensor, op)

    def _reduce(self, output: torch.Tensor, given: torch.Tensor, op: Any) -> None:
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise InputError(
                f"`fully_shard` asks for {op}, and only averages and sums are compressed; leave "
                "`set_gradient_divide_factor` out"
            )
        if self._exchange is None:
            types = {getattr(one, "sharded_grad_dtype", None) for one in self._sources}
            if len(types) > 1:
                raise InputError(
                    f"the gradients of the unit with `{next(iter(self.parameters))}` have the types "
                    f"{sorted(map(str, types))}; give its parameters one `grad_dtype`, or make those of another type a "
                    "unit of their own"
                )
            self._build(self.parameters, pinned=given.is_cuda)
        assert self._exchange is not None
        name = next(iter(self.parameters))
        _check_type(name, given)
        rows = given.view(self.world_size, -1)
        parts = self._parts()
        if rows.shape[1] != sum(width for _, width in parts):
            raise InputError(
                f"`fully_shard` gives the gradients of some of the parameters from `{name}` on, and "
                "all of a unit have to have one in each step; freeze those that have none before "
                "`fully_shard`, or make them a unit of their own"
            )
        begin = 0
        for name, width in parts:
            flat = self._flat[self._places[name]]
            flat.copy_(rows[:, begin : begin + width].reshape(-1)[: flat.numel()])
            begin += width
        traffic = self._exchange.allreduce(self._step + 1, self._view)
        self._ended(traffic)
        begin = 0
        for name, width in parts:
            mean = self._flat[self._places[name]][self.rank * width : (self.rank + 1) * width]
            if op == dist.ReduceOp.SUM:
                mean = mean * self.world_size
            output[begin : begin + mean.numel()].copy_(mean)
            output[begin + mean.numel() : begin + width].zero_()
            begin += width

    def _parts(self) -> List[Tuple[str, int]]:
        """Of each parameter the elements that a rank has: whole rows, as many on each rank."""

        def width(shape: List[int]) -> int:
            rows = shape[0] if shape else 1
            return math.ceil(rows / self.world_size) * math.prod(shape[1:])

        return [(name, width(shape)) for name, shape in self.parameters.items()]


class State:
    """What the units of one model keep between steps: `compress` makes it."""

    def __init__(self, units: Dict[str, _Unit], transport: Gloo) -> None:
        self._units = units
        self._transport = transport

    @property
    def rank(self) -> int:
        """This process among those that the model is divided over."""
        return self._transport.rank

    @property
    def world_size(self) -> int:
        """The number of processes that the model is divided over."""
        return self._transport.world_size

    @property
    def step(self) -> int:
        """The last step that ended well in every unit; steps count from 1."""
        return min(unit.step for unit in self._units.values())

    @property
    def traffic(self) -> Dict[str, Optional[Traffic]]:
        """What the last step of each unit cost, by the module's name."""
        return {name: unit.traffic for name, unit in self._units.items()}

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank's messages have had since the state was made, headers included."""
        return sum(unit.wire_bytes for unit in self._units.values())

    def close(self) -> None:
        """Leaves the group of ranks. Not needed at the end of a process."""
        for unit in self._units.values():
            unit._close("the state has been closed")

    def state_dict(self) -> Dict[str, Any]:
        """What this rank has to keep for its next messages: residuals of whole parameters, by name.
        `gradwire.torch.gather_state` collects those of all ranks."""
        all_of_it: Dict[str, Any] = {}
        for name, unit in self._units.items():
            saved = unit.state_dict()
            if not all_of_it:
                all_of_it = dict(saved, parameters={}, compressors={}, buckets=[], units={})
            # One that has not been used in a step is behind the others.
            all_of_it["step"] = max(saved["step"], all_of_it["step"])
            all_of_it["units"][name] = {"step": saved["step"], "buckets": saved["buckets"]}
            for key in ("parameters", *_VECTORS):
                if key in saved:
                    all_of_it[key] = {**all_of_it.get(key, {}), **saved[key]}
            learnt = {f"{name}/{key}": value for key, value in saved["compressors"].items()}
            all_of_it["compressors"].update(learnt)
        return all_of_it

    def load_state_dict(self, saved: Dict[str, Any]) -> None:
        """Takes up what `state_dict` or `gather_state` returned, before the first step; of another
        number of ranks as `gradwire.torch.State` does."""
        saved = _own_part(saved, self._transport)
        units = saved.pop("units", None)
        if not isinstance(units, dict) or not all(_is_unit(one) for one in units.values()):
            raise StateError("saved state: its units are missing, or damaged; give what `gradwire.fsdp.State` saved")
        known = {
            one: shape
            for name, unit in self._units.items()
            if units.get(name, saved)["step"]
            for one, shape in unit.parameters.items()
        }
        for name in sorted({*saved["parameters"], *known}):
            if saved["parameters"].get(name) != known.get(name):
                raise StateError(
                    f"saved state: it is of another model; `{name}` is on one side only, or has another shape"
                )
        for name, unit in self._units.items():
            part = dict(saved, **units.get(name, {}))
            for key in ("parameters", *_VECTORS):
                if key in saved:
                    of = sorted(unit.parameters) if part["step"] else ()
                    part[key] = {one: saved[key][one] for one in of}
            # Names of modules hold no `/`.
            learnt = [(*entry.partition("/"), value) for entry, value in saved["compressors"].items()]
            part["compressors"] = {rest: value for unit_name, _, rest, value in learnt if unit_name == name}
            unit.load_state_dict(part)


def _is_unit(saved: Any) -> bool:
    """Whether this is what a unit has in a saved state."""
    return isinstance(saved, dict) and isinstance(saved.get("step"), int) and isinstance(saved.get("buckets"), list)


def compress(
    model: torch.nn.Module,
    scheme: Union[str, Codec],
    *,
    timeout: Union[float, timedelta] = 300.0,
    **settings: Any,
) -> State:
    """Compresses the gradients of a model that `fully_shard` was applied to, on every rank.

    `scheme` and `settings` are those of `gradwire.torch.State` but `parameters`, `process_group` and
    `scaler`. Each unit of `fully_shard` is exchanged by itself, as soon as the backward pass has its
    gradients. A residual is of whole parameters: with it a rank keeps twelve bytes an element, and without error
    feedback four, of the memory that `fully_shard` saves. Call it before the first backward pass.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise SettingError(
                "this model is in a DistributedDataParallel, which averages gradients itself; use either "
                "`fully_shard` or DistributedDataParallel"
            )
    names = {id(one): _WRAPPERS.sub("", name) for name, one in model.named_parameters()}
    found: Dict[str, Tuple[Any, Any]] = {}
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        inner: Any = module._get_fsdp_state()
        groups = getattr(inner, "_fsdp_param_groups", None)
        if groups is None:
            groups = [inner._fsdp_param_group] if inner._fsdp_param_group is not None else []
        if len(groups) > 1:
            raise SettingError(f"module `{name}`: its parameters have meshes of their own each")
        for group in groups:
            found[_WRAPPERS.sub("", name)] = (module, group)
    if not found:
        raise SettingError("no module of this model was given to `fully_shard`; call it first")
    layouts: Dict[str, Dict[str, List[int]]] = {}
    sources: Dict[str, List[Any]] = {}
    for name, (module, group) in found.items():
        if isinstance(group._reduce_scatter_comm, _Unit):
            raise SettingError(f"module `{name}` is compressed already; compress a model once")
        parameters = [one for one in group.fsdp_params if one.sharded_param.requires_grad]
        for one in parameters:
            if one.fsdp_placement.dim != 0:
                raise SettingError(
                    f"parameter `{names[id(one.sharded_param)]}` is divided along dimension "
                    f"{one.fsdp_placement.dim}, and only the first is compressed; leave "
                    "`shard_placement_fn` out"
                )
        if parameters:
            sources[name] = parameters
            layouts[name] = {names[id(one.sharded_param)]: list(one._orig_size) for one in parameters}
    if not layouts:
        raise SettingError("no parameter of this model needs a gradient")
    first, *others = layouts
    group = found[first][1].mesh_info.shard_process_group
    for name in others:
        ranks = ranks_of(found[name][1].mesh_info.shard_process_group)
        if ranks != ranks_of(group):
            raise SettingError(
                f"module `{name}` is divided over the ranks {ranks}, and module `{first}` over {ranks_of(group)}; "
                "give all of `fully_shard` the same mesh"
            )
    if settings.get("clip_norm") and len(layouts) > 1:
        raise SettingError(
            "clip_norm needs the norm of the whole gradient, and each unit of `fully_shard` is exchanged by itself; leave it "
            "out, or give `fully_shard` the model alone"
        )
    _alone(scheme, settings, [one for layout in layouts.values() for one in layout])
    rules = settings.pop("rules", None) or []
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    transport = Gloo(group, timeout)
    units: Dict[str, _Unit] = {}
    for name, layout in layouts.items():
        own = _rules_of(layout, rules) or None
        units[name] = _Unit(layout, sources[name], scheme, transport=transport, timeout=timeout, rules=own, **settings)
        module = found[name][0]
        module.set_custom_reduce_scatter(units[name])
        if hasattr(module, "set_reduce_scatter_unused_params"):
            module.set_reduce_scatter_unused_params(True, recurse=False)
    return State(units, transport)


def _rules_of(names: Iterable[str], rules: Sequence[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    """The rules that some of these parameters go by; one that none goes by would be an error in their unit."""
    taken = {next((i for i, rule in enumerate(rules) if fnmatchcase(name, rule["match"])), None) for name in names}
    return [rule for i, rule in enumerate(rules) if i in taken]
