"""Immutable views of lists that only grow, so that a log's next state costs O(1) and not O(n)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Growing(Sequence[T], Generic[T]):
    """The first `length` items of a list that successors share and extend.

    `append` never changes what an existing view shows.  Two successors of one view are possible;
    the second one copies.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self._length = len(self._items)

    def append(self, item: T) -> Growing[T]:
        """Return a view with one item more.  Only one thread may append."""
        grown: Growing[T] = Growing()
        shared = len(self._items) == self._length
        grown._items = self._items if shared else self._items[: self._length]
        grown._items.append(item)
        grown._length = self._length + 1
        return grown

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        chosen = range(self._length)[index]
        if isinstance(chosen, range):
            return tuple(self._items[i] for i in chosen)
        return self._items[chosen]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return (self._items[i] for i in range(self._length))


class ByNumber(Mapping[int, T], Generic[T]):
    """A sequence as a mapping from 0, 1, 2, … to its items."""

    __slots__ = ("_numbered",)

    def __init__(self, numbered: Growing[T]) -> None:
        self._numbered = numbered

    def __getitem__(self, number: int) -> T:
        if not 0 <= number < len(self._numbered):
            raise KeyError(number)
        return self._numbered[number]

    def __len__(self) -> int:
        return len(self._numbered)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._numbered)))
