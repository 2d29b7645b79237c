"""The codec's hot loops in C++, called through ctypes; `kernel.h` is the interface.

`pip install` compiles the library where a C++17 compiler is found.  Without it everything works on
the NumPy reference, more slowly and with the same bytes.  ctypes gives up the interpreter's lock
during each call, so threads run side by side.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import as_file, files

import numpy as np
import numpy.typing as npt

from skerry.codec.context import Coded
from skerry.codec.dtypes import DType, Words, Write
from skerry.codec.errors import FormatError
from skerry.codec.parallel import ordered
from skerry.codec.profile import Profile
from skerry.codec.rates import Ints
from skerry.codec.scan import CLASSES, ChunkDiff

LIBRARY = "_kernel.so"  # beside this file; hatch_build.py writes it
SOURCE_ENDS = (".cpp", ".h", ".inc")

_PATHS = {4: "avx512", 2: "avx2", 1: "portable"}  # the fastest first
_BLOCK = 64  # words that share one item of a bitmap
_SEED_BITS = 16
_AT_ONCE = 16  # chunks that a thread codes in a row

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
    -11: "a coded chunk has more bytes than so many words can take",
}
_MEMORY = -2

_Columns = tuple[npt.NDArray[np.generic], ...]


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
    )


class _Changes(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("classes", "ranks", "magnitudes", "downs")
    )


class _Write(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.c_void_p),
        ("n", ctypes.c_uint64),
        ("positions", ctypes.c_void_p),
        ("after", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("word", ctypes.c_uint32),
    )


_INT, _WORDS, _COUNT, _POINTER = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_SIGNATURES = {
    "diff": (_INT, _WORDS, _POINTER, _POINTER, _COUNT, _POINTER),
    "positions": (_POINTER, _COUNT, _POINTER),
    "scan": (
        *(_INT, ctypes.POINTER(_DType), _POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER),
        _POINTER,
    ),
    "describe": (
        *(ctypes.POINTER(_DType), _POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT, _POINTER),
        ctypes.POINTER(_Changes),
    ),
    "encode": (
        *(ctypes.POINTER(_Profile), _POINTER, _POINTER, ctypes.POINTER(_Changes), _POINTER, _COUNT),
    ),
    "decode": (
        *(_INT, ctypes.POINTER(_DType), ctypes.POINTER(_Profile), _POINTER, _COUNT, _POINTER),
        *(_COUNT, _COUNT, _POINTER, _POINTER),
    ),
    "apply": (ctypes.POINTER(_Write), _COUNT),
}


def load() -> tuple[NativeKernel, ...]:
    """Return the native kernel on every path that this processor has, the fastest first.

    Raises OSError if the library was not built, or not for this machine, or from other sources.
    """
    here = files(__name__)
    with as_file(here / LIBRARY) as path:
        library = ctypes.CDLL(str(path))
    try:
        library.skerry_sources.restype = ctypes.c_char_p
        built_from = library.skerry_sources().decode()
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, f"skerry_{name}")
            function.restype, function.argtypes = ctypes.c_int64, arguments
        usable = library.skerry_paths()
    except AttributeError as error:
        raise OSError(f"{LIBRARY} is of another version of Skerry: {error}") from error
    # A wheel has no sources; in a checkout they may have changed since they were compiled.
    sources = {
        item.name: item.read_bytes() for item in here.iterdir() if item.name.endswith(SOURCE_ENDS)
    }
    if sources and built_from != digest_sources(sources):
        raise OSError(f"{LIBRARY} was built from other sources than those beside it")
    return tuple(NativeKernel(library, path) for path in _PATHS if usable & path)


def digest_sources(sources: Mapping[str, bytes]) -> str:
    """Return what tells these sources, by file name, from others; hatch_build.py does the same."""
    stream = sha256()
    for name, content in sorted(sources.items()):
        stream.update(b"%s %d\n%s" % (name.encode(), len(content), content))
    return stream.hexdigest()


class NativeKernel:
    """See `skerry.codec.kernel.Kernel`."""

    lockstep = False

    def __init__(self, library: ctypes.CDLL, path: int) -> None:
        self.name = _PATHS[path]
        self._library = library
        self._path = path

    def find_changes(self, old: Words, new: Words) -> Ints:
        _check_alike(old, new)
        bitmap = np.empty(-(-old.size // _BLOCK), np.uint64)
        count = self._library.skerry_diff(
            self._path, old.itemsize, _address(old), _address(new), old.size, _address(bitmap)
        )
        if count < 0:
            raise ValueError(f"words of {old.dtype}")
        positions = np.empty(count, np.int64)
        self._library.skerry_positions(_address(bitmap), old.size, _address(positions))
        return positions

    def scan(
        self, old: Words, new: Words, dtype: DType, *, contextual: bool = True
    ) -> ChunkDiff | None:
        _check_alike(_typed(old, dtype), new)
        before, after, c_dtype = _address(old), _address(new), _dtype(dtype, contextual)
        found = np.empty((2, old.size), np.uint32)  # positions, ranks; most of it is never touched
        positions, ranks = map(_address, found)
        counts = np.empty((2, CLASSES), np.int64)
        population, changed = map(_address, counts)
        size = self._library.skerry_scan(
            *(self._path, ctypes.byref(c_dtype), before, after, old.size, positions, ranks),
            *(population, changed),
        )
        _check(size, dtype)
        if not size:
            return None
        diff = ChunkDiff(
            population=counts[0],
            changed=counts[1],
            classes=np.empty(size, np.uint8),
            ranks=np.empty(size, np.uint32),
            magnitude=np.empty(size, np.uint64),
            down=np.empty(size, np.bool_),
        )
        described = self._library.skerry_describe(
            *(ctypes.byref(c_dtype), before, after, old.size, positions, ranks, size, changed),
            ctypes.byref(_changes(diff)),
        )
        if described < 0:
            raise ValueError("the words changed while they were compared")
        return diff

    def encode(
        self, diffs: Sequence[ChunkDiff], settings: Sequence[Coded], threads: int
    ) -> list[bytes]:
        profiles = _Profiles()
        items = (
            (diff, setting.dtype, profiles.of(setting))
            for diff, setting in zip(diffs, settings, strict=True)
        )
        return list(ordered(self._encode, items, threads, at_once=_AT_ONCE))

    def decode(
        self,
        chunks: Sequence[bytes | memoryview],
        bases: Sequence[Words],
        settings: Sequence[Coded],
    ) -> list[tuple[Ints, Words]]:
        profiles = _Profiles()
        return [
            self._decode(chunk, base, setting, profiles.of(setting))
            for chunk, base, setting in zip(chunks, bases, settings, strict=True)
        ]

    def apply(self, words: Words, positions: Ints, new: Words) -> None:
        self.writer([(words, positions, new)])()

    def writer(self, writes: Sequence[Write]) -> Callable[[], None]:
        held = list(writes)  # what the rows point into
        rows = (_Write * len(held))(*(_write(write) for write in held))

        def write_all() -> None:
            if self._library.skerry_apply(rows, len(held)) < 0:
                words = sorted({words.size for words, _, _ in held})
                raise IndexError(f"a position is outside the words: {words[:5]}")

        return write_all

    def _encode(self, item: tuple[ChunkDiff, DType, _CProfile]) -> bytes:
        diff, dtype, profile = item
        if int(diff.changed.sum()) != diff.ranks.size:
            raise ValueError(f"{int(diff.changed.sum())} changes, but {diff.ranks.size} ranks")
        capacity = 4096 + 8 * diff.ranks.size
        while True:
            out = np.empty(capacity, np.uint8)
            size = self._library.skerry_encode(
                ctypes.byref(profile.structure),
                _column(diff.population, np.int64, CLASSES),
                _column(diff.changed, np.int64, CLASSES),
                ctypes.byref(_changes(diff)),
                _address(out),
                capacity,
            )
            _check(size, dtype)
            if size <= capacity:
                return out[:size].tobytes()
            capacity = size

    def _decode(
        self, payload: bytes | memoryview, base: Words, setting: Coded, profile: _CProfile
    ) -> tuple[Ints, Words]:
        data = np.frombuffer(payload, np.uint8)
        # Each change has a direction, a bit of the payload or one of the seed's.
        capacity = min(base.size, 8 * data.size + _SEED_BITS)
        positions = np.empty(capacity, np.int64)
        new = np.empty(capacity, base.dtype)
        count = self._library.skerry_decode(
            self._path,
            ctypes.byref(_dtype(setting.dtype, setting.contextual)),
            ctypes.byref(profile.structure),
            _address(data),
            data.size,
            _address(_typed(base, setting.dtype)),
            base.size,
            capacity,
            _address(positions),
            _address(new),
        )
        _check(count, setting.dtype)
        return positions[:count], new[:count]


def _write(write: Write) -> _Write:
    words, positions, new = write
    if not words.flags.writeable:
        raise ValueError("assignment destination is read-only")
    if (
        new.dtype != words.dtype
        or new.shape != positions.shape
        or positions.dtype != np.int64
        or not positions.flags.aligned
    ):
        raise ValueError(
            f"{positions.size} positions ({positions.dtype}) of {words.dtype} words, "
            f"and {new.size} new ones of {new.dtype}"
        )
    return _Write(
        words=_address(words),
        n=words.size,
        positions=_address(positions),
        after=_address(new),
        count=positions.size,
        word=words.itemsize,
    )


@dataclass(frozen=True, slots=True)
class _CProfile:
    """A C structure, and what it points to."""

    structure: _Profile
    held: _Columns


class _Profiles:
    """The C profiles of one call's chunks, made as they are asked for.

    All are kept: a pack's tables have at most 2^24 symbols together, and a hostile one could switch
    between two with every chunk.
    """

    def __init__(self) -> None:
        self._tables: dict[int, tuple[Profile, _Columns]] = {}  # by identity, which they keep alive
        self._tilted: dict[tuple[int, int], _CProfile] = {}

    def of(self, setting: Coded) -> _CProfile:
        profile, number = setting.profile, id(setting.profile)
        found = self._tilted.get((number, setting.tilt))
        if found is None:
            if number not in self._tables:
                self._tables[number] = profile, _tables(profile)
            columns = self._tables[number][1]
            rates = profile.tilted(setting.tilt).astype(np.uint8)
            table_of, *others = map(_address, columns)
            structure = _Profile(_address(rates), table_of, len(profile.tables), *others)
            found = self._tilted[number, setting.tilt] = _CProfile(structure, (rates, *columns))
        return found


def _tables(profile: Profile) -> _Columns:
    """Return the columns of a profile's magnitude tables, one table after another."""
    tables = profile.tables
    sizes = [table.frequencies.size for table in tables]
    nothing = np.zeros(0, np.uint16)
    return (
        profile.table_of.astype(np.uint8),
        np.array([table.precision for table in tables], np.uint8),
        np.cumsum([0, *sizes[:-1]]).astype(np.uint32),
        np.array(sizes, np.uint32),
        np.concatenate([nothing, *(table.frequencies for table in tables)]),
        np.concatenate([nothing, *(table.starts for table in tables)]),
    )


