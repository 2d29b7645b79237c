"""The requests that run on one engine, and what becomes of them when its version changes.

A request that has tokens goes on, or is ended, as the pause's policy says.  One that has none yet
starts over: it is a new request to the new version, and must see no cached prefix of the old one,
whose salt it was sent with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from skerry.inference.engine import EngineError, GenerationRequest
from skerry.inference.vllm.core import Core, Pieces, new_request_id


@dataclass(slots=True, eq=False)
class _Stream:
    request_id: str
    made: bool = False
    outdated: bool = False


class Streams:
    """All that happens here happens on the server's event loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._running: set[_Stream] = set()

    async def run(self, request: GenerationRequest, salt: Callable[[], str]) -> Pieces:
        """Yield the pieces of one request.  Raises EngineError if it is ended early."""
        while True:
            stream = _Stream(new_request_id())
            self._running.add(stream)
            try:
                pieces = self._core.generate(request, stream.request_id, salt())
                async with aclosing(pieces) as made:
                    async for piece in made:
                        if stream.outdated:
                            break
                        if piece.finish not in (None, "stop", "length"):
                            raise EngineError(f"the engine ended the request: {piece.finish}")
                        stream.made = stream.made or bool(piece.tokens)
                        yield piece
            finally:
                self._running.discard(stream)
            if not stream.outdated:
                return

    async def restart(self) -> None:
        """Have every request that has no token yet start over."""
        outdated = [stream for stream in self._running if not stream.made]
        for stream in outdated:
            stream.outdated = True
        for stream in outdated:
            await self._core.abort(stream.request_id)
