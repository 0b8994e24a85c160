"""Messages of bytes between the processes of a PyTorch process group.

Every message goes from each rank to each other rank by itself, its length first: so nothing is
padded, an empty message is never sent, and a peer that fails is known by its rank. Long messages go
in pieces, so that memory grows as bytes come, whatever length a peer has announced. A rank that
notices a loss tells the others whom it misses before it leaves, so that all of them name the rank
that went first.
"""

from __future__ import annotations

import ctypes
import math
import time
from datetime import timedelta
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy
import torch
import torch.distributed as dist

from ._errors import (
    Error,
    MessageError,
    PeerLostError,
    PeerTimeoutError,
    SettingError,
    TransportError,
)

_HEADER, _BODY, _MEAN = 1, 2, 3
_MESSAGE, _LOST, _SILENT, _VALUES = 0, 1, 2, 3
# The longest message that is taken from a peer; the exchange itself writes no longer one.
_LONGEST = 1 << 36
# Bytes of a message that travel as one; the same on every rank.
_PIECE = 1 << 26
# Bytes of values that are averaged at once: so few that a processor's cache holds them. The next are on their way
# meanwhile.
_STRETCH = 1 << 19


def ranks_of(group: Optional[dist.ProcessGroup]) -> List[int]:
    """The numbers that the whole job has for the ranks of a group; None is all of them."""
    if group is None:
        return list(range(dist.get_world_size()))
    return [dist.get_global_rank(group, one) for one in range(dist.get_world_size(group))]


