"""What carries messages between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Protocol, Union

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


class Transport(Protocol):
    """What carries messages between ranks: every rank's first call meets the others' first, its
    second their second, and so on.

    An object that also has `alltoall(parts)` is asked to give each rank another part, where that
    saves sending all of it to everybody. The calls that meet are then not always the same: a rank
    that refuses a step (its gradient is not finite, or it calls `abort`) is in `allgather` while
    others are in `alltoall`. It gives its message to each of them and takes the part that each has
    for it. An `allgather(message)` that is `alltoall([message] * world_size)` does so. The two
    collectives of MPI need not meet, and may wait for ever.

    Raise `PeerLostError` or `PeerTimeoutError` with the rank that is missing. No wait may be
    unbounded.
    """

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def allgather(
        self, message: NDArray[numpy.uint8], /
    ) -> Iterable[Union[bytes, NDArray[numpy.uint8]]]:
        """Gives `message`, which may only be read, to every rank and returns everybody's, in order of
        rank, this rank's own included. With an `alltoall` beside it, what a rank in that call gives this one counts
        as its message."""
