"""Over an emulated link, and far behind: the benchmarks at toy size, on real servers and agents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skerry.benchmarks.road.link import FAR, LinkSpec, LinkUnavailable, link
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
        "road", "--megabytes", "2", "--versions", "2", "--round-trip-ms", "10",
        "--congestion", "cubic",
    )  # fmt: skip
    *patches, whole = found["ways"]
    assert [way["version"] for way in patches] == [1, 2]
    for way in patches:
        assert 0 < way["nbytes"] < way["wire_bytes"]
        assert 0 < way["arrived_s"] <= way["served_s"]
        assert way["nbytes"] < whole["nbytes"] / 20
    assert whole["nbytes"] > 2_000_000
    assert namespaces() == before


def test_who_is_many_versions_behind_installs_once_and_reads_near_the_bound() -> None:
    found = bench("behind", "--megabytes", "4", "--versions", "8")
    patches, skips = found["ways"]
    assert (patches["installs"], patches["legs"]) == (1, 8)
    assert (skips["installs"], skips["legs"]) == (1, 1)
    assert skips["fetched_bytes"] < 1.05 * found["bound_bytes"]
    assert patches["fetched_bytes"] < 1.05 * found["patches_bytes"]
