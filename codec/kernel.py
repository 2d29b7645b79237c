"""The codec's hot loops behind one interface: the native kernel, or NumPy where it was not built.

Every kernel gives the same bytes and refuses the same ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import numpy as np

from skerry.codec.context import Coded, decode_chunks, encode_chunks
from skerry.codec.dtypes import DType, Words, Write
from skerry.codec.native import load
from skerry.codec.rates import Ints
from skerry.codec.scan import ChunkDiff, scan


class Kernel(Protocol):
    """What a kernel does.  Words are contiguous; a chunk has at most CHUNK_WORDS of them."""

    @property
    def name(self) -> str: ...

    @property
    def lockstep(self) -> bool:
        """Whether chunks of one call are coded in step, so that a call should have many."""

    def find_changes(self, old: Words, new: Words) -> Ints:
        """Return the ascending positions where two arrays of the same shape [n] differ."""

    def scan(
        self, old: Words, new: Words, dtype: DType, *, contextual: bool = True
    ) -> ChunkDiff | None:
        """Compare two versions of a chunk, shape [n]; None when they are the same."""

    def encode(
        self, diffs: Sequence[ChunkDiff], settings: Sequence[Coded], threads: int
    ) -> list[bytes]:
        """Return the bytes of each chunk."""

    def decode(
        self,
        chunks: Sequence[bytes | memoryview],
        bases: Sequence[Words],
        settings: Sequence[Coded],
    ) -> list[tuple[Ints, Words]]:
        """Return the ascending positions and the new bits of each chunk.  Raises FormatError."""

    def apply(self, words: Words, positions: Ints, new: Words) -> None:
        """Write `new` to `positions`, shape [changes] both, which lie inside `words`."""

    def writer(self, writes: Sequence[Write]) -> Callable[[], None]:
        """Return what applies all of `writes`, in order, with as little delay as can be.

        The arrays are those of `apply`.  What is returned raises IndexError at a position outside,
        and then some words may be written.
        """


class NumpyKernel:
    """The reference: one implementation that is easy to read, and slow."""

    name = "numpy"
    lockstep = True

    def find_changes(self, old: Words, new: Words) -> Ints:
        return np.flatnonzero(old != new)

    def scan(
        self, old: Words, new: Words, dtype: DType, *, contextual: bool = True
    ) -> ChunkDiff | None:
        return scan(old, new, dtype, contextual=contextual)

    def encode(
        self, diffs: Sequence[ChunkDiff], settings: Sequence[Coded], threads: int
    ) -> list[bytes]:
        return encode_chunks(diffs, settings)

    def decode(
        self,
        chunks: Sequence[bytes | memoryview],
        bases: Sequence[Words],
        settings: Sequence[Coded],
    ) -> list[tuple[Ints, Words]]:
        return decode_chunks(chunks, bases, settings)

    def apply(self, words: Words, positions: Ints, new: Words) -> None:
        words[positions] = new

    def writer(self, writes: Sequence[Write]) -> Callable[[], None]:
        held = list(writes)

        def write_all() -> None:
            for write in held:
                self.apply(*write)

        return write_all


_chosen: Kernel | None = None


@cache
def available() -> dict[str, Kernel]:
    """Return the kernels of this machine by name, the fastest first; "numpy" is always there."""
    native: Sequence[Kernel] = ()
    try:
        native = load()
    except OSError as error:
        warnings.warn(
            "the native kernel is not there, so encoding and decoding are many times slower "
            f"({error}); install a C++17 compiler, then Skerry again",
            RuntimeWarning,
            stacklevel=2,
        )
    return {kernel.name: kernel for kernel in (*native, NumpyKernel())}


def current() -> Kernel:
    """Return the kernel in use: the fastest one, unless `use` said otherwise."""
    global _chosen
    if _chosen is None:
        _chosen = next(iter(available().values()))
    return _chosen


def use(name: str) -> None:
    """Encode and decode with this kernel from now on.  Raises ValueError if it is not there."""
    global _chosen
    kernels = available()
    if name not in kernels:
        raise ValueError(f"kernel {name!r} is not there; this machine has {', '.join(kernels)}")
    _chosen = kernels[name]


def use_from(environment: Mapping[str, str]) -> None:
    """Use the kernel that SKERRY_KERNEL names, if it names one.  Raises as `use`."""
    if "SKERRY_KERNEL" in environment:
        use(environment["SKERRY_KERNEL"])


@contextmanager
def using(name: str) -> Iterator[None]:
    """Use a kernel for a while, in all threads."""
    global _chosen
    before = current()
    use(name)
    try:
        yield
    finally:
        _chosen = before
