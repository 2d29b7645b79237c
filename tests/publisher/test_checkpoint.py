"""Which directories are checkpoints, and what a refusal names."""

from __future__ import annotations

import json
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec.layout import Layout
from skerry.publisher import (
    Checkpoint,
    CheckpointChanged,
    CheckpointError,
    IndexMismatch,
    ScanLimits,
    ServedTensor,
    UnsafeEntry,
)
from tests.publisher.samples import SampleTensor, make, shard_bytes

INDEX = "model.safetensors.index.json"


def write(directory: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def shard(*names: str) -> bytes:
    return shard_bytes({n: SampleTensor(dtype="U8", shape=(2,), data=b"ab") for n in names})


def index(weight_map: dict[str, str]) -> bytes:
    return json.dumps({"metadata": {"total_size": 4.0}, "weight_map": weight_map}).encode()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), sharded=st.booleans())
def test_a_scan_gives_back_every_byte(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sharded: bool
) -> None:
    sample = make(seed, sharded=sharded)
    checkpoint = Checkpoint.scan(sample.write(tmp_path_factory.mktemp("scan")))
    files = sample.files()
    found = {name: b"".join(checkpoint.file_chunks(name)) for name, _ in checkpoint.layout.files()}
    assert found == files
    tensors = {n: t.data for s in sample.shards.values() for n, t in s.items()}
    read = {t.name: checkpoint.read(t).tobytes() for t in checkpoint.layout.tensors}
    assert read == tensors
    assert Layout.from_bytes(checkpoint.layout.to_bytes()) == checkpoint.layout
    checkpoint.check_unchanged()


def test_an_index_that_fits_is_accepted(tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": shard("x"), "b.safetensors": shard("y")})
    write(tmp_path, {INDEX: index({"x": "a.safetensors", "y": "b.safetensors"})})
    assert [t.name for t in Checkpoint.scan(tmp_path).layout.tensors] == ["x", "y"]


def test_an_index_in_a_subdirectory_speaks_of_the_shards_beside_it(tmp_path: Path) -> None:
    write(tmp_path, {"vision/a.safetensors": shard("x"), "text/a.safetensors": shard("y")})
    write(tmp_path, {f"vision/{INDEX}": index({"x": "a.safetensors"})})
    assert len(Checkpoint.scan(tmp_path).layout.shards) == 2


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"x": "a.safetensors", "y": "gone.safetensors"}, ["gone.safetensors", "y"]),
        ({"x": "a.safetensors", "y": "a.safetensors"}, ["a.safetensors", "y", "b.safetensors"]),
        ({"x": "a.safetensors", "z": "b.safetensors"}, ["b.safetensors", "z", "no shard"]),
        ({"x": "a.safetensors"}, ["b.safetensors"]),
        ({"y": "b.safetensors", "x2": "a.safetensors", "x": "a.safetensors"}, ["x2"]),
    ],
)
def test_an_index_that_does_not_fit_is_refused_with_shard_and_tensor(
    tmp_path: Path, weight_map: dict[str, str], named: list[str]
) -> None:
    """G-1."""
    write(tmp_path, {"a.safetensors": shard("x"), "b.safetensors": shard("y")})
    write(tmp_path, {INDEX: index(weight_map)})
    with pytest.raises(IndexMismatch) as refusal:
        Checkpoint.scan(tmp_path)
    assert all(name in str(refusal.value) for name in [INDEX, *named])