def _dtype(dtype: DType, contextual: bool) -> _DType:
    mask = dtype.class_mask if contextual else 0
    return _DType(dtype.word, dtype.class_shift, mask, dtype.kind == "float")


def _changes(diff: ChunkDiff) -> _Changes:
    count = diff.ranks.size
    return _Changes(
        _column(diff.classes, np.uint8, count),
        _column(diff.ranks, np.uint32, count),
        _column(diff.magnitude, np.uint64, count),
        _column(diff.down, np.bool_, count),
    )


def _typed(words: Words, dtype: DType) -> Words:
    if words.dtype != dtype.numpy:
        raise ValueError(f"words of {dtype.name} are {dtype.numpy}, found {words.dtype}")
    return words


def _check_alike(old: Words, new: Words) -> None:
    if old.shape != new.shape or old.dtype != new.dtype:
        raise ValueError(f"{old.size} words of {old.dtype} against {new.size} of {new.dtype}")


def _column(array: npt.NDArray[np.generic], kind: type[np.generic], size: int) -> int:
    if array.dtype != kind or array.shape != (size,) or not array.flags.aligned:
        raise ValueError(f"{size} of {kind.__name__} expected, found {array.size} of {array.dtype}")
    return _address(array)


def _address(array: npt.NDArray[np.generic]) -> int:
    """Return where a contiguous array lies.  That it is big enough is for the caller to know."""
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
