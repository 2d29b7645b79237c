"""`skerry gc` and `skerry compact`: what they say, and what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.bulletin.stores import open_store
from tests.cli.test_cli import answer, refusal, skerry
from tests.publisher.samples import Sample, edit_weights, make, read_tree


@pytest.fixture
def samples() -> list[Sample]:
    found = [make(3, sharded=False)]
    for number in range(8):
        found.append(edit_weights(found[-1], number, 0.02))
    return found


@pytest.fixture
def run(tmp_path: Path, samples: list[Sample]) -> Path:
    bulletin = tmp_path / "bulletin"
    for number, sample in enumerate(samples):
        directory = sample.write(tmp_path / f"v{number}")
        answer("publish", bulletin, directory, "--state", tmp_path / "state")
    return bulletin


def test_compact_then_gc_leaves_every_kept_version_whole(
    run: Path, tmp_path: Path, samples: list[Sample]
) -> None:
    missing = answer("compact", run, "--dry-run")["missing"]
    assert missing == [[0, 2], [0, 4], [0, 8], [2, 4], [4, 6], [4, 8], [6, 8]]
    first = answer("compact", run, "--max", 1)["made"]
    assert [(made["base"], made["version"]) for made in first] == [(0, 2)]
    made = answer("compact", run, "--state", tmp_path / "compact")["made"]
    assert all(each["nbytes"] < each["before_bytes"] for each in made)
    assert "saves" not in skerry("compact", run).stdout

    rules = ("--keep-last", 2, "--keep-every", 4, "--pin", 3)
    dry = answer("gc", run, *rules, "--dry-run")
    assert (dry["dry_run"], dry["kept"]) == (True, [0, 3, 4, 7, 8])
    assert dry["retired"]["versions"] == [1, 2, 5, 6]
    assert dry["retired"]["bytes"] > 0
    assert answer("log", run) == answer("log", run)  # nothing was written
    done = answer("gc", run, *rules, "--grace", "0s")
    assert done["retired"] == {**dry["retired"], "grace_s": 0}
    assert done["deleted"]["bytes"] >= done["retired"]["bytes"]
    assert done["waiting"] == 0
    for version in (0, 3, 4, 7, 8):
        target = tmp_path / f"pulled-{version}"
        answer("pull", run, target, "--version", version)
        assert read_tree(target) == samples[version].files()
    assert "version 1 is retired" in refusal(1, "pull", run, tmp_path / "no", "--version", 1)
    assert answer("verify", run, "--deep")["differences"] == []


def test_what_is_retired_waits_for_its_grace_and_for_the_next_gc(run: Path) -> None:
    before = len(list(open_store(str(run)).list_after("packs/")))
    text = skerry("gc", run, "--keep-last", 1, "--grace", "1h").stdout
    assert "gone in 3600 s at the earliest" in text
    assert "0 objects" in text
    assert len(list(open_store(str(run)).list_after("packs/"))) == before
    again = answer("gc", run, "--keep-last", 1, "--dry-run")
    assert again["retired"] == {"versions": [], "objects": 0, "bytes": 0, "grace_s": 3600}


def test_gc_can_wait_for_the_grace_itself(run: Path) -> None:
    answer("compact", run)
    done = answer("gc", run, "--keep-last", 1, "--grace", "1s", "--wait")
    assert done["deleted"]["objects"] >= done["retired"]["objects"] > 0


def test_nothing_young_is_retired(run: Path) -> None:
    young = answer("gc", run, "--keep-last", 1, "--older-than", "7d", "--dry-run")
    assert young["retired"]["versions"] == []
    old = answer("gc", run, "--keep-last", 1, "--older-than", "0s", "--dry-run")
    assert old["retired"]["versions"] == list(range(8))


def test_what_cannot_be_kept_or_understood_is_refused(run: Path, tmp_path: Path) -> None:
    assert "version 99" in refusal(1, "gc", run, "--pin", 99, "--dry-run")
    assert skerry("gc", run, "--grace", "1 hour").exit_code == 2
    assert skerry("gc", run, "--keep-last", 0).exit_code == 2
    assert "found no log" in refusal(1, "gc", tmp_path / "nothing")
    assert "found no log" in refusal(1, "compact", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
