"""The HTTP face of an island: completions by version, health, readiness, status, metrics.

The gate decides, `Generation` makes the tokens; here is only what it looks like on the wire.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.exceptions import HTTPException

from skerry.inference.answers import streamed_answer, whole_answer
from skerry.inference.config import ServerConfig
from skerry.inference.constraint import VERSIONS_HEADER, WAIT_HEADER, parse_request
from skerry.inference.engine import Engine
from skerry.inference.errors import (
    EngineUnavailable,
    RequestInvalid,
    RolloutError,
    WeightVersionGone,
    WeightVersionNotReady,
)
from skerry.inference.gate import AdmissionGate
from skerry.inference.generation import Generation
from skerry.inference.messages import error_body, parse_completion
from skerry.inference.metrics import Metrics, RequestOutcome
from skerry.inference.passing import Passing
from skerry.inference.transport import left_before, read_body

logger = logging.getLogger(__name__)

_CLIENT_LEFT = 499  # nobody reads it; access logs show it


def create_app(
    gate: AdmissionGate,
    engines: Mapping[str, Engine],
    status: Callable[[], Mapping[str, object]] = dict,
    *,
    config: ServerConfig | None = None,
    registry: CollectorRegistry | None = None,
    ready: Callable[[], bool] | None = None,
) -> FastAPI:
    """Build the application.

    `status` adds what the agent knows to `/status`; it must not block.  `registry` is what
    `/metrics` shows, with the server's own added.  `ready` decides `/ready`, which without it tells
    whether some version is served.  Raises ValueError if gate and server do not know the same
    engines.
    """
    if set(engines) != set(gate.view()):
        raise ValueError(f"expected engines {sorted(gate.view())}, found {sorted(engines)}")
    service = _Service(gate, engines, status, config or ServerConfig(), registry, ready)
    app = FastAPI(title="skerry island", openapi_url=None)
    app.add_api_route("/v1/completions", service.completions, methods=["POST"])
    Passing(gate, service.config, service.counters, service.refused).add(app, engines)
    app.add_api_route("/v1/models", service.models, methods=["GET"])
    app.add_api_route("/health", service.health, methods=["GET"])
    app.add_api_route("/ready", service.ready, methods=["GET"])
    app.add_api_route("/status", service.status, methods=["GET"])
    app.add_api_route("/metrics", service.metrics, methods=["GET"])
    app.add_exception_handler(HTTPException, _not_routed)
    return app


class _Service:
    """The handlers of one application."""

    def __init__(
        self,
        gate: AdmissionGate,
        engines: Mapping[str, Engine],
        status: Callable[[], Mapping[str, object]],
        config: ServerConfig,
        registry: CollectorRegistry | None,
        ready: Callable[[], bool] | None,
    ) -> None:
        self._gate = gate
        self._engines = engines
        self._status = status
        self.config = config
        self._ready = ready or self._serves
        self.counters = Metrics(gate, registry)

    async def health(self) -> Response:
        """Tell that the process is alive; it says nothing about versions."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        """Tell whether the island does its work now."""
        ready = self._ready()
        served = [str(version) for version in self._gate.served()]
        return JSONResponse({"ready": ready, "served": served}, status_code=200 if ready else 503)

    async def status(self) -> Response:
        known = self._gate.known
        return JSONResponse(
            {
                "engines": {name: asdict(view) for name, view in self._gate.view().items()},
                "newest": known.newest,
                "oldest": known.oldest,
                "abandoned": sorted(known.abandoned),
                "waiting": self._gate.waiting,
                "agent": dict(self._status()),
            }
        )

    async def metrics(self) -> Response:
        return Response(self.counters.text(), media_type=CONTENT_TYPE_LATEST)

    async def models(self) -> Response:
        served = [str(version) for version in self._gate.served()]
        model = {"id": self.config.model, "object": "model", "owned_by": "skerry"}
        return JSONResponse({"object": "list", "data": [{**model, "weight_versions": served}]})

    async def completions(self, request: Request) -> Response:
        generation: Generation | None = None
        handed_over = False
        try:
            generation = await self._generation(request)
            if generation.streams:
                if await left_before(request, generation.first()):
                    return self._left(generation)
                handed_over = True
                return self._stream(generation)
            if await left_before(request, generation.done()):
                return self._left(generation)
            return self._whole(generation)
        # The boundary of one request: its failure must not be that of the others.
        except Exception as error:
            return self.refused(error)
        finally:
            if generation is not None and not handed_over:
                await generation.close()

    def _serves(self) -> bool:
        return bool(self._gate.served())

    async def _generation(self, request: Request) -> Generation:
        """Read and check the whole request, then start it."""
        config = self.config
        body = parse_completion(await read_body(request, config.max_body_bytes), config)
        requested = parse_request(
            versions=request.headers.getlist(VERSIONS_HEADER),
            wait=request.headers.getlist(WAIT_HEADER),
            body=body.constraints,
            max_wait_s=config.max_wait_s,
        )
        generation = Generation(
            gate=self._gate,
            engines=self._engines,
            body=body,
            accepted=requested.constraint.resolve(self._gate.known.newest),
            wait_s=config.default_wait_s if requested.wait_s is None else requested.wait_s,
            config=config,
            on_admitted=self.counters.admitted,
        )
        generation.start()
        return generation

    def _whole(self, generation: Generation) -> Response:
        self.counters.ended(_ending(generation), generation.output_tokens)
        return whole_answer(generation, self.config.model)

    def _stream(self, generation: Generation) -> Response:
        async def ended(whole: bool) -> None:
            await generation.close()
            outcome = _ending(generation) if whole else "disconnected"
            self.counters.ended(outcome, generation.output_tokens)

        return streamed_answer(generation, self.config.model, ended)

    def _left(self, generation: Generation) -> Response:
        self.counters.ended("disconnected", generation.output_tokens)
        return Response(status_code=_CLIENT_LEFT)

    def refused(self, error: Exception) -> Response:
        """Count and answer what went wrong with a request."""
        if isinstance(error, RolloutError):
            self.counters.ended(_outcome(error))
            return self._refusal(error)
        logger.error("a request failed", exc_info=error)
        self.counters.ended("failed")
        return JSONResponse(error_body(RolloutError("the request failed")), status_code=500)

    def _refusal(self, error: RolloutError) -> Response:
        headers: dict[str, str] = {}
        if isinstance(error, WeightVersionNotReady | EngineUnavailable):
            headers["Retry-After"] = str(math.ceil(self.config.retry_after_s))
        return JSONResponse(error_body(error), status_code=error.status, headers=headers)


def _outcome(error: RolloutError) -> RequestOutcome:
    if isinstance(error, WeightVersionNotReady):
        return "not_ready"
    if isinstance(error, WeightVersionGone):
        return "gone"
    return "unavailable" if isinstance(error, EngineUnavailable) else "invalid"


def _ending(generation: Generation) -> RequestOutcome:
    return "aborted" if generation.aborted else "completed"


async def _not_routed(request: Request, error: Exception) -> Response:
    """Give unknown paths and methods the shape of every other error."""
    assert isinstance(error, HTTPException)
    refused = RequestInvalid(f"{request.method} {request.url.path:.200}: {error.detail}")
    return JSONResponse(
        error_body(refused), status_code=error.status_code, headers=dict(error.headers or {})
    )
