"""The exceptions of this package. All of them are `Error`, and say what, where and what to do."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """Anything that goes wrong in this package.

    The words are the message; what a program may want to know of them stands beside it, or is
    `None`: the rank that is to blame (as those count that average), the step, the parameter, the position in it, and for a
    silent peer the seconds that were waited.
    """

    def __init__(
        self,
        message: str,
        rank: Optional[int] = None,
        step: Optional[int] = None,
        parameter: Optional[str] = None,
        index: Optional[int] = None,
        after: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step
        self.parameter = parameter
        self.index = index
        self.after = after


class SettingError(Error, ValueError):
    """A scheme, a setting or a combination of them is not possible."""


class InputError(Error, ValueError):
    """An array, a tensor or a call that does not fit; nothing has been changed."""


class MessageError(Error, ValueError):
    """Bytes are not a message, or not one for this compressor; nothing has been applied."""


class StateError(Error, ValueError):
    """A saved state does not fit; nothing has been changed."""


class NonFiniteError(Error, ArithmeticError):
    """A gradient is NaN or infinite, or the mean over ranks is; `rank` is None then. Every rank
    raises it, and the next step can be tried.

    Residuals are what they were, and so are the gradients of a `State` or an `Averager`. An array
    that was given to `Exchange` may have been overwritten in part: by a mean that is not finite,
    and by those of groups that were exchanged before.
    """


class AbortedError(Error):
    """A rank gave up the step, and says why. Every rank raises it, and the next step can be
    tried."""


class PeerLostError(Error, ConnectionError):
    """A rank is gone."""


class PeerTimeoutError(Error, TimeoutError):
    """A rank was silent for too long."""


class OutOfStepError(Error):
    """A rank is doing something else: another step, bucket or call."""


class TransportError(Error, ConnectionError):
    """What carries the bytes failed in a way that blames no rank; the cause says how."""


class ViolationError(Error, AssertionError):
    """A scheme breaks a law: which one, on what, and what was found."""
