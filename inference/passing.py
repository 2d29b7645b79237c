"""The HTTP face of routes that are passed on to engines: admitted like all others, read by nobody.

Law: an answer with status 200 was made by the one version that its headers name, all of it; one
that does not come whole is not ended as if it had.  What it says itself of its versions the engine
has put there, which counts the tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from fastapi import FastAPI, Request, Response

from skerry.inference.config import ServerConfig
from skerry.inference.constraint import (
    END_HEADER,
    START_HEADER,
    VERSIONS_HEADER,
    WAIT_HEADER,
    parse_request,
)
from skerry.inference.engine import Engine, PassingEngine
from skerry.inference.gate import AdmissionGate
from skerry.inference.metrics import Metrics, RequestOutcome
from skerry.inference.opaque import HEADERS, read_passed
from skerry.inference.passage import Passage
from skerry.inference.transport import EventStream, left_before, read_body

Refuse = Callable[[Exception], Response]


def passing_engines(engines: Mapping[str, Engine]) -> dict[str, dict[str, PassingEngine]]:
    """Return, for each route that some engine passes on, the engines that do."""
    found: dict[str, dict[str, PassingEngine]] = {}
    for name, engine in engines.items():
        for route in getattr(engine, "routes", ()):
            found.setdefault(route, {})[name] = cast("PassingEngine", engine)
    return found


class Passing:
    """The handlers of one application; `refuse` is how it answers errors, and counts them."""

    def __init__(
        self, gate: AdmissionGate, config: ServerConfig, metrics: Metrics, refuse: Refuse
    ) -> None:
        self._gate = gate
        self._config = config
        self._metrics = metrics
        self._refuse = refuse

    def add(self, app: FastAPI, engines: Mapping[str, Engine]) -> None:
        """Add the routes that `engines` have, behind those of the application."""
        for route, able in passing_engines(engines).items():
            app.add_api_route(route, self._handler(route, able), methods=["POST"])

    def _handler(
        self, route: str, engines: Mapping[str, PassingEngine]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            passage: Passage | None = None
            handed_over = False
            try:
                passage = await self._passage(request, route, engines)
                passage.start()
                if await left_before(request, passage.begun()):
                    self._metrics.ended("disconnected")
                    return Response(status_code=499)
                answer = self._answer(passage)
                handed_over = True
                return answer
            # The boundary of one request: its failure must not be that of the others.
            except Exception as error:
                return self._refuse(error)
            finally:
                if passage is not None and not handed_over:
                    await passage.close()

        return handle

    async def _passage(
        self, request: Request, route: str, engines: Mapping[str, PassingEngine]
    ) -> Passage:
        config = self._config
        body = read_passed(await read_body(request, config.max_passed_body_bytes))
        requested = parse_request(
            versions=request.headers.getlist(VERSIONS_HEADER),
            wait=request.headers.getlist(WAIT_HEADER),
            body=body.constraints,
            max_wait_s=config.max_wait_s,
        )
        return Passage(
            gate=self._gate,
            engines=engines,
            route=route,
            body=body.fields,
            headers={name: request.headers[name] for name in HEADERS if name in request.headers},
            accepted=requested.constraint.resolve(self._gate.known.newest),
            wait_s=config.default_wait_s if requested.wait_s is None else requested.wait_s,
            config=config,
            on_admitted=self._metrics.admitted,
        )

    def _answer(self, passage: Passage) -> Response:
        good = passage.status == 200
        version = str(passage.version)

        async def ended(whole: bool) -> None:
            await passage.close()
            outcome: RequestOutcome = "completed" if good else "invalid"
            self._metrics.ended(outcome if whole else "disconnected")

        return EventStream(
            passage.pieces(),
            headers={START_HEADER: version, END_HEADER: version} if good else {},
            on_end=ended,
            status=passage.status,
            content_type=passage.content_type,
        )
