"""Real ranks without an engine around them: tokens come when a test permits them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

from skerry.inference.engine import EngineBroken, EngineError, GenerationRequest
from skerry.inference.exchange import Exchange
from skerry.inference.placement.rank import Rank
from skerry.inference.slot import Changes
from skerry.inference.vllm.core import Answer, PauseMode, Piece, Pieces
from tests.inference.placement.models import make_rank


class RanksCore:
    """`skerry.inference.vllm.core.Core` over two ranks of the model of the placement tests.

    `refusals` replaces what a rank answers to a method, once, and the rank does nothing.
    """

    def __init__(self, root: Path) -> None:
        self.alive = True
        self.paused = False
        self.labelled = "default"
        self.lost_labels = 0  # the replies to so many calls are lost; the calls do their work
        self.failing_resumes = 0
        self.failing_forgets = 0
        self.forgets: list[str] = []  # the label at each
        self.modes: list[tuple[PauseMode, bool]] = []
        self.refusals: dict[tuple[int, str], Answer] = {}
        self.salts: list[str] = []
        self.members = [make_rank(root, rank=rank, ranks=2)[1] for rank in range(2)]
        self._permits = 0
        self._changes = Changes()
        self._open: set[str] = set()
        self._aborted: set[str] = set()

    @property
    def open(self) -> int:
        return len(self._open)

    def permit(self, tokens: int) -> None:
        self._permits += tokens
        self._changes.wake()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changes.wait(None)

    async def ranks(self, method: str, *args: object) -> list[Answer]:
        return [self._call(number, method, *args) for number in range(len(self.members))]

    async def beside(self, verb: str, *args: object) -> list[Answer]:
        return await self.ranks(f"skerry_{verb}", *args)

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        self.modes.append((mode, clear_cache))
        if mode == "wait":
            await self.until(lambda: not self.open)
        self.paused = True
        if mode == "abort":
            for request_id in list(self._open):
                await self.abort(request_id)

    async def resume(self) -> None:
        if self.failing_resumes:
            self.failing_resumes -= 1
            raise RuntimeError("no answer")
        self.paused = False
        self._changes.wake()

    async def forget(self) -> None:
        self.forgets.append(self.labelled)
        if self.failing_forgets:
            self.failing_forgets -= 1
            raise RuntimeError("nothing was forgotten")

    async def label(self, text: str) -> None:
        self.labelled = text
        if self.lost_labels:
            self.lost_labels -= 1
            raise RuntimeError("no answer")

    def check(self, request: GenerationRequest) -> None:
        pass

    async def generate(self, request: GenerationRequest, request_id: str, salt: str) -> Pieces:
        self.salts.append(salt)
        self._open.add(request_id)
        self._changes.wake()
        try:
            async for piece in self._make(request, request_id):
                yield piece
        finally:
            self._open.remove(request_id)
            self._changes.wake()

    async def _make(self, request: GenerationRequest, request_id: str) -> Pieces:
        for made in range(1, request.max_tokens + 1):
            await self.until(
                lambda: request_id in self._aborted or (self._permits > 0 and not self.paused)
            )
            if request_id in self._aborted:
                yield Piece(tokens=[], logprobs=[], labels=[], finish="abort")
                return
            self._permits -= 1
            finish = "length" if made == request.max_tokens else None
            yield Piece(tokens=[7], logprobs=[-0.5], labels=[self.labelled], finish=finish)

    async def abort(self, request_id: str) -> None:
        self._aborted.add(request_id)
        self._changes.wake()

    def _call(self, number: int, method: str, *args: object) -> Answer:
        refusal = self.refusals.pop((number, method), None)
        if refusal is not None:
            return refusal
        try:
            return {"ok": True, **(_run(self.members[number], method, *args) or {})}
        except EngineError as error:
            return {"ok": False, "broken": isinstance(error, EngineBroken), "error": str(error)}


def _run(rank: Rank, method: str, *args: object) -> Answer | None:
    """Do what `SkerryWorker` does, which needs vLLM's worker around it."""
    match method, args:
        case "skerry_load", (str() as directory, int() as version):
            rank.load(Path(directory), version)
            return {"reads_mirror": rank.reads_mirror}
        case "skerry_stage", (str() as exchange, str() as name):
            return dataclasses.asdict(rank.stage(Exchange(Path(exchange)).get(name)))
        case "skerry_install", (int() as version,):
            return {"scatter_s": rank.install(version)}
        case "skerry_undo", (int() as version,):
            rank.undo(version)
        case "skerry_held", ():
            return {
                "tensors": {
                    name: (
                        rank.placement.specs[name].words,
                        [(box.start, box.strides, box.shape) for box in boxes],
                    )
                    for name, boxes in rank.held().items()
                }
            }
        case "skerry_compare", (str() as directory,):
            return {"different": rank.compare(Path(directory))}
        case "skerry_mirror_digest", ():
            return {"digest": rank.mirror_digest()}
        case "skerry_settle", ():
            rank.settle()
        case _:
            raise AssertionError(f"{method}{args}")
    return None


async def soon() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)
