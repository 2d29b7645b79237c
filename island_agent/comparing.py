"""`/control/difference`: how two versions differ exactly, worked out while somebody listens.

The answer is a line of JSON at least every BEAT_S: what is done so far, and in the end the
difference or what stopped it.  Whoever leaves ends the work.  There is one at a time, on a thread
that runs when nothing else of the agent wants to.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.island_agent.agent import Agent
from skerry.island_agent.control_access import error, refusal
from skerry.island_agent.errors import who_acts
from skerry.island_agent.exact import ExactDifference, exact_difference
from skerry.island_agent.files import remove
from skerry.island_agent.scrub import give_way
from skerry.island_agent.state import Places

logger = logging.getLogger(__name__)

BEAT_S = 1.0
_NUMBER = re.compile(r"[0-9]{1,18}")


class Comparing:
    """The route, for one agent."""

    def __init__(self, agent: Agent, token: str | None) -> None:
        self._agent = agent
        self._token = token
        self._place = threading.Lock()  # given back by the job's thread, when it has ended

    async def answer(self, request: Request) -> Response:
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        query = request.query_params
        given = sorted(query.multi_items())
        if [name for name, _ in given] != ["new", "old"]:
            return error(400, "RequestInvalid", "expected old and new, each once, and nothing else")
        if not all(_NUMBER.fullmatch(value) for _, value in given):
            return error(400, "RequestInvalid", "old, new: expected the numbers of two versions")
        old, new = int(query["old"]), int(query["new"])
        state = self._agent.reader.state
        for version in (old, new):
            if version not in state.commits:
                newest = None if state.newest is None else state.newest.version
                self._agent.nudge()
                message = f"this agent knows no version {version}, the newest is {newest}"
                return error(404, "VersionUnknown", message)
        if not self._place.acquire(blocking=False):
            answer = error(503, "Busy", "two versions are compared already: one pair at a time")
            answer.headers["Retry-After"] = "5"
            return answer
        job = _Job(self._agent, old, new, self._place)
        job.start()
        return _Lines(job)


@dataclass(slots=True)
class _Job:
    """One comparison, in a thread of its own.  `place` is released when that has ended."""

    agent: Agent
    old: int
    new: int
    place: threading.Lock
    stop: threading.Event = field(default_factory=threading.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    said: tuple[str, int, int] = ("begin", 0, 0)
    found: ExactDifference | None = None
    problem: Exception | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._run, args=(loop,), name="skerry-compare", daemon=True
        )
        thread.start()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield what is to be told until it has ended."""
        while not self.done.is_set():
            if self.agent.state.stopping:
                self.stop.set()
            phase, done, total = self.said
            yield _line({"phase": phase, "done_bytes": done, "total_bytes": total})
            with suppress(TimeoutError):
                await asyncio.wait_for(self.done.wait(), BEAT_S)
        yield _line(self._result())

    def _result(self) -> dict[str, object]:
        if self.found is not None:
            difference = {**asdict(self.found), "share": self.found.share}
            return {"done": True, "run": self.agent.reader.state.run, "difference": difference}
        problem = self.problem
        assert problem is not None
        stopped = {"type": type(problem).__name__, "message": str(problem)[:1000]}
        return {"done": False, "stopped_by": {**stopped, "acts": who_acts(problem)}}

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        give_way()
        try:
            self.found = self._compare()
            logger.info("versions compared old=%d new=%d", self.old, self.new)
        except Exception as problem:  # the boundary of the job: it is told
            logger.info("comparison ended old=%d new=%d error=%r", self.old, self.new, problem)
            self.problem = problem
        finally:
            self.place.release()
            with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
                loop.call_soon_threadsafe(self.done.set)

    def _compare(self) -> ExactDifference:
        # A reader of its own: the agent's is for the mirror's thread.
        reader = BulletinReader(self.agent.reader.store, wait=Patience(limit_s=0.0))
        reader.state = self.agent.reader.state
        root = self.agent.config.root
        _, fetch = self.agent.config.fitted()
        scratch = Places(root).comparing
        try:
            return exact_difference(
                reader, self.old, self.new, scratch, mirror=root, config=fetch,
                progress=self._tell, stop=self.stop,
            )  # fmt: skip
        finally:
            remove(scratch)

    def _tell(self, phase: str, done: int, total: int) -> None:
        self.said = phase, done, total


class _Lines(StreamingResponse):
    """The lines of a job, which ends when they do, however that is."""

    def __init__(self, job: _Job) -> None:
        self._job, self._lines = job, job.lines()
        headers = {"Cache-Control": "no-store"}
        super().__init__(self._lines, media_type="application/x-ndjson", headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._job.stop.set()
            await self._lines.aclose()  # a client that left leaves it where it was


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
