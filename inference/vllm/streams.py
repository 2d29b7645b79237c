"""The requests that run on one engine, and what becomes of them when its version changes.

A request that has tokens goes on, or is ended, as the pause's policy says.  One that has none yet
starts over: it is a new request to the new version, and must see no cached prefix of the old one,
whose salt it was sent with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
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
        self._ending = False

    async def run(self, request: GenerationRequest, salt: Callable[[], str]) -> Pieces:
        """Yield the pieces of one request.  Raises EngineError if it is ended early."""
        while True:
            stream = _Stream(new_request_id(), outdated=self._ending)
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

    @contextmanager
    def ending(self) -> Iterator[None]:
        """While the body runs the engine ends its requests; who has no token yet starts over."""
        self._outdate()
        self._ending = True
        try:
            yield
        finally:
            self._ending = False

    async def restart(self) -> None:
        """Have every request that has no token yet start over."""
        for stream in self._outdate():
            await self._core.abort(stream.request_id)

    def _outdate(self) -> list[_Stream]:
        outdated = [stream for stream in self._running if not stream.made]
        for stream in outdated:
            stream.outdated = True
        return outdated
