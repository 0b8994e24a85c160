"""Compressed gradient exchange, counted to the byte.

`Compressor` turns an array into bytes and back. `Exchange` turns each rank's gradient into the mean
over ranks. `gradwire.torch` has a communication hook for PyTorch's DistributedDataParallel.
`read_run` reads what a run of Gradwire's trainer left. `schemes()` lists the schemes.
"""

from ._errors import (
    AbortedError,
    Error,
    InputError,
    MessageError,
    NonFiniteError,
    OutOfStepError,
    PeerLostError,
    PeerTimeoutError,
    SettingError,
    StateError,
    TransportError,
    ViolationError,
)
from ._gradwire import Compressor, Exchange, Traffic
from ._runs import Run, read_run
from ._schemes import Codec, Scheme, Setting, schemes
from ._transport import Transport

__all__ = [
    "AbortedError",
    "Codec",
    "Compressor",
    "Error",
    "Exchange",
    "InputError",
    "MessageError",
    "NonFiniteError",
    "OutOfStepError",
    "PeerLostError",
    "PeerTimeoutError",
    "Run",
    "Scheme",
    "Setting",
    "SettingError",
    "StateError",
    "Traffic",
    "Transport",
    "TransportError",
    "ViolationError",
    "read_run",
    "schemes",
]
