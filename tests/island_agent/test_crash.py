"""Case D-1: kill -9 at any moment ends in exactly one published version, named by the marker."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.bulletin.stores import LocalStore
from skerry.island_agent.hooks import PATCH_STEPS, SWAP_STEPS, TENSOR_DECODED, TENSOR_WRITTEN
from skerry.island_agent.mirror import Mirror
from tests.island_agent.crash import follow
from tests.island_agent.runs import Run, assert_is, make_run

ROOT = Path(__file__).parents[2]


def child(
    tmp_path: Path, target: int, step: str = "never", occurrence: int = 1, mode: str = "at-once"
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "tests.island_agent.crash",
            str(tmp_path / "store"), str(tmp_path / "island"),
            str(target), step, str(occurrence), mode,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def catch_up(tmp_path: Path, target: int) -> None:
    asyncio.run(follow(tmp_path / "store", tmp_path / "island", target))


def finish(process: subprocess.Popen[bytes], expected: int) -> None:
    _, errors = process.communicate()
    assert process.returncode == expected, errors.decode()


def held_version(tmp_path: Path, run: Run) -> int | None:
    """Reopen the mirror after a crash; it must be, byte for byte, what its marker says."""
    mirror = Mirror.open(tmp_path / "island")
    try:
        assert mirror.damage is None
        if mirror.held is None:
            return None
        assert_is(mirror.directory, run.versions[mirror.held.version])
        assert mirror.held.weights == run.versions[mirror.held.version].weights
        assert not mirror.places.install_record.exists()
        assert not mirror.places.outgoing.exists()
        return mirror.held.version
    finally:
        mirror.close()


@pytest.fixture(name="run")
def published(tmp_path: Path) -> Run:
    run = make_run(store=LocalStore(tmp_path / "store"))
    changed = run.versions[0].mutated(1, 0.05)
    changed = changed.with_file("config.json", b'{"model_type": "other"}')
    changed = changed.with_file("tokenizer/vocab.txt", None).with_file("extra/new.txt", b"new")
    header = changed.files["model-00003-of-00003.safetensors"].replace(b"00000000", b"00000001")
    run.publish(changed.with_file("model-00003-of-00003.safetensors", header))
    return run


@pytest.mark.parametrize(
    ("step", "occurrence", "expected"),
    [
        (TENSOR_DECODED, 2, 0),
        *((step, 1, int(i >= 2)) for i, step in enumerate(PATCH_STEPS)),
        (TENSOR_WRITTEN, 1, 1),
        (TENSOR_WRITTEN, 4, 1),
    ],
)
def test_a_kill_at_each_step_of_a_patch_ends_in_one_version(
    tmp_path: Path, run: Run, step: str, occurrence: int, expected: int
) -> None:
    catch_up(tmp_path, 0)
    finish(child(tmp_path, 1, step, occurrence), -signal.SIGKILL)
    assert held_version(tmp_path, run) == expected
    catch_up(tmp_path, 1)
    assert held_version(tmp_path, run) == 1


@pytest.mark.parametrize(
    ("step", "expected"),
    [("file-fetched", 0), *((step, int(i >= 2)) for i, step in enumerate(SWAP_STEPS))],
)
def test_a_kill_at_each_step_of_a_full_version_ends_in_one_version(
    tmp_path: Path, run: Run, step: str, expected: int
) -> None:
    catch_up(tmp_path, 0)
    full = run.publish(run.versions[1].mutated(7), patch=False)
    finish(child(tmp_path, full, step), -signal.SIGKILL)
    assert held_version(tmp_path, run) == (full if expected else 0)
    catch_up(tmp_path, full)
    assert held_version(tmp_path, run) == full


@pytest.mark.parametrize("step", ["objects-spooled", "assembled", "swap-intended", "new-moved"])
def test_a_kill_during_the_first_download_leaves_nothing_or_the_version(
    tmp_path: Path, run: Run, step: str
) -> None:
    finish(child(tmp_path, 1, step), -signal.SIGKILL)
    assert held_version(tmp_path, run) in (None, 1)
    catch_up(tmp_path, 1)
    assert held_version(tmp_path, run) == 1


@pytest.mark.parametrize("mode", ["single", "at-once"])
def test_kills_at_random_moments_of_a_catch_up_never_expose_a_mixture(
    tmp_path: Path, mode: str
) -> None:
    run = make_run(10, store=LocalStore(tmp_path / "store"), words=100_000)
    catch_up(tmp_path, 0)
    dice = random.Random(0)
    at = 0
    for _ in range(5):
        process = child(tmp_path, 10, mode=mode)
        assert process.stdout is not None
        process.stdout.readline()  # the run is open and work begins
        for _ in range(dice.randrange(3) if mode == "single" else 0):
            process.stdout.readline()
        try:
            process.wait(timeout=dice.random() * 0.2)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        found = held_version(tmp_path, run)
        assert found is not None
        assert found >= at
        assert mode == "single" or found in (0, 10)
        at = found
    catch_up(tmp_path, 10)
    assert held_version(tmp_path, run) == 10
