"""Two islands, killed at every step again and again while versions arrive and bits flip."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from skerry.bulletin.stores import LocalStore
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
from tests.island_agent.runs import Run, assert_is, make_run

ROOT = Path(__file__).parents[2]
STEPS = (
    *PATCH_STEPS, *SWAP_STEPS, *REPAIR_STEPS,
    TENSOR_DECODED, TENSOR_WRITTEN, FILE_FETCHED, FULL_VERIFIED, "",
)  # fmt: skip


class Victim:
    """One island and its lives."""

    def __init__(self, tmp_path: Path, name: str, seed: int) -> None:
        self.directory, self.log = tmp_path / name, tmp_path / f"{name}.log"
        self.dice = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.condemned = 0
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "tests.island_agent.soak",
                str(tmp_path / "store"), str(self.directory), str(self.log),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def live(self, plan: dict[str, object]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(plan) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def die(self) -> None:
        """Live until a step that the dice choose, or half a second."""
        step = self.dice.choice(STEPS)
        flips = step in REPAIR_STEPS or self.dice.random() < 0.25
        ended = self.live(
            {
                "step": step,
                "occurrence": self.dice.randint(1, 3) if step in ("", TENSOR_WRITTEN) else 1,
                "delay_s": self.dice.choice((0.0, self.dice.random() * 0.005)),
                "flip": self.dice.randrange(2**31) if flips else None,
                "last": -1,
            }
        )
        assert ended == signal.SIGKILL, f"ended by itself with {ended}, killed at {step!r}"
        self.kills[step] += 1

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kills", "versions"), [(12, 6), pytest.param(200, 50, marks=pytest.mark.soak)]
)
def test_kills_at_every_step_while_versions_arrive_and_bits_flip_end_byte_identical(
    tmp_path: Path, kills: int, versions: int
) -> None:
    began = time.monotonic()
    run = make_run(store=LocalStore(tmp_path / "store"))
    victims = [Victim(tmp_path, name, seed) for seed, name in enumerate(("one", "two"))]
    failed: list[BaseException] = []

    def suffer(victim: Victim) -> None:
        try:
            while victim.kills.total() < kills // 2:
                victim.die()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=suffer, args=(victim,)) for victim in victims]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        done = sum(victim.kills.total() for victim in victims)
        if len(run.versions) <= min(versions, done * versions // kills):
            publish(run)
        threads[0].join(0.01)
    while len(run.versions) <= versions:
        publish(run)
    assert not failed, failed
    last: dict[str, object] = {
        "step": None,
        "occurrence": 0,
        "delay_s": 0,
        "flip": None,
        "last": versions,
    }
    lines: Counter[str] = Counter()
    served: set[int] = set()
    for victim in victims:
        assert victim.live(last) == 0
        assert victim.close() == 0
        mirror = Mirror.open(victim.directory)
        assert (mirror.version, mirror.damage) == (versions, None)
        assert_is(mirror.directory, run.versions[versions])
        mirror.close()
        for line in victim.log.read_text().splitlines():
            kind, *rest = line.split()
            lines[kind if kind != "S" else rest[0]] += 1
            if kind == "T":
                version, label, weights = rest
                # A request that runs on goes on when its engine is taken out to be hashed.
                assert label in (version, "None"), line
                assert weights == run.versions[int(version)].weights, line
                served.add(int(version))
    landed = sum((victim.kills for victim in victims), Counter())
    assert landed.total() == kills
    assert versions in served
    print(
        f"{kills} kills in {time.monotonic() - began:.0f} s while {versions} versions arrived at "
        f"two islands: {lines['T']} tokens of {len(served)} versions, {lines['F']} flipped bits, "
        f"{lines['repair-acknowledged']} repairs, {lines['assembled']} full versions; "
        f"kills by step aimed at: {dict(sorted(landed.items()))}"
    )


def publish(run: Run) -> None:
    """Publish one more version; every seventh comes as a full one alone, every fifth as both."""
    number = len(run.versions)
    new = run.versions[-1].mutated(number, 0.02).with_file("step.txt", str(number).encode())
    run.publish(new, patch=number % 7 != 0, full=number % 7 == 0 or number % 5 == 0)
