"""The native kernel, from outside Python: compiled with every warning, run on every path."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from skerry.codec.compress import compress
from skerry.codec.index import ChunkEntry, Mode, PackIndex, write_index
from skerry.codec.magnitudes import MagnitudeTable
from skerry.codec.pack import HEADER, MAGIC
from skerry.codec.profile import Profile
from skerry.codec.rans import encode_streams
from skerry.codec.rates import CUMULATIVE, NEVER, TOTAL
from tests.codec.checkpoints import weights_of
from tests.native import packs, vectors

ROOT = Path(__file__).parent.parent.parent
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
# GCC's own AVX-512 header sets this one off.
FALSE_ALARMS = ("-Wno-unknown-warning-option", "-Wno-maybe-uninitialized")


def compiler() -> list[str]:
    """Return a C++ compiler; CI has one, elsewhere the test is skipped without."""
    named = shlex.split(os.environ.get("CXX", ""))
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if not named and found is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no C++ compiler")
    return named or [str(found)]


def test_every_path_codes_as_the_numpy_reference_does(tmp_path: Path) -> None:
    check = tmp_path / "check"
    sources = map(str, [ROOT / "tests/native/check.cpp", *ROOT.glob("codec/native/*.cpp")])
    flags = ["-std=c++17", "-O1", *WARNINGS, *FALSE_ALARMS]
    building = subprocess.Popen(
        [*compiler(), *flags, "-o", str(check), *sources], stderr=subprocess.PIPE, text=True
    )
    vectors.main(tmp_path / "vectors")
    _, complaints = building.communicate()
    assert building.returncode == 0, complaints
    done = subprocess.run(
        [str(check), str(tmp_path / "vectors")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "chunks are coded as by NumPy" in done.stdout


def test_every_kernel_makes_the_same_of_damaged_packs() -> None:
    rng = random.Random(20_260_103)
    mutate = packs.plain_mutation(rng)
    for pack in packs.seeds():
        assert packs.check(pack)
        for _ in range(40):
            packs.check(packs.damaged(pack, rng, mutate))


@pytest.mark.parametrize(("precision", "symbol"), [(0, 64), (0, 3000), (3, 520), (6, 4037)])
def test_a_step_of_more_than_64_bits_does_not_wrap_into_range(precision: int, symbol: int) -> None:
    """One word whose step is of 2^64 or more: sound tables, and parts that meet."""
    base = weights_of({"w": ("I64", np.zeros(8, np.uint8))})
    frequencies = np.zeros(symbol + 1, np.uint16)
    frequencies[symbol] = TOTAL
    rates, table_of = np.full(256, NEVER, np.int64), np.zeros(256, np.int64)
    rates[0], table_of[0] = 0, 1
    table = MagnitudeTable(precision=precision, frequencies=frequencies)
    [front] = encode_streams(
        [np.zeros(2, np.int64)], [np.array([CUMULATIVE[0, 1], TOTAL])], seeds=[0]
    )
    width = ((symbol + 1) >> precision) - 1
    payload = front + bytes(-(-width // 8) - 1) + b"\1"  # the step's lowest bit is set
    index = PackIndex(
        chunk_words=1 << 20,
        profiles=(Profile(rates=rates, table_of=table_of, tables=(table,)),),
        chunks=(ChunkEntry(tensor=0, start=0, count=1, mode=Mode.GAP, size=len(payload)),),
        files=(),
    )
    stored = compress(write_index(index, base.layout.tensors))
    pack = HEADER.pack(MAGIC, 1, len(stored), bytes(32)) + stored + bytes(4) + payload
    assert not packs.check(pack, base)
