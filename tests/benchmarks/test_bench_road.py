"""Over an emulated link, and far behind: the benchmarks at toy size, on real servers and agents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skerry.benchmarks.road.files import apply_xor_file, xor_file
from skerry.benchmarks.road.link import FAR, LinkSpec, LinkUnavailable, link
from skerry.benchmarks.road.links import LINKS, parse
from skerry.benchmarks.road.ways import limit_s
from skerry.benchmarks.simulate import simulate
from tests.servers.fixtures import require_weed

_NAMESPACES = Path("/run/netns")


def bench(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "skerry.benchmarks", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def namespaces() -> set[str]:
    return {path.name for path in _NAMESPACES.glob("skerry-*")}


@pytest.fixture
def emulated() -> None:
    """Skip where no link can be made."""
    try:
        with link(LinkSpec(round_trip_s=0.002, loss=0.0)) as made:
            made.use("cubic")
    except LinkUnavailable as error:
        pytest.skip(f"NO LINK: {error}; versions over an emulated link stay untested")


@pytest.mark.usefixtures("emulated")
def test_a_link_delays_drops_and_leaves_nothing_behind() -> None:
    before = namespaces()
    knock = (  # nobody listens there: the refusal takes a round trip
        "import socket, sys, time\n"
        "began = time.monotonic()\n"
        "assert socket.socket().connect_ex((sys.argv[1], 9))\n"
        "print(time.monotonic() - began)\n"
    )
    with link(LinkSpec(round_trip_s=0.2, loss=0.0)) as made:
        command = made.near([sys.executable, "-c", knock, FAR])
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        assert float(shown.stdout) >= 0.2
        assert made.bytes_to_near() > 0
    assert namespaces() == before
    with link(LinkSpec(round_trip_s=0.0, loss=0.999)) as made:
        command = made.near([sys.executable, "-c", knock, FAR])
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=1.0, check=False)
    assert namespaces() == before


@pytest.mark.usefixtures("emulated")
def test_versions_cross_a_link_and_are_served_beside_a_full_checkpoint() -> None:
    require_weed()
    before = namespaces()
    found = bench(
        "road", "--links", "200:10:0", "--megabytes", "2", "--versions", "2", "--islands", "2",
    )  # fmt: skip
    *sent, whole = found["ways"]
    patches, files = sent[:2], sent[2:]
    assert [way["version"] for way in patches] == [1, 2]
    assert {way["what"] for way in files} == {"XOR + zstd-1 file"}
    assert whole["nbytes"] > 2_000_000
    for way in sent:
        assert way["islands"] == 2
        assert 0 < 2 * way["nbytes"] < way["wire_bytes"]
        assert 0 < way["arrived_s"] <= way["served_s"]
        assert way["nbytes"] < whole["nbytes"] / 20
        assert way["limit_s"] > 0.04
        assert min(way["publish_cpu_s"], way["island_cpu_s"], way["pause_s"]) > 0
    assert patches[0]["nbytes"] < files[0]["nbytes"]
    assert patches[0]["phases"]
    assert namespaces() == before


def test_links_have_names_or_numbers() -> None:
    assert parse("200:150:1") == ("200:150:1", LINKS["200m"])
    assert parse("1g") == ("1g", LINKS["1g"])
    for wrong in ("2g", "1:2", "0:1:1", "1:1:100"):
        with pytest.raises(ValueError, match=r"expected|no link"):
            parse(wrong)


def test_the_limit_is_the_bandwidth_shared_and_four_round_trips() -> None:
    spec = LinkSpec(bits_per_s=8_000_000, round_trip_s=0.1, loss=0.0)
    assert limit_s(spec, 1_000_000, 1) == pytest.approx(1.4)
    assert limit_s(spec, 1_000_000, 8) == pytest.approx(8.4)


def test_an_xor_file_gives_the_weights_of_the_version() -> None:
    pair = simulate("BF16", 200_000, 0.01, seed=3)
    weights = {name: old.copy() for name, old in pair.old.items()}
    apply_xor_file(xor_file(pair), weights)
    assert all(np.array_equal(weights[name], new) for name, new in pair.new.items())


def test_who_is_many_versions_behind_installs_once_and_reads_near_the_bound() -> None:
    found = bench("behind", "--megabytes", "4", "--versions", "8")
    patches, skips = found["ways"]
    assert (patches["installs"], patches["legs"]) == (1, 8)
    assert (skips["installs"], skips["legs"]) == (1, 1)
    assert skips["fetched_bytes"] < 1.05 * found["bound_bytes"]
    assert patches["fetched_bytes"] < 1.05 * found["patches_bytes"]
