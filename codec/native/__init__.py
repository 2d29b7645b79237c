"""The codec's hot loops in C++, called through ctypes; `kernel.h` is the interface.

`pip install` compiles the library where a C++17 compiler is found.  Without it everything works on
the NumPy reference, more slowly and with the same bytes.  ctypes gives up the interpreter's lock
during each call, so threads run side by side.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files

import numpy as np
import numpy.typing as npt

from skerry.codec.context import Coded
from skerry.codec.dtypes import DType, Words
from skerry.codec.errors import FormatError
from skerry.codec.parallel import ordered
from skerry.codec.profile import Profile
from skerry.codec.rates import TOTAL, Ints
from skerry.codec.scan import CLASSES, ChunkDiff

LIBRARY = "_kernel.so"  # beside this file; hatch_build.py writes it

_ABI = 1
_PATHS = {4: "avx512", 2: "avx2", 1: "portable"}  # the fastest first
_BLOCK = 64  # words that share one item of a bitmap
_SEED_BITS = 16

# What a result below zero means, see kernel.h.  Those from -3 on are the bytes' fault.
_REFUSALS = {
    -3: "a coded chunk has at least 4 bytes",
    -4: "a coded chunk starts with a state that no encoder leaves",
    -5: "a coded chunk holds more changes than its bytes can",
    -6: "a changed word lies past the end of its class",
    -7: "a coded chunk's symbols and raw bits do not meet",
    -8: "padding bits of a coded chunk are not zero",
    -9: "the entropy coder's last state is not a seed",
    -10: "a step of {dtype} is out of range",
}
_MEMORY = -2


class _DType(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("word", "shift", "mask", "is_float"))


class _Profile(ctypes.Structure):
    _fields_ = (
        ("rates", ctypes.c_void_p),
        ("table_of", ctypes.c_void_p),
        ("tables", ctypes.c_uint32),
        ("precisions", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("frequencies", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("symbols", ctypes.c_void_p),
    )


class _Changes(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("classes", "ranks", "magnitudes", "downs")
    )


_INT, _WORDS, _COUNT, _POINTER = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_SIGNATURES = {
    "diff": (_INT, _WORDS, _POINTER, _POINTER, _COUNT, _POINTER),
    "positions": (_POINTER, _COUNT, _POINTER),
    "rank": (
        *(_INT, ctypes.POINTER(_DType), _POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER),
        ctypes.POINTER(_Changes),
    ),
    "encode": (
        *(ctypes.POINTER(_Profile), _POINTER, _POINTER, ctypes.POINTER(_Changes), _POINTER, _COUNT),
    ),
    "decode": (
        *(_INT, ctypes.POINTER(_DType), ctypes.POINTER(_Profile), _POINTER, _COUNT, _POINTER),
        *(_COUNT, _COUNT, _POINTER, _POINTER),
    ),
    "apply": (_WORDS, _POINTER, _POINTER, _POINTER, _COUNT),
}


def load() -> tuple[NativeKernel, ...]:
    """Return the native kernel on every path that this processor has, the fastest first.

    Raises OSError if the library was not built, or not for this machine or version.
    """
    with as_file(files(__name__) / LIBRARY) as path:
        library = ctypes.CDLL(str(path))
    try:
        found = library.skerry_abi()
    except AttributeError:
        found = None
    if found != _ABI:
        raise OSError(f"{LIBRARY} is of another version of Skerry: ABI {found}, not {_ABI}")
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, f"skerry_{name}")
        function.restype, function.argtypes = ctypes.c_int64, arguments
    usable = library.skerry_paths()
    return tuple(NativeKernel(library, path) for path in _PATHS if usable & path)


class NativeKernel:
    """See `skerry.codec.kernel.Kernel`."""

    lockstep = False

    def __init__(self, library: ctypes.CDLL, path: int) -> None:
        self.name = _PATHS[path]
        self._library = library
        self._path = path

    def find_changes(self, old: Words, new: Words) -> Ints:
        count, bitmap = self._diff(old, new)
        positions = np.empty(count, np.int64)
        self._library.skerry_positions(_pointer(bitmap), old.size, _pointer(positions))
        return positions

    def scan(
        self, old: Words, new: Words, dtype: DType, *, contextual: bool = True
    ) -> ChunkDiff | None:
        count, bitmap = self._diff(old, new)
        if not count:
            return None
        diff = ChunkDiff(
            population=np.empty(CLASSES, np.int64),
            changed=np.empty(CLASSES, np.int64),
            classes=np.empty(count, np.uint8),
            ranks=np.empty(count, np.uint32),
            magnitude=np.empty(count, np.uint64),
            down=np.empty(count, np.bool_),
        )
        found = self._library.skerry_rank(
            self._path,
            ctypes.byref(_dtype(dtype, contextual)),
            _pointer(old),
            _pointer(new),
            old.size,
            _pointer(bitmap),
            _pointer(diff.population),
            _pointer(diff.changed),
            ctypes.byref(_changes(diff)),
        )
        _check(found, dtype)
        return diff

    def encode(
        self, diffs: Sequence[ChunkDiff], settings: Sequence[Coded], threads: int
    ) -> list[bytes]:
        tables = _tables(settings)
        encode = partial(self._encode, tables)
        return list(ordered(encode, zip(diffs, settings, strict=True), threads))

    def decode(
        self,
        chunks: Sequence[bytes | memoryview],
        bases: Sequence[Words],
        settings: Sequence[Coded],
    ) -> list[tuple[Ints, Words]]:
        tables = _tables(settings)
        return [
            self._decode(tables, chunk, base, setting)
            for chunk, base, setting in zip(chunks, bases, settings, strict=True)
        ]

    def apply(self, words: Words, positions: Ints, new: Words) -> None:
        self._library.skerry_apply(
            words.itemsize,
            _pointer(words),
            _pointer(positions),
            _pointer(new),
            positions.size,
        )

    def _diff(self, old: Words, new: Words) -> tuple[int, npt.NDArray[np.uint64]]:
        bitmap = np.empty(-(-old.size // _BLOCK), np.uint64)
        count = self._library.skerry_diff(
            self._path,
            old.itemsize,
            _pointer(old),
            _pointer(new),
            old.size,
            _pointer(bitmap),
        )
        return count, bitmap

    def _encode(self, tables: Mapping[int, _Tables], item: tuple[ChunkDiff, Coded]) -> bytes:
        diff, setting = item
        profile = tables[id(setting.profile)].profile(setting.profile.tilted(setting.tilt))
        capacity = 4096 + 8 * diff.ranks.size
        while True:
            out = np.empty(capacity, np.uint8)
            size = self._library.skerry_encode(
                ctypes.byref(profile.structure),
                _pointer(diff.population),
                _pointer(diff.changed),
                ctypes.byref(_changes(diff)),
                _pointer(out),
                capacity,
            )
            _check(size, setting.dtype)
            if size <= capacity:
                return out[:size].tobytes()
            capacity = size

    def _decode(
        self,
        tables: Mapping[int, _Tables],
        payload: bytes | memoryview,
        base: Words,
        setting: Coded,
    ) -> tuple[Ints, Words]:
        data = np.frombuffer(payload, np.uint8)
        profile = tables[id(setting.profile)].profile(setting.profile.tilted(setting.tilt))
        # Each change has a direction, a bit of the payload or one of the seed's.
        capacity = min(base.size, 8 * data.size + _SEED_BITS)
        positions = np.empty(capacity, np.int64)
        new = np.empty(capacity, base.dtype)
        count = self._library.skerry_decode(
            self._path,
            ctypes.byref(_dtype(setting.dtype, setting.contextual)),
            ctypes.byref(profile.structure),
            _pointer(data),
            data.size,
            _pointer(base),
            base.size,
            capacity,
            _pointer(positions),
            _pointer(new),
        )
        _check(count, setting.dtype)
        return positions[:count], new[:count]


@dataclass(frozen=True, slots=True)
class _CProfile:
    """A C structure, and what it points to."""

    structure: _Profile
    held: tuple[npt.NDArray[np.generic], ...]


class _Tables:
    """A profile's magnitude tables, one after another."""

    def __init__(self, profile: Profile) -> None:
        tables = profile.tables
        sizes = [table.frequencies.size for table in tables]
        self._table_of = profile.table_of.astype(np.uint8)
        self._count = len(tables)
        self._columns: tuple[npt.NDArray[np.generic], ...] = (
            np.array([table.precision for table in tables], np.uint8),
            np.cumsum([0, *sizes[:-1]]).astype(np.uint32),
            np.array(sizes, np.uint32),
            _joined([table.frequencies for table in tables]),
            _joined([table.starts for table in tables]),
            _joined([table.symbol_of for table in tables]),
        )
        assert self._columns[-1].size == TOTAL * len(tables)

    def profile(self, rates: Ints) -> _CProfile:
        """Return the C profile of a chunk with these rate codes."""
        narrow = rates.astype(np.uint8)
        precisions, offsets, sizes, frequencies, starts, symbols = map(_pointer, self._columns)
        structure = _Profile(
            _pointer(narrow),
            _pointer(self._table_of),
            self._count,
            precisions,
            offsets,
            sizes,
            frequencies,
            starts,
            symbols,
        )
        return _CProfile(structure, (narrow, self._table_of, *self._columns))


