"""The list of schemes, as their definitions in Rust give it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Protocol, Tuple

from ._gradwire import describe_schemes

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


class Codec(Protocol):
    """A scheme of your own: an object with these two methods, wherever a scheme is named.

    `decode` reads the message and nothing that another rank might not have. Each bucket has a copy of
    the object, made by `copy.deepcopy`, so that one object serves any number of states. In place of a message that
    is not shorter than the gradient plain float32 is sent: the gradient, or with `combine` or `state` what
    `decode` makes of the message.

    These may be there too:

    - `feedback`, False if what a message leaves out is not to be added to the next gradient.
    - `law`, what `gradwire.contract.check` holds decoding to: "exact", "unbiased", "contraction" or
      "biased" (the default).
    - `state()` and `load_state(state)`, if messages depend on earlier steps: a dict of one-dimensional
      arrays of float32, uint64 or uint8. A step that fails is taken back with them.
    - `combine(mean, step)`, if the mean of what messages stand for is not yet the gradient: returns it.
    """

    def encode(self, gradient: NDArray[numpy.float32], step: int, /) -> bytes:
        """The message for a gradient, which is a copy, at a step that counts from 1."""

    def decode(self, message: bytes, length: int, /) -> NDArray[numpy.float32]:
        """The gradient of `length` elements that a message stands for."""


@dataclass(frozen=True)
class Setting:
    """One setting of a scheme: a keyword argument wherever a scheme is named."""

    name: str
    default: Any
    doc: str


@dataclass(frozen=True)
class Scheme:
    """One compression scheme at its defaults.

    `law` says what decoding gives back: "exact", "unbiased", "contraction" or "biased". `feedback`
    says whether error feedback is valid: "sound", "unsound" (then `feedback_reason` says why) or
    "lossless". A scheme of `one_message` can be used as a `Compressor`; one that takes several
    rounds needs an `Exchange`.
    """

    name: str
    line: str
    paper: str
    law: str
    feedback: str
    feedback_reason: Optional[str]
    one_message: bool
    settings: Tuple[Setting, ...]


def schemes() -> Tuple[Scheme, ...]:
    """Every scheme, with its settings, their defaults, and what they mean.

    >>> import gradwire
    >>> topk = next(one for one in gradwire.schemes() if one.name == "topk")
    >>> topk.law, topk.settings[0].name, topk.settings[0].default
    ('contraction', 'ratio', 0.01)
    """

    def scheme(entry: Any) -> Scheme:
        settings = tuple(Setting(**setting) for setting in entry.pop("settings"))
        return Scheme(settings=settings, **entry)

    return tuple(scheme(entry) for entry in json.loads(describe_schemes()))
