"""The ranks of a torch.distributed group that can carry host memory, as gloo's can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from skerry.codec.digest import Bytes
from skerry.publisher.errors import PeerLost

T = TypeVar("T")
_MESSAGE_BYTES = 1 << 28  # far below the 2 GiB at which sizes in 32 bits end


class TorchFabric:
    """One rank's end of a group over gloo.

    The group is the fabric's own: gloo takes messages for one another's when two threads use one
    group, and a rank aborts.  `TorchFabric.of_all()` makes a new one of all ranks.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        if group is dist.group.WORLD:
            raise ValueError("expected a group of its own, found that of the training")
        backend = dist.get_backend(group)
        if "gloo" not in backend:
            raise ValueError(f"expected a group over gloo, for host memory, found {backend}")
        self._group = group

    @classmethod
    def of_all(cls) -> Self:
        """Make a group of all ranks for this fabric alone; every rank calls it."""
        return cls(dist.new_group(backend="gloo"))

    @property
    def rank(self) -> int:
        return dist.get_rank(self._group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self._group)

    def all_gather(self, value: T) -> list[T]:
        gathered: list[T | None] = [None] * self.size
        with _peers():
            dist.all_gather_object(gathered, value, group=self._group)
        return gathered  # type: ignore[return-value]  # each rank has given a T

    def exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[int]) -> list[Bytes]:
        received = [np.empty(nbytes, np.uint8) for nbytes in incoming]
        received[self.rank] = outgoing[self.rank]
        with _peers():
            work = [
                dist.irecv(piece, group=self._group, group_src=rank)
                for rank, data in enumerate(received)
                if rank != self.rank
                for piece in _messages(data)
            ]
            work += [
                dist.isend(piece, group=self._group, group_dst=rank)
                for rank, data in enumerate(outgoing)
                if rank != self.rank
                for piece in _messages(data)
            ]
            for item in work:
                if item is not None:
                    item.wait()
        return received

    def send(self, data: Bytes, rank: int) -> None:
        with _peers():
            for piece in _messages(data):
                dist.send(piece, group=self._group, group_dst=rank)

    def receive(self, nbytes: int, rank: int) -> Bytes:
        data = np.empty(nbytes, np.uint8)
        with _peers():
            for piece in _messages(data):
                dist.recv(piece, group=self._group, group_src=rank)
        return data


def _messages(data: Bytes) -> Iterator[torch.Tensor]:
    for start in range(0, data.size, _MESSAGE_BYTES):
        yield torch.from_numpy(data[start : start + _MESSAGE_BYTES])


@contextmanager
def _peers() -> Iterator[None]:
    """What a group raises when a rank is gone: RuntimeError, under one name or another."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(str(error)) from error
