"""Agents of a group talk over `/control/groups`: with the control token, like an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from skerry.codec.errors import FormatError
from skerry.inference.bounded import read_at_most
from skerry.inference.errors import RequestInvalid
from skerry.inference.transport import read_body
from skerry.island_agent.control_access import error, refusal
from skerry.island_agent.errors import DiskError, PeerLost
from skerry.island_agent.groups.ballots import Command, Report
from skerry.island_agent.groups.groups import Groups
from skerry.island_agent.groups.messages import (
    MAX_MESSAGE_BYTES,
    command_bytes,
    parse_command,
    parse_report,
    report_bytes,
)
from skerry.island_agent.groups.roster import Roster

try:
    import aiohttp
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"groups need {missing.name}: pip install 'skerry[agent]'", name=missing.name
    ) from missing


def add_groups(app: FastAPI, groups: Callable[[], Groups | None], token: str | None) -> None:
    """Add the routes; `groups` are None until the agent is open, or for good."""
    routes = _Routes(groups, token)
    app.add_api_route("/control/groups", routes.show, methods=["GET"])
    app.add_api_route("/control/groups/{name}", routes.obey, methods=["POST"])


class _Routes:
    def __init__(self, groups: Callable[[], Groups | None], token: str | None) -> None:
        self._groups = groups
        self._token = token

    async def show(self, request: Request) -> Response:
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        groups = self._groups()
        shown = {} if groups is None else groups.shown()
        return JSONResponse({name: asdict(group) for name, group in shown.items()})

    async def obey(self, request: Request, name: str) -> Response:
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        groups = self._groups()
        if groups is None:
            return error(503, "NotOpen", "this agent has no groups, or is not open yet")
        member = groups.members.get(name)
        if member is None:
            return error(404, "GroupUnknown", f"this agent is in no group {name!r:.80}")
        try:
            command, roster, wait_s = parse_command(await read_body(request, MAX_MESSAGE_BYTES))
        except (FormatError, RequestInvalid) as problem:
            return error(400, "RequestInvalid", str(problem))
        if roster != groups.roster.digest:
            return error(409, "RosterMismatch", "the agents are configured with other groups")
        try:
            report = await member.obey(command, wait_s)
        except DiskError as problem:
            return error(503, type(problem).__name__, str(problem))
        return Response(report_bytes(report), media_type="application/json")


class HttpPeers:
    """See `skerry.island_agent.groups.driver.Peers`, which this class implements."""

    def __init__(self, roster: Roster, token: str) -> None:
        self._roster = roster
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, agent: str, group: str, command: Command, wait_s: float) -> Report:
        url = f"{self._roster.agents[agent]}/control/groups/{group}"
        body = command_bytes(command, self._roster.digest, wait_s)
        try:
            async with self._open().post(url, data=body, allow_redirects=False) as response:
                data, _ = await read_at_most(response, MAX_MESSAGE_BYTES)
                if response.status != 200:
                    raise PeerLost(f"HTTP {response.status}: {data[:300].decode(errors='replace')}")
                return parse_report(data)
        except (aiohttp.ClientError, OSError, FormatError) as problem:
            raise PeerLost(repr(problem)) from problem

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={
                    "Authorization": f"Bearer {self._token}",
                    "Content-Type": "application/json",
                },
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),  # the driver bounds it
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session


__all__ = ["HttpPeers", "add_groups"]