def test_an_index_that_leaves_out_a_tensor_of_a_shard_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": shard("x", "y"), INDEX: index({"x": "a.safetensors"})})
    with pytest.raises(IndexMismatch, match="holds tensor y, which weight_map leaves out"):
        Checkpoint.scan(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b'{"weight_map": {"x": "a.safetensors", "x": "a.safetensors"}}',
        b'{"weight_map": {}, "weight_map": {"x": "a.safetensors"}}',
        b'{"weight_map": []}',
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"weight_map": {"x": 7}}',
    ],
)
def test_an_index_that_is_no_index_is_refused(tmp_path: Path, text: bytes) -> None:
    write(tmp_path, {"a.safetensors": shard("x"), INDEX: text})
    with pytest.raises(IndexMismatch):
        Checkpoint.scan(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../a.safetensors",
        "/etc/a.safetensors",
        "b\\a.safetensors",
        "a\0.safetensors",
        "",
        ".",
        "C:a",
    ],
)
def test_an_index_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    """G-2."""
    inside = tmp_path / "model"
    write(tmp_path, {"a.safetensors": shard("x")})
    write(inside, {"a.safetensors": shard("x"), INDEX: index({"x": name})})
    with pytest.raises(IndexMismatch, match="weight_map sends tensor x to"):
        Checkpoint.scan(inside)


@pytest.mark.parametrize("target", ["inside", "outside", "nowhere"])
def test_a_linked_shard_or_side_file_is_refused_by_name(tmp_path: Path, target: str) -> None:
    """G-2."""
    model = write(tmp_path / "model", {"a.safetensors": shard("x")})
    write(tmp_path, {"outside": shard("y")})
    (model / "b.safetensors").symlink_to({"inside": "a.safetensors"}.get(target, f"../{target}"))
    with pytest.raises(UnsafeEntry, match=r"b\.safetensors.*symbolic link"):
        Checkpoint.scan(model)


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    model = write(tmp_path / "model", {"a.safetensors": shard("x")})
    (model / "sub").symlink_to(tmp_path)
    with pytest.raises(UnsafeEntry, match="sub"):
        Checkpoint.scan(model)


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": shard("x")})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafeEntry, match="pipe"):
        Checkpoint.scan(tmp_path)


@pytest.mark.parametrize("name", [b"bad\xff.json", b"back\\slash", b"line\nfeed"])
def test_an_unsafe_file_name_is_refused(tmp_path: Path, name: bytes) -> None:
    write(tmp_path, {"a.safetensors": shard("x")})
    Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(b"")
    with pytest.raises(UnsafeEntry):
        Checkpoint.scan(tmp_path)


def test_side_files_over_a_limit_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": shard("x"), "pytorch_model.bin": bytes(100)})
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*100 bytes.*99"):
        Checkpoint.scan(tmp_path, limits=ScanLimits(side_file_bytes=99))
    with pytest.raises(CheckpointError, match="more than 1 files"):
        Checkpoint.scan(tmp_path, limits=ScanLimits(files=1))


def test_a_directory_without_shards_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": b"{}"})
    with pytest.raises(CheckpointError, match="found none"):
        Checkpoint.scan(tmp_path)


