"""Readers in other processes: what they take for a version is that version, byte for byte."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from skerry.bulletin.stores import LocalStore
from skerry.island_agent.errors import MirrorDamaged
from skerry.island_agent.files import copy_file
from skerry.island_agent.hooks import TENSOR_WRITTEN
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.reading import copy_version, look
from skerry.island_agent.room import free_bytes
from tests.island_agent.crash import follow
from tests.island_agent.disks import formatted_disk
from tests.island_agent.runs import Run, assert_is, make_run

ROOT = Path(__file__).parents[2]


def steady_version(island: Path, run: Run) -> int | None:
    """Check that a reader who looks now sees the version that it is told; say which."""
    found = look(island)
    if found is None:
        return None
    assert_is(island / "mirror", run.versions[found.held.version])
    assert look(island) == found
    return found.held.version


@pytest.mark.parametrize("full", [False, True])
def test_at_no_step_of_a_catch_up_does_a_reader_see_another_version_than_it_is_told(
    tmp_path: Path, full: bool
) -> None:
    run = make_run(store=LocalStore(tmp_path / "store"))
    for seed in range(1, 4 if full else 11):
        run.publish(run.versions[-1].mutated(seed), patch=not full)
    seen: dict[str, set[int | None]] = {}

    def hook(step: str) -> None:
        seen.setdefault(step, set()).add(steady_version(tmp_path / "island", run))

    last = len(run.versions) - 1
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", last, hook=hook, single=True))
    during = ("old-moved", "new-moved") if full else (TENSOR_WRITTEN, "words-written")
    assert all(seen[step] == {None} for step in during)
    assert {*range(last + 1)} <= seen["acknowledged"]
    assert steady_version(tmp_path / "island", run) == last


def test_a_reader_beside_a_catch_up_never_takes_a_mixture_for_a_version(tmp_path: Path) -> None:
    run = make_run(10, store=LocalStore(tmp_path / "store"), words=20_000)
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 0))
    agent = subprocess.Popen(
        [
            sys.executable, "-m", "tests.island_agent.crash",
            str(tmp_path / "store"), str(tmp_path / "island"), "10", "single", "",
        ],
        cwd=ROOT,
    )  # fmt: skip
    took: set[int] = set()
    refused = 0
    while agent.poll() is None:
        before = look(tmp_path / "island")
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "island" / "mirror", copy)
        if before is None or look(tmp_path / "island") != before:
            refused += 1
        else:
            took.add(before.held.version)
            assert_is(copy, run.versions[before.held.version])
        shutil.rmtree(copy)
    assert agent.returncode == 0
    assert took
    assert refused


def test_a_reader_is_told_of_a_marker_that_cannot_be_read(tmp_path: Path) -> None:
    make_run(store=LocalStore(tmp_path / "store"))
    assert look(tmp_path / "island") is None
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 0))
    Mirror.open(tmp_path / "island").close()
    (tmp_path / "island" / "state" / "marker").write_bytes(b"?")
    with pytest.raises(MirrorDamaged, match="marker"):
        look(tmp_path / "island")


# Copies, for readers that map what they read.


def test_a_copy_stays_what_it_is_while_the_mirror_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(1, store=LocalStore(tmp_path / "store"))
    root, copy = tmp_path / "island", tmp_path / "copy"
    assert copy_version(root, copy) is None
    assert not copy.exists()
    asyncio.run(follow(tmp_path / "store", root, 0))
    with caplog.at_level(logging.INFO):
        held = copy_version(root, copy)
    assert held is not None
    assert held.version == 0
    assert re.search(r"mirror copied version=0 .* by=(copy|reflink)$", caplog.messages[-1])
    mapped = np.memmap(copy / "model-00001-of-00003.safetensors", np.uint8, mode="r")
    before = mapped.tobytes()
    asyncio.run(follow(tmp_path / "store", root, 1))
    assert mapped.tobytes() == before
    assert_is(copy, run.versions[0])
    with pytest.raises(FileExistsError):
        copy_version(root, copy)
    assert_is(copy, run.versions[0])


def test_no_copy_is_left_of_a_mirror_that_changed_meanwhile(tmp_path: Path) -> None:
    run = make_run(1, store=LocalStore(tmp_path / "store"))
    taken: list[object] = []

    def hook(step: str) -> None:
        if step in (TENSOR_WRITTEN, "journal-durable", "words-written"):
            taken.append(copy_version(tmp_path / "island", tmp_path / "copy"))
            assert not (tmp_path / "copy").exists()

    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 0))
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", 1, hook=hook))
    assert set(taken) == {None}
    assert_is(tmp_path / "island" / "mirror", run.versions[1])


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_a_file_system_that_shares_blocks_copies_without_room(tmp_path: Path, kind: str) -> None:
    with formatted_disk(tmp_path, kind) as disk:
        (disk / "a").write_bytes(os.urandom(8_000_000))
        os.sync()
        free = free_bytes(disk)
        assert copy_file(disk / "a", disk / "b") == "reflink"
        os.sync()
        assert free - free_bytes(disk) < 1_000_000
        with (disk / "a").open("r+b") as file:
            file.write(b"other")
        assert (disk / "b").read_bytes()[:5] != b"other"
        # Between file systems there is nothing to share.
        assert copy_file(disk / "b", tmp_path / "plain") == "copy"
        assert (tmp_path / "plain").read_bytes() == (disk / "b").read_bytes()
