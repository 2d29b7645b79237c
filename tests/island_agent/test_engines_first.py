"""Engines take a patch from its record; the mirror follows, and holds nobody up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.bulletin.log import BulletinReader
from skerry.inference.accepted import AcceptedVersions, VersionRange
from skerry.island_agent import install, reconcile
from skerry.island_agent.agent import Agent
from skerry.island_agent.checkpoint import Checkpoint
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import MirrorDamaged
from skerry.island_agent.hooks import Hook
from skerry.island_agent.journal import Journal
from skerry.island_agent.state import State
from tests.island_agent.engines import ByteEngine
from tests.island_agent.runs import Run, assert_is, make_run


class MirrorByteEngine(ByteEngine):
    """Needs the mirror for a patch."""

    reads_mirror = True


class Watched:
    """An agent at version 0 of a run, and what its engine served at each step of a patch."""

    def __init__(self, tmp_path: Path, engine: ByteEngine) -> None:
        self.run: Run = make_run(1)
        self.engine = engine
        self.served: dict[str, int | None] = {}
        config = AgentConfig(directory=tmp_path / "island", announce=False, poll_s=0.001)
        reader = BulletinReader(self.run.store)
        self.agent = Agent(config, reader, engines={"a": engine}, hook=self._hook)

    def _hook(self, step: str) -> None:
        self.served[step] = self.engine.version

    async def __aenter__(self) -> Watched:
        await self.agent.open()
        while await self.agent.step():
            pass
        self.run.extend(1)
        self.served.clear()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.agent.close()


def test_an_engine_serves_a_patch_before_the_mirror_is_touched(tmp_path: Path) -> None:
    async def main() -> None:
        async with Watched(tmp_path, ByteEngine()) as at:
            await at.agent.step()
            assert at.served["journal-durable"] == 1
            assert at.served["engines-switched"] == 2
            assert at.engine.installs == [2]
            assert at.engine.loads == 1
            assert_is(at.agent.mirror.directory, at.run.versions[2])

    asyncio.run(main())


def test_an_engine_that_reads_the_mirror_is_switched_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Watched(tmp_path, MirrorByteEngine()) as at:
            await at.agent.step()
            assert at.served["marker-moved"] == 1
            assert at.served["engines-installed"] == 2
            assert at.engine.installs == [2]

    asyncio.run(main())


def test_an_engine_that_drains_does_not_hold_up_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_ENGINES_FIRST_S", 0.01)
    old = AcceptedVersions(ranges=(VersionRange(1, 1),))

    async def main() -> None:
        async with Watched(tmp_path, ByteEngine()) as at:
            async with at.agent.gate.admit(old):
                step = asyncio.create_task(at.agent.step())
                while "marker-moved" not in at.served:
                    await asyncio.sleep(0)
                assert not step.done()
                assert at.engine.version == 1
            await step
            assert at.engine.installs == [2]

    asyncio.run(main())


def test_an_engine_never_goes_back_because_the_mirror_could_not_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Watched(tmp_path, ByteEngine()) as at:
            with monkeypatch.context() as patched:

                def fail(
                    state: State,
                    checkpoint: Checkpoint,
                    journal: Journal,
                    *rest: object,
                    hook: Hook,
                ) -> None:
                    install.undo(state, checkpoint, journal)
                    raise MirrorDamaged("a word differs")

                patched.setattr(install, "redo", fail)
                with pytest.raises(MirrorDamaged):
                    await at.agent.step()
            assert at.engine.version == 2
            assert at.agent.gate.served() == [2]
            assert at.agent.mirror.version == 1
            while await at.agent.step():
                pass
            assert at.engine.loads == 1
            assert at.engine.installs == [2]
            assert at.agent.mirror.version == 2
            assert at.agent.gate.served() == [2]

    asyncio.run(main())