class Gloo:
    """One rank of a group of its own, over gloo, whatever backend trains the model."""

    def __init__(self, group: Optional[dist.ProcessGroup], timeout: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise TransportError(
                "torch.distributed is not initialized; call torch.distributed.init_process_group first"
            )
        if not timeout > 0:
            raise SettingError(f"timeout = {timeout} is not possible; write seconds above 0")
        self.timeout = timeout
        self.rank: int = dist.get_rank(group)
        self.world_size: int = dist.get_world_size(group)
        if self.rank < 0:
            raise TransportError("this process is not in the process group that was given")
        span = timedelta(seconds=timeout)
        self.ranks = ranks_of(group)
        # The same numbers; None where they are all ranks of the job, of which the next run may have others.
        self.subgroup: Optional[List[int]] = None
        if self.ranks != ranks_of(None):
            self.subgroup = self.ranks
        alone = {"use_local_synchronization": True} if self.subgroup else {}
        try:
            self.group = dist.new_group(self.ranks, timeout=span, backend="gloo", **alone)
        except RuntimeError as error:
            raise TransportError(
                f"the ranks {self.ranks} have not met within timeout = {timeout:g} s ({error}); every one of them makes "
                "its state, and a longer `timeout` waits longer for those that come late"
            ) from error
        # PyTorch numbers the ranks of a new group by their order in the job.
        self._numbers = [dist.get_group_rank(self.group, one) for one in self.ranks]
        self._others = [one for one in range(self.world_size) if one != self.rank]
        self._left: Optional[Error] = None
        self._rooms: Dict[int, torch.Tensor] = {}

    def allgather(self, message: "numpy.ndarray[Any, Any]") -> List["numpy.ndarray[Any, Any]"]:
        """Gives `message` to every rank; returns everybody's, in order of rank, to be read before the
        next call."""
        return self._exchange([message] * self.world_size)

    def alltoall(
        self, parts: Sequence["numpy.ndarray[Any, Any]"]
    ) -> List["numpy.ndarray[Any, Any]"]:
        """Gives each rank its part; returns what each gave this one, in order of rank, to be read
        before the next call."""
        return self._exchange(parts)

    def average(self, values: torch.Tensor, mean: torch.Tensor, mark: int) -> bool:
        """Makes `mean` the mean of every rank's `values`, vectors of one floating type: added up in float32
        in order of rank, times 1/N, rounded once. `mark` says what they are. False on every rank where one
        would send a message or something else instead, or where the mean is not finite."""
        self._begin_call()
        size = values.numel() * values.element_size()
        works: List[Dict[int, Any]] = []
        heard = self._meet(_VALUES, dict.fromkeys(self._others, size), mark, works)
        if any(words != [_VALUES, size, mark] for words in heard.values()):
            return False
        length, ranks = values.numel(), self.world_size
        most, coming = _STRETCH // values.element_size(), None
        sums: List[torch.Tensor] = []
        for begin in range(0, length + most, most):
            before, coming = coming, None
            if begin < length:
                stretch = min(begin + most, length) - begin
                cuts = [begin + stretch * rank // ranks for rank in range(ranks + 1)]
                parts = [slice(*cut) for cut in zip(cuts, cuts[1:])]
                own = values[parts[self.rank]]
                theirs = {peer: torch.empty_like(own) for peer in self._others}
                coming = parts, theirs, self._begin(theirs, _BODY, self._receive_now)
                given = {peer: values[parts[peer]] for peer in self._others}
                works.append(self._begin(given, _BODY, self._send_now))
            if before is not None:
                parts, theirs, receiving = before
                self._wait(receiving)
                theirs[self.rank] = values[parts[self.rank]]
                own = mean[parts[self.rank]]
                total = own if own.dtype == torch.float32 else torch.empty(own.shape, dtype=torch.float32, device="cpu")
                torch.add(theirs[0].float(), theirs[1].float(), out=total)
                for rank in range(2, ranks):
                    total += theirs[rank].float()
                total *= 1 / ranks
                own.copy_(total)
                sums.append(own.sum(dtype=torch.float32))
                rest = {peer: mean[parts[peer]] for peer in self._others}
                works.append(self._begin(rest, _MEAN, self._receive_now))
                works.append(self._begin(dict.fromkeys(self._others, own), _MEAN, self._send_now))
        # Whatever is not finite makes a sum so; a sum that overflows alone is looked into as well.
        finite = all(torch.isfinite(one) for one in sums)
        heard = self._meet(_VALUES, dict.fromkeys(self._others, 0), int(finite), works)
        for one in works:
            self._wait(one)
        return finite and all(words == [_VALUES, 0, 1] for words in heard.values())

    def leave(self, missing: Optional[int] = None, silent: bool = False) -> None:
        """Tells the others that this rank sends nothing more, because it misses another (or for
        a reason of its own)."""
        if self._left is not None:
            return
        self._left = TransportError(
            "this rank has left the group of ranks; make a new state on every rank"
        )
        reason = _SILENT if silent else _LOST
        blamed = self.rank if missing is None else missing
        words = torch.tensor([reason, blamed, 0], dtype=torch.int64, device="cpu")
        sent = []
        for peer in self._others:
            if peer == missing:
                continue
            try:
                sent.append(self._send(words, peer, _HEADER))
            except Exception:
                pass  # It is gone too, or the process group is.
        for work in sent:
            try:
                work.wait(timedelta(seconds=min(1.0, self.timeout)))
            except Exception:
                pass  # It is gone too.

    def _exchange(
        self, parts: Sequence["numpy.ndarray[Any, Any]"]
    ) -> List["numpy.ndarray[Any, Any]"]:
        self._begin_call()
        bodies = [_readable(part) for part in parts]
        sizes = {peer: len(parts[peer]) for peer in self._others}
        works: List[Dict[int, Any]] = []
        heard = self._meet(_MESSAGE, sizes, 0, works)
        while any(words[0] != _MESSAGE for words in heard.values()):
            # Others began to average values, have heard this rank, and come with a message too.
            heard = self._meet(_MESSAGE, sizes, 0, works)
        lengths = {peer: words[1] for peer, words in heard.items()}
        for peer, length in lengths.items():
            if not 0 <= length <= _LONGEST:
                raise MessageError(f"rank {peer} announces a message of {length} bytes", peer)
        received, bodies_sent = self._pass_bodies(bodies, lengths)
        for one in [*works, *bodies_sent]:
            self._wait(one)
        received[self.rank] = bodies[self.rank]
        return [received[one].numpy() for one in range(self.world_size)]

    def _begin_call(self) -> None:
        """Raises if this rank has left the others."""
        if self._left is not None:
            raise self._left

    def _meet(
        self, what: int, sizes: Dict[int, int], mark: int, sent: List[Dict[int, Any]]
    ) -> Dict[int, List[int]]:
        """Tells each peer what is to come, how many bytes for it and which; what each peer says. What is on
        its way then is in `sent`."""
        headers = {
            peer: torch.tensor([what, size, mark], device="cpu") for peer, size in sizes.items()
        }
        heard = {peer: torch.zeros(3, dtype=torch.int64, device="cpu") for peer in self._others}
        # Receives come first: gloo tells a peer that it may send behind what is being sent to it.
        receiving = self._begin(heard, _HEADER, self._receive)
        sent.append(self._begin(headers, _HEADER, self._send))
        self._wait(receiving)
        said = {peer: [int(word) for word in tensor] for peer, tensor in heard.items()}
        for peer, (why, missing, _) in said.items():
            if why in (_LOST, _SILENT):
                self._hear(peer, why, missing)
        return said

    def _pass_bodies(
        self, bodies: Sequence[torch.Tensor], lengths: Dict[int, int]
    ) -> Tuple[Dict[int, torch.Tensor], List[Dict[int, Any]]]:
        """Begins to send each peer its body, and takes the peers' bodies of these lengths. There
        is room for the next piece only when the one before has come."""
        pieces: Dict[int, List[torch.Tensor]] = {peer: [] for peer in self._others}
        sending: List[Dict[int, Any]] = []
        for begin in range(0, max([1, *lengths.values()]), _PIECE):
            room = {
                peer: self._room_for(peer, begin, length)
                for peer, length in lengths.items()
                if begin < length
            }
            receiving = self._begin(room, _BODY, self._receive)
            if begin == 0:
                sending = [self._begin(given, _BODY, self._send) for given in self._cut(bodies)]
            self._wait(receiving)
            for peer, piece in room.items():
                pieces[peer].append(piece)
        return {peer: _joined(pieces.pop(peer)) for peer in self._others}, sending

    def _room_for(self, peer: int, begin: int, length: int) -> torch.Tensor:
        """Where the next piece of a message goes. A message of one piece goes where the last one did:
        its reader has copied that, and fresh memory costs as much as the copy."""
        size = min(_PIECE, length - begin)
        if length > _PIECE:
            return torch.empty(size, dtype=torch.uint8, device="cpu")
        if peer not in self._rooms or len(self._rooms[peer]) < size:
            self._rooms[peer] = torch.empty(size, dtype=torch.uint8, device="cpu")
        return self._rooms[peer][:size]

    def _cut(self, bodies: Sequence[torch.Tensor]) -> List[Dict[int, torch.Tensor]]:
        """The first piece for each peer that has one, then the second, and so on."""
        longest = max((len(bodies[peer]) for peer in self._others), default=0)
        return [
            {
                peer: bodies[peer][begin : begin + _PIECE]
                for peer in self._others
                if begin < len(bodies[peer])
            }
            for begin in range(0, longest, _PIECE)
        ]

    def _hear(self, peer: int, what: int, missing: int) -> None:
        """Raises what a rank said before it left."""
        self.leave(missing, what == _SILENT)
        if what == _SILENT:
            words = f"{self._name(missing)} was silent, says {self._name(peer)}"
            raise PeerTimeoutError(words, missing, after=self.timeout)
        raise PeerLostError(f"{self._name(missing)} is gone, says {self._name(peer)}", missing)

    def _name(self, peer: int) -> str:
        """A rank in words; of some ranks of the job also as the job counts it."""
        return f"rank {peer}" + (f" (rank {self.ranks[peer]} of the job)" if self.subgroup else "")

    def _begin(self, tensors: Dict[int, torch.Tensor], tag: int, post: Any) -> Dict[int, Any]:
        works = {}
        for peer, tensor in tensors.items():
            try:
                works[peer] = post(tensor, peer, tag)
            except (RuntimeError, ValueError) as error:
                self._lose(peer, error)
        return works

    def _wait(self, works: Dict[int, Any]) -> None:
        """Waits for what was begun together, piece after piece: a message may take long, and a rank is silent where no
        piece comes or goes in time."""
        end = time.monotonic() + self.timeout
        for peer, work in works.items():
            # Gloo counts whole milliseconds, and would else come back before the end.
            left = max(1, math.ceil(1000 * (end - time.monotonic())))
            try:
                work.wait(timedelta(milliseconds=left))
            except (RuntimeError, ValueError) as error:
                if time.monotonic() < end:
                    self._lose(peer, error)
                self.leave(peer, silent=True)
                words = f"{self._name(peer)} was silent for {self.timeout:g} s"
                raise PeerTimeoutError(words, peer, after=self.timeout) from error

    def _lose(self, peer: int, error: Exception) -> None:
        if isinstance(error, ValueError):
            # PyTorch itself refuses the call, and no peer is to blame.
            self.leave()
            raise TransportError(
                f"PyTorch no longer knows the group of ranks ({error}); after "
                "destroy_process_group make a new state on every rank"
            ) from error
        self.leave(peer)
        raise PeerLostError(f"{self._name(peer)} is gone", peer) from error

    def _send(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        return dist.isend(tensor, dst=self.ranks[peer], group=self.group, tag=tag)

    def _receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        return dist.irecv(tensor, src=self.ranks[peer], group=self.group, tag=tag)

    # The same without PyTorch's checks of arguments, which cost as much as a stretch's arithmetic.

    def _send_now(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        return self.group.send([tensor], self._numbers[peer], tag)

    def _receive_now(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        return self.group.recv([tensor], self._numbers[peer], tag)


def _readable(array: "numpy.ndarray[Any, Any]") -> torch.Tensor:
    """A tensor that is the memory of an array which may only be read: PyTorch knows no such tensors, and
    this one is only sent."""
    if array.flags.writeable or not len(array):
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    memory = (ctypes.c_uint8 * len(array)).from_address(array.ctypes.data)
    memory.owner = array  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)


def _joined(pieces: List[torch.Tensor]) -> torch.Tensor:
    """The message that came in these pieces; one piece is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([torch.empty(0, dtype=torch.uint8, device="cpu"), *pieces])
