"""The laws that every scheme keeps, for a scheme of your own."""

from __future__ import annotations

from typing import Any, Union

from ._errors import ViolationError
from ._gradwire import check_contract
from ._schemes import Codec

__all__ = ["ViolationError", "check"]


def check(scheme: Union[str, Codec], **settings: Any) -> None:
    """Runs the laws over a scheme; the first that is broken is a `ViolationError`.

    The gradients are awkward ones (zeros, constant, one spike, subnormal, huge, Laplace distributed)
    of several lengths, on one rank and on several, some of which refuse a step; the messages are also
    cut short and damaged. What the scheme itself raised is the cause of the error.

    >>> import gradwire.contract
    >>> gradwire.contract.check("topk", ratio=0.1)
    """
    check_contract(scheme, **settings)