def test_one_tensor_in_two_shards_is_refused_with_both(tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": shard("x"), "b.safetensors": shard("x")})
    with pytest.raises(CheckpointError, match=r"x is in a\.safetensors and again in b\.saf"):
        Checkpoint.scan(tmp_path)


GOOD = shard("x")
LIES = {
    "seven bytes": GOOD[:7],
    "empty": b"",
    "cut": GOOD[:-1],
    "longer": GOOD + b"\0",
    "header of 2^40": struct.pack("<Q", 2**40) + GOOD[8:],
    "header of 2^64-1": struct.pack("<Q", 2**64 - 1) + GOOD[8:],
    "not JSON": struct.pack("<Q", 8) + b"notjson!",
    "shape lies": GOOD.replace(b"[2]", b"[9]"),
    "huge shape": GOOD.replace(b"[2]", b"[%d, %d]" % (2**62, 2**62)),
    "offsets lie": GOOD.replace(b"[0, 2]", b"[1, 2]"),
    "unknown dtype": GOOD.replace(b"U8", b"Q8"),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.timeout(10)
def test_an_unsound_shard_is_refused_in_little_memory(tmp_path: Path, lie: str) -> None:
    data = LIES[lie]
    if data[8:] != GOOD[8:] and len(data) > 8 and lie not in ("cut", "longer"):
        length = len(data) - 8 - (0 if lie == "not JSON" else 2)
        data = struct.pack("<Q", length) + data[8:]
    write(tmp_path, {"model.safetensors": data})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a sound safetensors"):
        Checkpoint.scan(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: rewrite(d / "model.safetensors"),
        lambda d: (d / "model.safetensors").write_bytes(GOOD[:-1]),
        lambda d: (d / "model.safetensors").unlink(),
        lambda d: rewrite(d / "config.json"),
        lambda d: (d / "config.json").unlink(),
        lambda d: (d / "new.txt").write_bytes(b""),
    ],
)
def test_a_directory_that_changes_after_the_scan_is_noticed(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    write(tmp_path, {"model.safetensors": GOOD, "config.json": b"{}"})
    checkpoint = Checkpoint.scan(tmp_path)
    change(tmp_path)
    with pytest.raises(CheckpointChanged):
        checkpoint.check_unchanged()


def test_a_shard_that_is_cut_while_it_is_read_is_an_error_not_a_crash(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": GOOD})
    checkpoint = Checkpoint.scan(tmp_path)
    (spec,) = checkpoint.layout.tensors
    assert checkpoint.read(spec).tobytes() == b"ab"
    os.truncate(tmp_path / "model.safetensors", 3)
    with pytest.raises(CheckpointChanged):
        checkpoint.read(spec)


def test_arrays_give_the_same_layout_in_any_order() -> None:
    arrays = {"b": np.zeros(3, np.float32), "a": np.ones((2, 2), np.int64), "c": np.zeros(5, bool)}
    first = Checkpoint.from_arrays(arrays)
    second = Checkpoint.from_arrays(dict(reversed(arrays.items())))
    assert first.layout == second.layout
    assert first.layout.tensors[0].shape == (2, 2)


def test_arrays_are_spread_over_shards_with_an_index(tmp_path: Path) -> None:
    arrays = {f"t{i}": np.full(10, i, np.float32) for i in range(5)}
    checkpoint = Checkpoint.from_arrays(arrays, max_shard_bytes=80)
    assert [s.name for s in checkpoint.layout.shards] == [
        f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    checkpoint.write_to(tmp_path)
    with pytest.raises(FileExistsError):
        checkpoint.write_to(tmp_path)
    assert Checkpoint.scan(tmp_path).layout == checkpoint.layout


def test_arrays_are_readable_by_the_safetensors_library(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "flag": np.array(True)}
    checkpoint = Checkpoint.from_arrays(arrays)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"".join(checkpoint.file_chunks("model.safetensors")))
    loaded = load_file(path)
    assert {name: loaded[name].tolist() for name in loaded} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_torch_tensors_keep_their_bits() -> None:
    torch = pytest.importorskip("torch")
    tensors = {
        "bf16": torch.tensor([[1.0, -0.0], [float("nan"), 3.5]], dtype=torch.bfloat16),
        "fp8": torch.tensor([0.5, -0.0, 448.0]).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "strided": torch.arange(6, dtype=torch.int32).reshape(2, 3).t(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "empty": torch.empty(0, dtype=torch.float16),
    }
    checkpoint = Checkpoint.from_arrays(tensors)
    found = {t.name: t for t in checkpoint.layout.tensors}
    assert {name: t.dtype for name, t in found.items()} == {
        "bf16": "BF16",
        "fp8": "F8_E4M3",
        "scalar": "I64",
        "strided": "I32",
        "parameter": "F32",
        "empty": "F16",
    }
    for name, tensor in tensors.items():
        expected = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert checkpoint.read(found[name]).tobytes() == expected
        assert found[name].shape == tuple(tensor.shape)


def test_what_is_no_array_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="router"):
        Checkpoint.from_arrays({"router": [1, 2]})
    with pytest.raises(TypeError, match="of a known dtype"):
        Checkpoint.from_arrays({"x": np.zeros(2, np.longdouble)})
    with pytest.raises(ValueError, match="12 bytes, found 8"):
        ServedTensor(dtype="BF16", shape=(2, 3), data=np.zeros(4, np.uint16))
