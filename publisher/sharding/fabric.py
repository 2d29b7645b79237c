"""What the ranks of one trainer tell each other, and how they agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from skerry.codec.digest import Bytes
from skerry.publisher.errors import RankFailed

T = TypeVar("T")


class Fabric(Protocol):
    """The ranks of one job, who trust each other.

    Every rank makes the same calls in the same order.  All raise PeerLost when a rank is gone; the
    fabric is of no use then, and the job starts anew.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, value: T) -> list[T]:
        """Return the small value that each rank gave, by rank."""
        ...

    def exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[int]) -> list[Bytes]:
        """Send each rank its bytes; return those from each, of the sizes stated, by rank."""
        ...

    def send(self, data: Bytes, rank: int) -> None:
        """Send bytes to a rank that receives just so many."""
        ...

    def receive(self, nbytes: int, rank: int) -> Bytes:
        """Return the bytes that a rank sends."""
        ...


class Alone:
    """The fabric of a job of one process."""

    rank = 0
    size = 1

    def all_gather(self, value: T) -> list[T]:
        return [value]

    def exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[int]) -> list[Bytes]:
        return list(outgoing)

    def send(self, data: Bytes, rank: int) -> None:
        raise ValueError("there is nobody to send to")

    def receive(self, nbytes: int, rank: int) -> Bytes:
        raise ValueError("there is nobody to receive from")


def agree(fabric: Fabric, work: Callable[[], T]) -> list[T]:
    """Do this rank's part of something; return what each rank's part gave.

    Raises RankFailed on every rank if it failed on any: all go on, or none does.
    """
    caught: Exception | None = None
    outcome: tuple[T | None, str | None]
    try:
        outcome = work(), None
    except Exception as error:  # whatever it was, the others wait to hear of it
        caught, outcome = error, (None, repr(error))
    outcomes = fabric.all_gather(outcome)
    for rank, (_, why) in enumerate(outcomes):
        if why is not None:
            raise RankFailed(rank=rank, why=why) from caught
    return [value for value, _ in outcomes]  # type: ignore[misc]  # without an error it is a T
