"""The promise of the whole: what was published is what is pulled, every file of it, byte for byte.

Twenty pairs of random checkpoints go through `skerry publish` and come back through `skerry pull`.
Between them they hold every dtype, one shard and several, zero-size and 0-d tensors, changes of
weights, of side files, of headers and of structure.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skerry.cli.app import app
from skerry.codec.dtypes import DTYPES
from skerry.codec.header import tensor_bytes
from tests.publisher.samples import (
    SHAPES,
    Sample,
    SampleTensor,
    edit_side_files,
    edit_structure,
    edit_weights,
    make,
    read_tree,
)

PAIRS = 20
IN_PROCESSES = {0, 11}  # the others run in this one, which is faster
ODD_SHAPES = ((), (0,), (0, 5), (3, 0, 2))


def skerry(number: int, *arguments: object) -> dict[str, object]:
    words = [*map(str, arguments), "--json"]
    if number in IN_PROCESSES:
        done = subprocess.run(
            [sys.executable, "-m", "skerry", *words], capture_output=True, text=True, check=False
        )
        code, output, errors = done.returncode, done.stdout, done.stderr
    else:
        result = CliRunner().invoke(app, words)
        code, output, errors = result.exit_code, result.stdout, result.stderr
    assert (code, errors) == (0, ""), errors or output
    value: dict[str, object] = json.loads(output)
    return value


def with_tensor(sample: Sample, name: str, tensor: SampleTensor) -> Sample:
    shard = min(sample.shards)
    return replace(sample, shards={**sample.shards, shard: {**sample.shards[shard], name: tensor}})


def tensor(rng: random.Random, dtype: str, shape: tuple[int, ...]) -> SampleTensor:
    if DTYPES[dtype].bits < 8 and 0 not in shape:
        shape = (*shape, 4)  # a whole number of bytes
    data = rng.randbytes(tensor_bytes("sample", dtype, shape))
    return SampleTensor(dtype=dtype, shape=shape, data=data)


def pair(number: int) -> tuple[Sample, Sample]:
    """Return a checkpoint and its successor; the kinds of change take turns."""
    rng = random.Random(f"pair {number}")
    first = make(rng.randrange(1 << 30), sharded=number % 2 == 1)
    for index, dtype in enumerate(DTYPES):
        if index % 4 == number % 4:  # four pairs hold them all
            first = with_tensor(first, f"all.{dtype}", tensor(rng, dtype, rng.choice(SHAPES)))
    for shape in ODD_SHAPES:
        dtype = rng.choice(list(DTYPES))
        first = with_tensor(first, f"odd.{len(shape)}.{sum(shape)}", tensor(rng, dtype, shape))
    second = edit_weights(first, number, share=rng.choice([0.001, 0.1, 0.9]))
    match number % 5:
        case 1:
            second = edit_side_files(second, number)
        case 2:
            second = edit_structure(second, number)
        case 3:
            grown = tensor(rng, "BF16", (4, 2))  # from nothing, and another to nothing
            second = with_tensor(second, "odd.1.0", grown)
            second = edit_side_files(with_tensor(second, "odd.0.0", tensor(rng, "U8", (0,))), 1)
        case 4:
            second = replace(second, metadata={"step": str(number)}, padding=first.padding + 3)
    return first, second


def everything(directory: Path) -> Iterator[str]:
    yield from (path.relative_to(directory).as_posix() for path in directory.rglob("*"))


def test_the_pairs_hold_all_that_they_promise() -> None:
    tensors = [
        tensor
        for number in range(PAIRS)
        for sample in pair(number)
        for shard in sample.shards.values()
        for tensor in shard.values()
    ]
    assert {tensor.dtype for tensor in tensors} == set(DTYPES)
    assert {tensor.dtype for tensor in tensors if tensor.data} == set(DTYPES)
    assert {(), (0,), (0, 5)} <= {tensor.shape for tensor in tensors}


@pytest.mark.parametrize("number", range(PAIRS))
def test_what_is_pulled_is_what_was_published(tmp_path: Path, number: int) -> None:
    bulletin = tmp_path / "bulletin"
    published = [sample.write(tmp_path / f"v{v}") for v, sample in enumerate(pair(number))]
    for version, directory in enumerate(published):
        report = skerry(number, "publish", bulletin, directory)
        assert report["version"] == version
    restructured = number % 5 in (2, 3, 4)
    assert str(report["reason"]).startswith("structure changed") or not restructured
    for version, directory in enumerate(published):
        target = tmp_path / f"pulled-{version}"
        skerry(number, "pull", bulletin, target, "--version", version)
        assert read_tree(target) == read_tree(directory)
        assert sorted(everything(target)) == sorted(everything(directory))
    assert skerry(number, "verify", bulletin, "--deep")["identical"] is True
