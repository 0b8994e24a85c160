"""What carries messages between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Protocol, Union

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


class Transport(Protocol):
    """What carries messages between ranks: every rank makes the same calls in the same order.

    An object that also has `alltoall(parts)` is asked to give each rank another part, where that
    saves sending all of it to everybody. Raise `PeerLostError` or `PeerTimeoutError` with the rank
    that is missing. No wait may be unbounded.
    """

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def allgather(
        self, message: NDArray[numpy.uint8], /
    ) -> Iterable[Union[bytes, NDArray[numpy.uint8]]]:
        """Gives `message` to every rank and returns everybody's, in order of rank, this rank's
        own included."""
