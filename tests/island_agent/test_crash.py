"""Case D-1: kill -9 at any moment ends in exactly one published version, named by the marker."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.bulletin.stores import LocalStore
from skerry.island_agent import hooks
from skerry.island_agent.hooks import (
    FILE_FETCHED,
    FULL_VERIFIED,
    PATCH_STEPS,
    REPAIR_STEPS,
    SWAP_STEPS,
    TENSOR_DECODED,
    TENSOR_WRITTEN,
)
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.plan import Target
from tests.island_agent.crash import follow
from tests.island_agent.engines import ByteEngine
from tests.island_agent.islands import island
from tests.island_agent.runs import Run, assert_is, make_run

ROOT = Path(__file__).parents[2]
KILL = int(signal.SIGKILL)


def child(
    tmp_path: Path, target: int, *moment: object, mode: str = "at-once", island: str = "island"
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "tests.island_agent.crash",
            str(tmp_path / "store"), str(tmp_path / island),
            str(target), mode, json.dumps(moment) if moment else "",
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


def finish_or_die(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate()
    assert process.returncode in (0, -KILL), errors.decode()


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


PATCH_MOMENTS = [
    (TENSOR_DECODED, 2, 0),
    *((step, 1, int(i >= 2)) for i, step in enumerate(PATCH_STEPS)),
    (TENSOR_WRITTEN, 1, 1),
    (TENSOR_WRITTEN, 4, 1),
]
FULL_MOMENTS = [
    (FILE_FETCHED, 0),
    (FULL_VERIFIED, 0),
    *((step, int(i >= 2)) for i, step in enumerate(SWAP_STEPS)),
]


def test_every_step_boundary_has_a_kill() -> None:
    named = {value for name, value in vars(hooks).items() if name.isupper()}
    steps = {step for value in named for step in ([value] if isinstance(value, str) else value)}
    killed = {step for step, *_ in [*PATCH_MOMENTS, *FULL_MOMENTS]} | set(REPAIR_STEPS)
    assert steps == killed


@pytest.mark.parametrize(("step", "occurrence", "expected"), PATCH_MOMENTS)
def test_a_kill_at_each_step_of_a_patch_ends_in_one_version(
    tmp_path: Path, run: Run, step: str, occurrence: int, expected: int
) -> None:
    catch_up(tmp_path, 0)
    finish(child(tmp_path, 1, KILL, step, occurrence), -KILL)
    assert held_version(tmp_path, run) == expected
    catch_up(tmp_path, 1)
    assert held_version(tmp_path, run) == 1


@pytest.mark.parametrize(("step", "expected"), FULL_MOMENTS)
def test_a_kill_at_each_step_of_a_full_version_ends_in_one_version(
    tmp_path: Path, run: Run, step: str, expected: int
) -> None:
    catch_up(tmp_path, 0)
    full = run.publish(run.versions[1].mutated(7), patch=False)
    finish(child(tmp_path, full, KILL, step, 1), -KILL)
    assert held_version(tmp_path, run) == (full if expected else 0)
    catch_up(tmp_path, full)
    assert held_version(tmp_path, run) == full


@pytest.mark.parametrize("step", ["objects-spooled", "assembled", "swap-intended", "new-moved"])
def test_a_kill_during_the_first_download_leaves_nothing_or_the_version(
    tmp_path: Path, run: Run, step: str
) -> None:
    finish(child(tmp_path, 1, KILL, step, 1), -KILL)
    assert held_version(tmp_path, run) in (None, 1)
    catch_up(tmp_path, 1)
    assert held_version(tmp_path, run) == 1


@pytest.mark.parametrize("step", [TENSOR_WRITTEN, *PATCH_STEPS])
def test_after_a_kill_an_engine_serves_the_version_that_the_mirror_then_holds(
    tmp_path: Path, run: Run, step: str
) -> None:
    """The engine is another process: it outlives the agent, paused or half written as it may be."""
    catch_up(tmp_path, 0)
    engine = ByteEngine()
    asyncio.run(engine.load(tmp_path / "island" / "mirror", 0))
    engine.paused = True
    finish(child(tmp_path, 1, KILL, step, 1), -KILL)

    async def main() -> None:
        async with island(tmp_path / "island", LocalStore(tmp_path / "store"), engine=engine) as it:
            assert not engine.paused
            held = it.agent.mirror.version
            assert held is not None
            it.agent.aim(Target(version=held))
            await it.settle()
            assert it.served == engine.version == held
            assert await engine.weights_digest() == run.versions[held].weights
            await it.settle(1)
            assert it.served == 1
            assert await engine.weights_digest() == run.versions[1].weights

    asyncio.run(main())


@pytest.mark.parametrize("damaged", ["word", "header", "side file"])
@pytest.mark.parametrize("step", REPAIR_STEPS)
def test_a_kill_at_each_step_of_a_repair_ends_in_the_same_version(
    tmp_path: Path, run: Run, step: str, damaged: str
) -> None:
    catch_up(tmp_path, 1)
    version, mirror = run.versions[1], tmp_path / "island" / "mirror"
    spec = next(spec for spec in version.layout.tensors if spec.name == "norm")
    name, at = {
        "word": (spec.file, spec.offset + 17),
        "header": (spec.file, 20),
        "side file": ("extra/new.txt", 1),
    }[damaged]
    data = bytearray(version.files[name])
    data[at] ^= 1
    (mirror / name).write_bytes(data)
    finish(child(tmp_path, 1, KILL, step, 1, mode="scrub"), -KILL)
    if step == "repair-fetched":  # nothing was recorded: the next scrub begins it again
        assert (mirror / name).read_bytes() == data
        finish(child(tmp_path, 1, mode="scrub"), 0)
    assert held_version(tmp_path, run) == 1
    assert not (tmp_path / "island" / "journal" / "repair").exists()


# Case I-2, without an engine: `test_service` has one that is cut off between pause and resume.


@pytest.mark.parametrize(
    ("step", "occurrence", "expected"),
    [
        # The loop hears of the signal while a thread stages on: either version may be the last.
        ("objects-spooled", 1, {0, 1}),
        (TENSOR_DECODED, 2, {0, 1}),
        ("journal-durable", 1, {1}),
        (TENSOR_WRITTEN, 2, {1}),
        ("words-written", 1, {1}),
        ("marker-moved", 1, {1}),
    ],
)
def test_a_stop_in_the_middle_of_an_install_ends_in_order_with_one_version(
    tmp_path: Path, run: Run, step: str, occurrence: int, expected: set[int]
) -> None:
    catch_up(tmp_path, 0)
    finish(child(tmp_path, 1, int(signal.SIGTERM), step, occurrence, mode="run"), 0)
    assert held_version(tmp_path, run) in expected


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        ("single", 5),
        ("at-once", 3),
        pytest.param("single", 20, marks=pytest.mark.soak),
        pytest.param("at-once", 10, marks=pytest.mark.soak),
    ],
)
def test_a_catch_up_that_was_killed_at_a_random_moment_ends_byte_identical(
    tmp_path: Path, mode: str, kills: int
) -> None:
    """Every kill lands inside the work: the child dies of it, between two steps of ten versions.

    Each round begins at version 0, and every other one is killed a second time while it recovers.
    """
    run = make_run(10, store=LocalStore(tmp_path / "store"), words=30_000)
    steps: list[str] = []
    asyncio.run(follow(tmp_path / "store", tmp_path / "start", 0))
    shutil.copytree(tmp_path / "start", tmp_path / "island")
    asyncio.run(
        follow(
            tmp_path / "store", tmp_path / "island", 10, hook=steps.append, single=mode == "single"
        )
    )
    dice = random.Random(kills)
    landed: list[tuple[int, int | None]] = []
    while len(landed) < kills:
        shutil.rmtree(tmp_path / "island")
        shutil.copytree(tmp_path / "start", tmp_path / "island")
        moment = (KILL, "", dice.randint(1, len(steps)), dice.choice((0.0, dice.random() * 0.005)))
        process = child(tmp_path, 10, *moment, mode=mode)
        _, errors = process.communicate()
        if process.returncode == 0:
            continue  # a late delay outlasted the work
        assert process.returncode == -KILL, errors.decode()
        if len(landed) % 2:
            finish_or_die(child(tmp_path, 10, KILL, "", dice.randint(1, 6), mode=mode))
        found = held_version(tmp_path, run)
        assert found is not None
        assert mode == "single" or found in (0, 10)
        landed.append((moment[2], found))
        catch_up(tmp_path, 10)
        assert held_version(tmp_path, run) == 10
    if mode == "single":
        assert len({found for _, found in landed}) > 2, landed
    print(f"{kills} kills in {len(steps)} steps landed at (step, version held): {landed}")
