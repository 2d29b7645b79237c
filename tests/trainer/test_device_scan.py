"""The torch path finds what the codec finds, and only what changed leaves the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from skerry.codec.digest import LEAF_BYTES, Bytes
from skerry.codec.dtypes import DTYPES
from skerry.codec.encode import ScannedChunk, encode_pack, scan_chunk
from skerry.codec.errors import StructureMismatch
from skerry.codec.index import Mode
from skerry.codec.level import Level
from skerry.codec.scan import CHUNK_WORDS, CLASSES
from skerry.trainer.device_scan import BAND_CHUNKS, encode_on_device, scan_on_device
from tests.codec.checkpoints import Weights, mutate, pairs, random_bytes, weights_of

DENSITIES = [0.0, 0.0005, 0.01, 0.1, 0.5, 1.0]
HOST = torch.device("cpu")


def tensors(weights: Weights, device: torch.device = HOST) -> dict[str, torch.Tensor]:
    return {name: on(device, data) for name, data in weights.data.items()}


def on(device: torch.device, data: Bytes) -> torch.Tensor:
    return torch.from_numpy(data.copy()).to(device)


def on_the_host(
    old: Bytes, new: Bytes, dtype: str, level: Level, chunk_words: int
) -> list[ScannedChunk]:
    kind = DTYPES[dtype]
    before, after = old.view(kind.numpy), new.view(kind.numpy)
    found = [
        scan_chunk(3, at, before[at : at + chunk_words], after[at : at + chunk_words], kind, level)
        for at in range(0, before.size, chunk_words)
    ]
    return [chunk for chunk in found if chunk is not None]


def check_same(ours: Iterable[ScannedChunk], theirs: Iterable[ScannedChunk]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        assert (our.tensor, our.start, our.count) == (their.tensor, their.start, their.count)
        assert our.dense == their.dense
        for column in ("population", "changed", "classes", "ranks", "magnitude", "down"):
            a, b = getattr(our.diff, column), getattr(their.diff, column)
            assert a.dtype == b.dtype, column
            assert np.array_equal(a, b), column


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Bytes, Bytes, int]:
    """Draw a dtype, a tensor's bytes before and after, and the size of a chunk."""
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    chunk_words = draw(st.sampled_from([1, 7, 64, 1000, 4096]))
    most = 3 * BAND_CHUNKS * chunk_words  # three bands
    words = draw(st.one_of(st.integers(0, most), st.integers(0, 3 * chunk_words)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = random_bytes(rng, dtype, words, draw(st.booleans()))
    density = draw(st.sampled_from(DENSITIES))
    return dtype, old, mutate(rng, old, dtype, density, draw(st.booleans())), chunk_words


@settings(max_examples=200)
@given(case=cases(), level=st.sampled_from(Level))
def test_every_column_of_every_chunk_is_that_of_the_codec(
    case: tuple[str, Bytes, Bytes, int], level: Level
) -> None:
    dtype, old, new, chunk_words = case
    ours = scan_on_device(
        on(HOST, old), on(HOST, new), DTYPES[dtype], level, tensor=3, chunk_words=chunk_words
    )
    check_same(ours, on_the_host(old, new, dtype, level, chunk_words))


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3", "BF16", "F16", "I32", "F32", "F64", "U64"])
def test_steps_across_the_whole_range_are_exact(dtype: str) -> None:
    word = DTYPES[dtype].word
    corners = [0, 1, 2, 2 ** (8 * word - 1) - 1, 2 ** (8 * word - 1), 2 ** (8 * word) - 1]
    squared = [(a, b) for a in corners for b in corners]
    old, new = (
        np.array(column, DTYPES[dtype].numpy).view(np.uint8)
        for column in zip(*squared, strict=True)
    )
    for level in Level:
        ours = scan_on_device(on(HOST, old), on(HOST, new), DTYPES[dtype], level, tensor=3)
        check_same(ours, on_the_host(old, new, dtype, level, CHUNK_WORDS))


def test_chunks_of_full_size_and_a_short_one_at_the_end() -> None:
    rng = np.random.default_rng(5)
    old = random_bytes(rng, "BF16", 2 * CHUNK_WORDS + 12_345, True)
    new = mutate(rng, old, "BF16", 0.004, True)
    new[: 2 * CHUNK_WORDS] = old[: 2 * CHUNK_WORDS]  # the first chunk stays as it is
    ours = list(
        scan_on_device(on(HOST, old), on(HOST, new), DTYPES["BF16"], Level.DEFAULT, tensor=3)
    )
    assert [chunk.start for chunk in ours] == [CHUNK_WORDS, 2 * CHUNK_WORDS]
    check_same(ours, on_the_host(old, new, "BF16", Level.DEFAULT, CHUNK_WORDS))


def test_a_tensor_is_taken_by_its_bytes_whatever_its_dtype_shape_and_strides() -> None:
    old = (torch.randn(64, 48) * 0.02).to(torch.bfloat16)
    new = old.clone().requires_grad_()
    with torch.no_grad():
        new[3, 5] = -new[3, 5]
        new[7] *= 2
    as_bytes = [t.detach().view(torch.uint8).numpy().reshape(-1) for t in (old, new)]
    expected = on_the_host(as_bytes[0], as_bytes[1], "BF16", Level.DEFAULT, CHUNK_WORDS)
    strided = new.detach().T.contiguous().T
    assert not strided.is_contiguous()
    for after in (new, strided, new.detach().view(torch.int16)):
        found = scan_on_device(old, after, DTYPES["BF16"], Level.DEFAULT, tensor=3)
        check_same(found, expected)


@settings(max_examples=25)
@given(pair=pairs(chunk_words=256), level=st.sampled_from(Level), known=st.booleans())
def test_a_pack_has_the_bytes_that_encode_pack_gives(
    pair: tuple[Weights, Weights], level: Level, known: bool
) -> None:
    check_pack(*pair, level, chunk_words=256, known=known)


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("density", [0.002, 0.3])
def test_a_mixed_checkpoint_gives_the_same_pack(level: Level, density: float) -> None:
    check_pack(*mixed(density), level, known=density < 0.1)


def mixed(density: float) -> tuple[Weights, Weights]:
    """A BF16 and FP8 checkpoint with FP32 scales; some of it stays, some becomes any bits."""
    rng = np.random.default_rng(17)
    table = [("BF16", CHUNK_WORDS + 4321), ("F8_E4M3", 150_000), ("F32", 999), ("BF16", 50_000)]
    old = weights_of(
        {
            f"layer{i}": (dtype, random_bytes(rng, dtype, words, True))
            for i, (dtype, words) in enumerate([*table, ("BF16", 4096), ("BF16", 0)])
        }
    )
    types = {spec.name: spec.dtype for spec in old.layout.tensors}
    new = {n: mutate(rng, b, types[n], density, n != "layer3") for n, b in old.data.items()}
    return old, old.replace(**{**new, "layer4": old.data["layer4"]})


def check_pack(
    old: Weights,
    new: Weights,
    level: Level,
    *,
    known: bool,
    chunk_words: int = CHUNK_WORDS,
    device: torch.device = HOST,
) -> None:
    digests = new.digest() if known else None
    base, files = old.digest().version(), {"config.json": b"{}"}
    expected = encode_pack(
        old.layout,
        old.read,
        new.read,
        base=base,
        files=files,
        chunk_words=chunk_words,
        level=level,
    )
    found = encode_on_device(
        old.layout,
        tensors(old, device),
        tensors(new, device),
        base=base,
        files=files,
        chunk_words=chunk_words,
        level=level,
        threads=2,
        digests=digests,
    )
    assert found == expected


class Exits(TorchFunctionMode):
    """Counts the bytes that leave torch, by any way there is."""

    ways: tuple[Callable[..., Any], ...] = (
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.item,
        torch.Tensor.__array__,
        torch.Tensor.__bool__,
        torch.Tensor.__int__,
        torch.Tensor.__index__,
    )

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in self.ways:
            self.nbytes += args[0].nbytes
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("changes", [0, 1, 1000])
def test_six_bytes_for_each_change_of_bf16_leave_the_device(level: Level, changes: int) -> None:
    rng = np.random.default_rng(changes)
    chunks = 2 * BAND_CHUNKS
    old = weights_of({"w": ("BF16", random_bytes(rng, "BF16", chunks * 4096, True))})
    data = old.data["w"].copy()
    data.view(np.uint16)[rng.choice(data.size // 2, changes, replace=False)] ^= 1
    new = old.replace(w=data)
    before, after, digests = tensors(old), tensors(new), new.digest()
    with Exits() as exits:
        pack = encode_on_device(
            old.layout,
            before,
            after,
            base=old.digest().version(),
            chunk_words=4096,
            level=level,
            digests=digests,
        )
    assert pack.changed == changes
    for_counts = min(2, changes) * BAND_CHUNKS * 2 * CLASSES * 4  # of the bands that changed
    assert exits.nbytes == 2 + for_counts + 6 * changes  # 1 a band: did it change?


def test_both_versions_of_a_chunk_leave_only_where_a_dense_form_is_tried() -> None:
    rng = np.random.default_rng(2)
    old = random_bytes(rng, "BF16", 3 * 4096, True)
    new = mutate(rng, old, "BF16", 0.01, True)
    new[2 * 4096 : 4 * 4096] = rng.integers(0, 256, 2 * 4096, np.uint8)
    before, after = on(HOST, old), on(HOST, new)
    with Exits() as exits:
        found = list(
            scan_on_device(before, after, DTYPES["BF16"], Level.DEFAULT, tensor=3, chunk_words=4096)
        )
    assert [chunk.dense is not None for chunk in found] == [False, True, False]
    assert found[1].dense is not None
    assert found[1].dense[0] in (Mode.PLANES, Mode.RAW)
    changes = sum(chunk.diff.ranks.size for chunk in found)
    assert exits.nbytes == 1 + 3 * 2 * CLASSES * 4 + 6 * changes + 2 * (2 * 4096)
    check_same(found, on_the_host(old, new, "BF16", Level.DEFAULT, 4096))


def test_without_digests_the_leaves_that_changed_leave_and_no_others() -> None:
    words = LEAF_BYTES // 2 + 1000
    old = weights_of({"w": ("BF16", np.zeros(2 * words, np.uint8))})
    data = old.data["w"].copy()
    data[-1] = 1
    new = old.replace(w=data)
    before, after, base = tensors(old), tensors(new), old.digest().version()
    with Exits() as exits:
        pack = encode_on_device(old.layout, before, after, base=base)
    assert pack == encode_pack(old.layout, old.read, new.read, base=base)
    assert list(pack.leaves["w"]) == [1]
    # Two bands, of which the second has one chunk with one change in it.
    assert exits.nbytes == 2 + 2 * CLASSES * 4 + 6 + 2000


def test_a_tensor_that_is_missing_or_of_another_size_is_named() -> None:
    weights = weights_of({"w": ("BF16", np.zeros(64, np.uint8))})
    sound = tensors(weights)
    base = weights.digest().version()
    with pytest.raises(StructureMismatch, match="w: 64 bytes expected, found no such tensor"):
        encode_on_device(weights.layout, sound, {}, base=base)
    with pytest.raises(StructureMismatch, match="w: 64 bytes expected, found 62"):
        encode_on_device(weights.layout, sound, {"w": sound["w"][:62]}, base=base)
    with pytest.raises(StructureMismatch, match="64 bytes expected, found 62"):
        list(scan_on_device(sound["w"], sound["w"][:62], DTYPES["BF16"], Level.DEFAULT))


def test_versions_on_two_devices_are_refused() -> None:
    tensor = torch.zeros(8, dtype=torch.int16)
    with pytest.raises(ValueError, match="one device"):
        list(scan_on_device(tensor, tensor.to("meta"), DTYPES["BF16"], Level.DEFAULT))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA or ROCm device")
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("density", [0.002, 0.3])
def test_a_gpu_gives_the_same_pack(level: Level, density: float) -> None:
    check_pack(*mixed(density), level, known=True, device=torch.device("cuda"))
