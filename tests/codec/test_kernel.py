"""Every kernel is the same function: same changes, same bytes, same refusals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec import kernel
from skerry.codec.context import Coded
from skerry.codec.dtypes import DTYPES, Words
from skerry.codec.encode import encode_pack
from skerry.codec.errors import FormatError
from skerry.codec.fold import apply_pack
from skerry.codec.level import Level
from skerry.codec.pack import Pack
from skerry.codec.parallel import ordered
from skerry.codec.profile import fit
from skerry.codec.rates import Ints
from skerry.codec.scan import CHUNK_WORDS, ChunkDiff
from tests.codec.checkpoints import mutate, random_bytes, weights_of

KERNELS = kernel.available()
REFERENCE = KERNELS["numpy"]
NATIVE = [name for name in KERNELS if name != "numpy"]

needs_native = pytest.mark.skipif(not NATIVE, reason="no C++ compiler was there")


@st.composite
def chunks(draw: st.DrawFn) -> tuple[str, Words, Words, bool]:
    """Draw a dtype, a chunk's words before and after, and whether classes are used."""
    dtype = draw(st.sampled_from(["BF16", "F8_E4M3", "F8_E5M2", "F16", "F32", "F64", "I8", "U16"]))
    words = draw(st.one_of(st.integers(1, 200), st.sampled_from([1000, 4096, 10_001])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = random_bytes(rng, dtype, words, draw(st.booleans()))
    density = draw(st.sampled_from([0.0, 0.0005, 0.01, 0.3, 1.0]))
    new = mutate(rng, old, dtype, density, draw(st.booleans()))
    kind = DTYPES[dtype].numpy
    return dtype, old.view(kind), new.view(kind), draw(st.booleans())


def settings_of(diff: ChunkDiff, dtype: str, contextual: bool, tilt: int) -> Coded:
    profile, _ = fit([diff])
    return Coded(dtype=DTYPES[dtype], profile=profile, tilt=tilt, contextual=contextual)


@needs_native
@settings(deadline=None, max_examples=150)
@given(chunk=chunks(), tilt=st.integers(-63, 63))
def test_a_chunk_is_the_same_to_all(chunk: tuple[str, Words, Words, bool], tilt: int) -> None:
    dtype, old, new, contextual = chunk
    expected = REFERENCE.scan(old, new, DTYPES[dtype], contextual=contextual)
    if expected is None:
        assert np.array_equal(old, new)
        return
    setting = settings_of(expected, dtype, contextual, tilt)
    payload = REFERENCE.encode([expected], [setting], 1)
    for name in NATIVE:
        check_one(KERNELS[name], old, new, setting, expected, payload)


def check_one(
    native: kernel.Kernel,
    old: Words,
    new: Words,
    setting: Coded,
    expected: ChunkDiff,
    payload: list[bytes],
) -> None:
    changes = np.flatnonzero(old != new)
    assert np.array_equal(native.find_changes(old, new), changes)
    assert native.scan(old, old, setting.dtype, contextual=setting.contextual) is None
    found = native.scan(old, new, setting.dtype, contextual=setting.contextual)
    assert found is not None
    for column in ("population", "changed", "classes", "ranks", "magnitude", "down"):
        ours, theirs = getattr(found, column), getattr(expected, column)
        assert ours.dtype == theirs.dtype, column
        assert np.array_equal(ours, theirs), column
    assert native.encode([found], [setting], 1) == payload
    ((positions, bits),) = native.decode(payload, [old], [setting])
    assert np.array_equal(positions, changes)
    assert bits.dtype == new.dtype
    assert np.array_equal(bits, new[changes])
    patched = old.copy()
    native.apply(patched, positions, bits)
    assert np.array_equal(patched, new)


@needs_native
@settings(deadline=None, max_examples=200)
@given(chunk=chunks(), data=st.data())
def test_damage_is_refused_by_all_or_read_alike(
    chunk: tuple[str, Words, Words, bool], data: st.DataObject
) -> None:
    dtype, old, new, contextual = chunk
    diff = REFERENCE.scan(old, new, DTYPES[dtype], contextual=contextual)
    if diff is None or diff.ranks.size > 1000:
        return
    setting = settings_of(diff, dtype, contextual, 0)
    payload = bytearray(REFERENCE.encode([diff], [setting], 1)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] ^= 1 << data.draw(st.integers(0, 7))
    damaged = bytes(payload[: data.draw(st.integers(0, len(payload)))])

    def outcome(of: kernel.Kernel) -> tuple[Ints, Words] | None:
        try:
            ((positions, bits),) = of.decode([damaged], [old], [setting])
        except FormatError:
            return None
        return positions, bits

    theirs = outcome(REFERENCE)
    for name in NATIVE:
        ours = outcome(KERNELS[name])
        assert (ours is None) == (theirs is None), name
        if ours is not None and theirs is not None:
            assert np.array_equal(ours[0], theirs[0]), name
            assert np.array_equal(ours[1], theirs[1]), name


@pytest.mark.parametrize("level", Level)
def test_a_pack_has_the_same_bytes_on_every_kernel_and_number_of_threads(level: Level) -> None:
    rng = np.random.default_rng(11)
    old = weights_of(
        {
            f"layer{i}": (dtype, random_bytes(rng, dtype, words, True))
            for i, (dtype, words) in enumerate(
                [("BF16", 3 * CHUNK_WORDS + 17), ("BF16", 4096), ("F8_E4M3", CHUNK_WORDS + 1)]
            )
        }
    )
    types = {spec.name: spec.dtype for spec in old.layout.tensors}
    new = old.replace(**{n: mutate(rng, b, types[n], 0.01, True) for n, b in old.data.items()})

    def encode(threads: int) -> bytes:
        base = old.digest().version()
        return encode_pack(
            old.layout, old.read, new.read, base=base, level=level, threads=threads
        ).data

    def apply(pack: bytes, threads: int) -> bool:
        buffers = {name: bits.copy() for name, bits in old.data.items()}
        parsed = Pack.parse(pack, old.layout)
        apply_pack(old.layout, parsed, lambda spec: buffers[spec.name], threads=threads)
        return all(np.array_equal(buffers[name], bits) for name, bits in new.data.items())

    with kernel.using("numpy"):
        expected = encode(1)
        assert apply(expected, 1)
    for name in NATIVE:
        with kernel.using(name):
            for threads in (1, 2, 5):
                assert encode(threads) == expected
                assert apply(expected, threads)


def test_a_kernel_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="numpy"):
        kernel.use("abacus")
    with pytest.raises(ValueError, match="numpy"):
        kernel.use_from({"SKERRY_KERNEL": "abacus"})


def test_the_environment_names_the_kernel_or_leaves_the_choice() -> None:
    with kernel.using(next(iter(KERNELS))):
        kernel.use_from({})
        assert kernel.current() is next(iter(KERNELS.values()))
        kernel.use_from({"SKERRY_KERNEL": "numpy"})
        assert kernel.current().name == "numpy"


def test_continuous_integration_has_the_native_kernel() -> None:
    assert NATIVE or "CI" not in os.environ


WORDS = np.arange(64, dtype=np.uint16)
POSITIONS = np.array([3, 5])


@pytest.mark.parametrize("name", KERNELS)
@given(data=st.data())
def test_a_writer_writes_to_all_its_arrays_whenever_it_is_called(
    name: str, data: st.DataObject
) -> None:
    writes, expected = [], []
    for word in data.draw(st.lists(st.sampled_from([1, 2, 4, 8]), max_size=4)):
        size = data.draw(st.integers(1, 300))
        words = np.zeros(size, f"<u{word}")
        positions = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1)))), np.int64)
        new = np.arange(1, positions.size + 1, dtype=words.dtype)
        writes.append((words, positions, new))
        after = words.copy()
        after[positions] = new
        expected.append(after)
    write = KERNELS[name].writer(writes)
    for _ in range(2):
        write()
        for (words, _, _), after in zip(writes, expected, strict=True):
            assert np.array_equal(words, after)
            words[:] = 0


