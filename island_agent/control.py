"""`/control`: an operator changes what an island follows, or has it compare versions, as it runs.

Only with a token that the agent was started with: requests for completions come from elsewhere.
What is set here lasts until the process ends; the configuration says what it starts with.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from skerry.codec.errors import FormatError
from skerry.codec.strict_json import as_int, as_object, parse_json
from skerry.inference.errors import RequestInvalid
from skerry.inference.transport import read_body
from skerry.island_agent.agent import Agent
from skerry.island_agent.comparing import Comparing
from skerry.island_agent.control_access import error, refusal
from skerry.island_agent.errors import IslandError
from skerry.island_agent.plan import Target

_MAX_BODY_BYTES = 4096
_MAX_U63 = 2**63 - 1
_FIELDS = ("version", "max_lag", "ready_lag")


def add_control(app: FastAPI, agent: Agent, token: str | None) -> None:
    """Add the routes; without a token they answer 403."""
    control = _Control(agent, token)
    app.add_api_route("/control/target", control.show, methods=["GET"])
    app.add_api_route("/control/target", control.set, methods=["PUT"])
    app.add_api_route("/control/difference", Comparing(agent, token).answer, methods=["GET"])


class _Control:
    def __init__(self, agent: Agent, token: str | None) -> None:
        self._agent = agent
        self._token = token

    async def show(self, request: Request) -> Response:
        return refusal(request, self._token) or self._answer(self._agent.state.wanted)

    async def set(self, request: Request) -> Response:
        """Take another target; a target that cannot be followed changes nothing."""
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        try:
            target = parse_target(await read_body(request, _MAX_BODY_BYTES))
        except (FormatError, ValueError, RequestInvalid) as problem:
            return error(400, "RequestInvalid", str(problem))
        try:
            wanted = self._agent.meaning(target)
        except IslandError as problem:
            return error(409, type(problem).__name__, str(problem))
        self._agent.aim(target)
        return self._answer(wanted)

    def _answer(self, wanted: int | None) -> Response:
        return JSONResponse({"target": self._agent.target.to_json(), "wanted": wanted})


def parse_target(body: bytes) -> Target:
    """Parse `{"version": 44}`, `{"max_lag": 2, "ready_lag": 8}`, or `{}` for the newest.

    Raises FormatError or ValueError.
    """
    value: Mapping[str, object] = as_object(parse_json(body, "target"), "target")
    unknown = sorted(set(value) - set(_FIELDS))
    if unknown:
        raise FormatError(f"target: no such field: {unknown[0]!r:.40}; there are {_FIELDS}")
    return Target(**{name: as_int(item, name, 0, _MAX_U63) for name, item in value.items()})
