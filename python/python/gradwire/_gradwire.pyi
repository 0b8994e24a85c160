from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union, final

import numpy
from numpy.typing import NDArray

from ._schemes import Codec
from ._transport import Transport

@final
class Compressor:
    """Compresses the gradients of one rank, and reads the messages of all ranks.

    `scheme` and `settings` are those of `schemes()`. Ranks share the seed and differ in `rank`,
    from which random schemes draw. With error feedback (a setting of the scheme), what an array's
    message leaves out is added to the next array. The first array fixes the length. `force` allows
    error feedback where it does harm.

    >>> import gradwire, numpy
    >>> compressor = gradwire.Compressor("topk", ratio=0.25)
    >>> message = compressor.encode(numpy.array([1, 8, 2, 3], numpy.float32), step=1)
    >>> compressor.decode(message, 4).tolist()
    [0.0, 8.0, 0.0, 0.0]
    """

    def __new__(
        cls,
        scheme: str,
        *,
        seed: int = 0,
        rank: int = 0,
        force: bool = False,
        **settings: Any,
    ) -> Compressor: ...
    @property
    def scheme(self) -> str:
        """The scheme's name."""

    @property
    def length(self) -> Optional[int]:
        """The elements that it is for; None before the first array or message."""

    @property
    def gauges(self) -> dict[str, float]:
        """What the last message was like."""

    def encode(self, array: NDArray[numpy.float32], step: int) -> bytes:
        """The message for an array, at a step that counts from 1."""

    def decode(self, message: bytes, length: int) -> NDArray[numpy.float32]:
        """The array of `length` elements that a message stands for."""

    def learn(self, messages: Sequence[bytes], mean: NDArray[numpy.float32], step: int) -> None:
        """Learns from one step: every rank's message in order of rank, and their mean. For schemes
        that adapt to what was sent (`alq`, `aggregation-aware`, `casq`, `dqsgd`, `optquant`, `sidco`); without it they
        stay as they are in their first step."""

    def __deepcopy__(self, memo: Any, /) -> Compressor: ...
    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that later messages depend on."""

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes up what `state` returned; nothing changes when it does not fit."""

@final
class Exchange:
    """Turns each rank's gradient into the mean over ranks, bit-identical on all of them.

    `parameters` gives the shape of each parameter; the flat gradient has them in the order of
    `layout`: that of their names, those below `dense_below` behind the others. `scheme` is a name of
    `schemes()` or a `Codec`. `transport` carries the messages; without one there is one rank. If it has an
    `alltoall`, an `allgather` of one rank must be able to meet the `alltoall` of another (see
    `Transport`). All ranks make the same calls with the same arguments. `start_step` is the first
    step that is compressed; `bucketing` is "whole", "parameter" or a number of bytes; `feedback` says
    whether there is error feedback, or in which form: `{"decay": 0.95}`, `{"efsgdm": 0.1}` or
    `{"momentum": 0.9}`; `rules` give parameters a scheme of their own by name: `[{"match": "*.bias", "scheme": "dense"}]`. The other
    arguments are those of the policy around a scheme, and `settings` are the scheme's. What is None
    is the scheme's habit: a `momentum_correction` of 0.9 for `dgc`, after which the optimizer must
    have no momentum of its own.

    >>> import gradwire, numpy
    >>> exchange = gradwire.Exchange({"bias": [2], "weight": [2, 3]}, "topk", ratio=0.25)
    >>> gradient = numpy.arange(8, dtype=numpy.float32)
    >>> traffic = exchange.allreduce(1, gradient)
    >>> gradient.tolist(), exchange.state()["residual"].tolist()
    ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 7.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0])
    """

    def __new__(
        cls,
        parameters: Mapping[str, Sequence[int]],
        scheme: Union[str, Codec],
        transport: Optional[Transport] = None,
        *,
        seed: int = 0,
        bucketing: Union[str, int, None] = None,
        dense_below: Optional[int] = None,
        start_step: Optional[int] = None,
        momentum_correction: Optional[float] = None,
        momentum_masking: Optional[bool] = None,
        clip_norm: Optional[float] = None,
        measure_every: Optional[int] = None,
        feedback: Union[bool, Mapping[str, float], None] = None,
        rules: Optional[Sequence[Mapping[str, Any]]] = None,
        force: bool = False,
        **settings: Any,
    ) -> Exchange: ...
    @property
    def rank(self) -> int:
        """This process among those that average."""

    @property
    def world_size(self) -> int:
        """The number of processes that average."""

    @property
    def buckets(self) -> list[list[str]]:
        """The parameters of each bucket: what is compressed as one."""

    @property
    def layout(self) -> list[tuple[str, int, int]]:
        """Each parameter's name, its first element in the flat gradient, and the one after its
        last."""

    def allreduce(self, step: int, gradient: NDArray[numpy.float32]) -> Traffic:
        """Overwrites the flat gradient by its mean over ranks: one whole step. When it raises, some
        elements may have been overwritten already; the residual is what it was."""

    def allreduce_group(self, step: int, group: int, gradient: NDArray[numpy.float32]) -> Traffic:
        """As `allreduce`, of one group's buckets alone: elements, residual and compressors of the others stay what
        they were. Of the steps that a bucket is exchanged in each has a higher number than the one before."""

    def begin(self, step: int) -> None:
        """Begins a step whose groups are exchanged one by one; nothing is sent yet."""

    def exchange_group(self, group: int, gradient: NDArray[numpy.float32]) -> None:
        """Overwrites the elements of one group's buckets in the flat gradient by their mean."""

    def finish(self, gradient: NDArray[numpy.float32]) -> Traffic:
        """Ends the step, after every group: residual and compressors take up what it brought."""

    def _averaged(self, short: int, seconds: float) -> Traffic: ...
    def set_groups(self, groups: Sequence[Sequence[int]]) -> None:
        """Sets the groups of buckets that travel together, each bucket in exactly one."""

    def rescale(self, factor: float) -> None:
        """Multiplies the residual, and what compressors have learnt in the gradient's unit, by a factor: from now
        on gradients are given in another unit."""

    def abort(self, step: int, reason: str) -> None:
        """Gives up: this raises `AbortedError`, and so does every other rank's present or next
        call."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything of this rank that later messages depend on; vectors over all parameters have
        them in order of name."""

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes up what `state` returned; nothing changes when it does not fit."""

@final
class Traffic:
    """What one step of one rank cost."""

    @property
    def wire_bytes(self) -> int:
        """Bytes of this rank's messages, all headers included."""

    @property
    def downlink_bytes(self) -> int:
        """Bytes that this rank sent of means that it made for others."""

    @property
    def dense_bytes(self) -> int:
        """Bytes of the same messages sent as plain f32, all headers included."""

    @property
    def parameters(self) -> int:
        """Elements of the gradient."""

    @property
    def dense_fallbacks(self) -> int:
        """Buckets that were sent as f32 because their compressed form was larger."""

    @property
    def bits_per_parameter(self) -> float:
        """Bits per parameter: 32 times wire bytes over dense bytes, so that plain f32 takes 32."""

    @property
    def encode_seconds(self) -> float:
        """Seconds to check, compress and frame the gradient."""

    @property
    def wait_seconds(self) -> float:
        """Seconds to send, and to wait for the other ranks."""

    @property
    def decode_seconds(self) -> float:
        """Seconds to check, decode and average the messages."""

    @property
    def gauges(self) -> dict[str, float]:
        """What the compressors tell."""

def check_contract(scheme: Union[str, Codec], **settings: Any) -> None: ...
def describe_schemes() -> str: ...