@pytest.mark.parametrize("name", KERNELS)
def test_a_writer_stops_at_a_position_outside(name: str) -> None:
    first, second = WORDS.copy(), WORDS.copy()
    outside = np.array([WORDS.size], np.int64)
    write = KERNELS[name].writer(
        [(first, POSITIONS, WORDS[:2] + 1), (second, outside, WORDS[:1] + 1)]
    )
    with pytest.raises(IndexError, match=r"outside|out of bounds"):
        write()
    assert np.array_equal(second, WORDS)


def read_only() -> Words:
    words = WORDS.copy()
    words.flags.writeable = False
    return words


@needs_native
@pytest.mark.parametrize(
    ("misuse", "rule"),
    [
        (lambda k: k.find_changes(WORDS[::2], WORDS[::2]), "contiguous"),
        (lambda k: k.find_changes(WORDS, WORDS[:8]), "64 words"),
        (lambda k: k.find_changes(WORDS, WORDS.astype(np.uint32)), "uint32"),
        (lambda k: k.scan(WORDS, WORDS + 1, DTYPES["F8_E4M3"]), "F8_E4M3"),
        (lambda k: k.apply(read_only(), POSITIONS, WORDS[:2]), "read-only"),
        (lambda k: k.apply(WORDS.copy(), POSITIONS, WORDS[:1]), "1 new"),
        (lambda k: k.apply(WORDS.copy(), POSITIONS.astype(np.int32), WORDS[:2]), "int32"),
    ],
)
def test_arrays_of_another_kind_are_refused_before_they_are_touched(
    misuse: Callable[[kernel.Kernel], object], rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        misuse(KERNELS[NATIVE[0]])


@needs_native
@pytest.mark.parametrize("position", [-1, 64, 2**62])
def test_a_position_outside_is_not_written(position: int) -> None:
    with pytest.raises(IndexError):
        KERNELS[NATIVE[0]].apply(WORDS.copy(), np.array([position]), WORDS[:1])


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("threads", [1, 3])
def test_work_on_threads_is_in_order_and_so_are_its_errors(threads: int, at_once: int) -> None:
    def work(item: int) -> int:
        if item == 20:
            raise ZeroDivisionError
        return item * item

    def items() -> Iterator[int]:
        yield from range(21)
        raise KeyError("the items end badly")

    found: list[int] = []
    with pytest.raises(ZeroDivisionError):
        found.extend(ordered(work, items(), threads, at_once=at_once))
    squares = [n * n for n in range(20)]
    assert found == squares
    assert list(ordered(work, range(20), threads, at_once=at_once)) == squares
    found = []
    with pytest.raises(KeyError):
        found.extend(ordered(lambda item: item, items(), threads, at_once=at_once))
    assert found == [*range(21)]


def test_few_results_wait_for_a_slow_reader() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(1, 100):
            taken = number
            yield number

    results = ordered(lambda item: item, items(), 3)
    assert next(results) == 1
    assert taken <= 4
    results.close()
