"""Ranks as threads, which can die at any of their calls."""

from __future__ import annotations

import pickle
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from skerry.codec.digest import Bytes
from skerry.publisher.errors import PeerLost

T = TypeVar("T")


class Killed(BaseException):
    """Ends a rank where it stands: no handler of errors sees it, as none sees SIGKILL."""


class World:
    """The mail between ranks; what was sent before a rank died arrives."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._mail: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self._lost = False

    def post(self, sender: int, receiver: int, data: bytes) -> None:
        with self._changed:
            self._mail[sender, receiver].append(data)
            self._changed.notify_all()

    def take(self, sender: int, receiver: int) -> bytes:
        box = self._mail[sender, receiver]
        with self._changed:
            assert self._changed.wait_for(lambda: bool(box) or self._lost, timeout=60)
            if not box:
                raise PeerLost("a rank is gone")
            return box.popleft()

    def lose(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()


class ThreadFabric:
    """One rank's end; `before` is told of every call."""

    def __init__(self, world: World, rank: int, before: Callable[[], None]) -> None:
        self._world = world
        self._rank = rank
        self._before = before
        self.bytes_sent = 0

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._world.size

    def all_gather(self, value: T) -> list[T]:
        self._before()
        data = pickle.dumps(value)
        for rank in range(self.size):
            self._world.post(self._rank, rank, data)
        return [pickle.loads(self._world.take(rank, self._rank)) for rank in range(self.size)]

    def exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[int]) -> list[Bytes]:
        self._before()
        for rank, data in enumerate(outgoing):
            self._world.post(self._rank, rank, data.tobytes())
            self.bytes_sent += 0 if rank == self._rank else data.size
        received = [
            np.frombuffer(self._world.take(rank, self._rank), np.uint8) for rank in range(self.size)
        ]
        assert [data.size for data in received] == list(incoming)
        return received

    def send(self, data: Bytes, rank: int) -> None:
        self._before()
        self._world.post(self._rank, rank, data.tobytes())

    def receive(self, nbytes: int, rank: int) -> Bytes:
        self._before()
        data = np.frombuffer(self._world.take(rank, self._rank), np.uint8)
        assert data.size == nbytes
        return data


def on_ranks(
    size: int,
    work: Callable[[ThreadFabric], Any],
    before: Callable[[int], None] = lambda rank: None,
) -> list[Any]:
    """Run `work` on every rank; return what each returned or raised, by rank."""
    world = World(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        fabric = ThreadFabric(world, rank, lambda: before(rank))
        try:
            results[rank] = work(fabric)
        except BaseException as error:  # the caller looks at it
            results[rank] = error
            world.lose()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