def _tables(settings: Sequence[Coded]) -> dict[int, _Tables]:
    profiles = {id(setting.profile): setting.profile for setting in settings}
    return {number: _Tables(profile) for number, profile in profiles.items()}


def _joined(columns: Sequence[npt.NDArray[np.uint16]]) -> npt.NDArray[np.uint16]:
    return np.concatenate([np.zeros(0, np.uint16), *columns])


def _dtype(dtype: DType, contextual: bool) -> _DType:
    mask = dtype.class_mask if contextual else 0
    return _DType(dtype.word, dtype.class_shift, mask, dtype.kind == "float")


def _changes(diff: ChunkDiff) -> _Changes:
    return _Changes(
        _pointer(diff.classes), _pointer(diff.ranks), _pointer(diff.magnitude), _pointer(diff.down)
    )


def _pointer(array: npt.NDArray[np.generic]) -> int:
    interface = array.__array_interface__
    if interface["strides"] is not None:
        raise ValueError("the native kernel takes contiguous arrays only")
    address: int = interface["data"][0]
    return address


def _check(result: int, dtype: DType) -> None:
    if result >= 0:
        return
    if result in _REFUSALS:
        raise FormatError(_REFUSALS[result].format(dtype=dtype.name))
    if result == _MEMORY:
        raise MemoryError
    raise AssertionError(f"the native kernel was called wrongly: {result}")
