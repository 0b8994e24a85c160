"""The list of schemes, as their definitions in Rust give it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from ._gradwire import describe_schemes


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
    """Every scheme, with its settings, their defaults, and what they mean."""

    def scheme(entry: Any) -> Scheme:
        settings = tuple(Setting(**setting) for setting in entry.pop("settings"))
        return Scheme(settings=settings, **entry)

    return tuple(scheme(entry) for entry in json.loads(describe_schemes()))
