"""All ranks of one engine as one: stage, pause, install, resume, label.

Laws: all ranks change, or none of them; the label moves after all have; whatever fails, and whoever
goes away, the engine runs again, on one version or on none that has a name.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GenerationRequest,
    InstallFailed,
)
from skerry.inference.exchange import Exchange
from skerry.inference.placement.coverage import missing_of
from skerry.inference.vllm import wire
from skerry.inference.vllm.core import Answer, Core, EngineGone, Pieces
from skerry.inference.vllm.pause import Pause, Policy
from skerry.inference.vllm.streams import Streams

logger = logging.getLogger(__name__)

_NAMELESS = "unknown"  # the label of weights of which nothing is known


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontState:
    """What the front knows at once, without asking a rank.

    `serial` grows with every change in one `instance`: answers may overtake each other.  `install`
    names how the weights came to be what they are; it is never the same again, nor anywhere else.
    `reads_mirror` says that an install needs the mirror at the new version, or its read-back does.
    """

    instance: str
    serial: int
    version: int | None
    install: str
    paused: bool
    problem: str | None
    reads_mirror: bool


class Front:
    """One engine.  Control calls run one at a time; tokens flow beside them."""

    def __init__(self, core: Core, exchange: Exchange) -> None:
        self._core = core
        self._exchange = exchange
        self._instance = secrets.token_hex(8)
        self._version: int | None = None
        self._problem: str | None = "no version is loaded"
        self._serial = 0
        self._install = ""
        self._base: int | None = None  # what the last install replaced, as long as that can go back
        self._namespace = ""
        self._ranks = 0
        self._reads_mirror = True
        self._directory: Path | None = None
        self._control = asyncio.Lock()
        self._streams = Streams(core)
        self._pause = Pause(core, self._streams, self._control)

    def state(self) -> FrontState:
        if not self._core.alive:
            self._lose("the engine is dead: restart it")
        return FrontState(
            instance=self._instance,
            serial=self._serial,
            version=self._version,
            install=self._install,
            paused=self._pause.holds,
            problem=self._problem,
            reads_mirror=self._reads_mirror,
        )

    async def load(self, directory: Path, version: int, namespace: str) -> None:
        """Bring all ranks to a checkpoint directory, and label it.  Raises EngineBroken.

        Running requests end; those that have no token yet are run on the new version.
        """
        async with self._control:
            self._lose(f"version {version} is being loaded")
            self._base = None
            self._namespace = namespace
            try:
                await self._core.label(_NAMELESS)
                await self._pause.begin_load()
                answers = await self._core.ranks("skerry_load", str(directory), version)
                self._ranks, self._directory = len(answers), directory
                _raise(answers, EngineBroken)
                self._reads_mirror = len(answers) > 1 or any(a["reads_mirror"] for a in answers)
                if len(answers) > 1:
                    await self._check_coverage()
                await self._core.label(str(version))
                await self._named(version)
            except (EngineGone, EngineBroken) as error:
                self._lose(str(error))
                raise EngineBroken(str(error)) from error
            finally:
                await self._pause.end()

    async def stage(self, name: str) -> list[Answer]:
        """Have all ranks locate a record, while they make tokens.  Raises InstallFailed."""
        async with self._control:
            try:
                answers = await self._core.beside("stage", str(self._exchange.root), name)
            except EngineGone as error:
                self._lose(str(error))
                raise EngineBroken(str(error)) from error
            _raise(answers, InstallFailed)
            return answers

    async def pause(self, policy: Policy, lease_s: float) -> None:
        """Stop making tokens.  After `lease_s` in which nobody resumes the engine does so itself.

        The lease begins when requests have drained; resumed before that, this raises EngineError.
        """
        async with self._control:
            await self._pause.begin(policy, lease_s)

    async def install(self, version: int) -> float:
        """Write what is staged in all ranks; return the longest time that one took, in seconds.

        Raises InstallFailed when all of them have the old bits, EngineBroken otherwise.
        """
        async with self._control:
            if not self._pause.holds:
                raise InstallFailed("weights are only written between pause and resume")
            try:
                answers = await self._core.ranks("skerry_install", version)
                if not all(a["ok"] for a in answers):
                    await self._undo(version, answers)
                try:
                    await self._core.forget()
                    await self._core.label(str(version))
                except Exception as error:  # an engine that cannot be labelled is not installed
                    await self._undo(version, [{"ok": False, "error": f"label: {error!r}"}])
                self._base = self._version
                await self._named(version)
            except EngineGone as error:
                await self._unname(str(error))
                raise EngineBroken(str(error)) from error
            return max(float(a["scatter_s"]) for a in answers)

    async def undo(self, version: int) -> None:
        """Take the install of `version` back in all ranks, as long as nobody has resumed.

        Raises InstallFailed if it is too late, EngineBroken if a rank does not go back.
        """
        async with self._control:
            base, self._base = self._base, None
            if base is None or self._version != version or not self._pause.holds:
                raise InstallFailed(f"version {version} cannot be undone any more")
            try:
                stuck = await self._go_back(version, base, [])
            except Exception as error:  # nobody knows what they have
                stuck = [str(error)]
            if stuck:  # some ranks may have the old weights, others the new ones
                await self._unname(f"version {version} not undone: {'; '.join(stuck)}")
                raise EngineBroken(self._problem)
            await self._named(base)

    async def resume(self) -> None:
        """Make tokens again.  Idempotent."""
        self._pause.call_off()
        async with self._control:
            self._base = None
            await self._pause.end()
            with suppress(EngineGone):
                await self._core.ranks("skerry_settle")

    async def read_back(self) -> Answer:
        """Hash the weights through the map.

        No rank of several has them whole: then each compares what it has with the mirror, bit by
        bit, and the mirror is hashed.  Raises EngineBroken for ranks that hold anything else.
        """
        async with self._control:
            if self._ranks == 1:
                answers = await self._core.beside("read_back")
                _raise(answers, EngineBroken)
                return answers[0]
            answers = await self._core.beside("compare", str(self._directory))
            _raise(answers, EngineBroken)
            for rank, answer in enumerate(answers):
                for name, why in answer["different"].items():
                    raise EngineBroken(f"rank {rank}: {name}: {why}")
            answers = await self._core.beside("mirror_digest")
            _raise(answers, EngineBroken)
            return {"digest": answers[0]["digest"], "from_mirror": ()}

    async def compare(self, directory: Path) -> list[Answer]:
        """Say of each rank which parameters differ from a checkpoint's bits."""
        async with self._control:
            answers = await self._core.beside("compare", str(directory))
            _raise(answers, EngineBroken)
            return answers

    def generate(self, request: GenerationRequest) -> Pieces:
        """Yield tokens with their labels.  Raises RequestUnsupported or EngineError."""
        if self._version is None:
            raise EngineBroken(self._problem or "no version")
        self._core.check(request)
        return self._streams.run(request, self._salt)

    def _salt(self) -> str:
        return wire.salt(self._namespace, self._version, self._install)

    async def _named(self, version: int) -> None:
        self._install = secrets.token_hex(8)
        self._set(version, None)
        try:
            await self._streams.restart()
        except Exception as error:  # they are outdated all the same, and notice at their next piece
            logger.warning("requests without a token were not ended: %r", error)

    async def _check_coverage(self) -> None:
        """Raise EngineBroken if a part of a tensor is in no rank, while another part is."""
        answers = await self._core.ranks("skerry_held")
        _raise(answers, EngineBroken)
        for name, (missing, words) in missing_of([a["tensors"] for a in answers]).items():
            if missing < words:
                raise EngineBroken(f"{name}: {missing} words are in no rank")
            logger.warning("nothing in any rank reads %s", name)

    async def _undo(self, version: int, answers: Sequence[Answer]) -> None:
        """Put every rank back, and raise what that makes of the install."""
        why = "; ".join(f"rank {i}: {a['error']}" for i, a in enumerate(answers) if not a["ok"])
        base = self._version
        broken = [a["error"] for a in answers if not a["ok"] and a.get("broken")]
        stuck = await self._go_back(version, base, broken)
        if base is None or stuck:
            await self._unname(f"version {version}: {why}; then: {'; '.join(stuck)}")
            raise EngineBroken(self._problem)
        raise InstallFailed(f"version {version}: {why}")

    async def _go_back(self, version: int, base: int | None, stuck: Sequence[str]) -> Sequence[str]:
        """Have every rank undo `version`, and label tokens `base` again.

        Returns what hinders that, `stuck` first.  Raises EngineGone.
        """
        undone = await self._core.ranks("skerry_undo", version)
        stuck = [*stuck, *(a["error"] for a in undone if not a["ok"])]  # has what others have not
        if base is not None and not stuck:
            try:  # the label may have been taken although nobody said so
                await self._core.label(str(base))
            except Exception as error:  # then nobody knows what tokens will be labelled with
                return [f"label: {error!r}"]
        return stuck

    async def _unname(self, problem: str) -> None:
        """Have no token bear the name of a version any more."""
        self._lose(problem)
        with suppress(Exception):
            await self._core.label(_NAMELESS)

    def _lose(self, problem: str) -> None:
        self._set(None, problem)

    def _set(self, version: int | None, problem: str | None) -> None:
        if (version, problem) != (self._version, self._problem):
            self._serial += 1
        self._version, self._problem = version, problem


def _raise(answers: Sequence[Answer], kind: type[EngineError]) -> None:
    """Raise `kind`, or EngineBroken, if a rank refused."""
    for rank, answer in enumerate(answers):
        if not answer["ok"]:
            broken = bool(answer.get("broken"))
            raise (EngineBroken if broken else kind)(f"rank {rank}: {answer['error']}")
