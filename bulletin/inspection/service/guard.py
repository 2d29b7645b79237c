"""Whom the service answers: stands before every route, and adds what browsers are to be told.

A request is refused when it has no token where one is needed, names a host that is not this one, or
gives a parameter twice.  The page itself holds nothing of the run and is given to anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import Counter
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry.bulletin.inspection.service.config import ServiceConfig, is_loopback
from skerry.bulletin.inspection.service.replies import problem

API = "/api/"
BODY_MOST = 4096
OPEN_PATHS = ("/health",)

# Plotly puts rules into style elements and attributes; scripts run from this origin alone.
CONTENT_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """An ASGI middleware."""

    def __init__(self, app: ASGIApp, config: ServiceConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, told)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        # A run among several is asked below its own root.
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        if path in OPEN_PATHS:
            return None
        if not is_ours(self._config, headers.get("host", "")):
            hosts = "localhost or an address of this host, or one given with --allow-host"
            return problem(400, "HostRefused", f"expected a Host that is {hosts}")
        if scope["method"] not in ("GET", "HEAD") and not _is_small(headers):
            return problem(413, "BodyTooLarge", f"expected a body of at most {BODY_MOST} bytes")
        if not path.startswith(API):
            return None
        if not self._knows_token(headers):
            answer = problem(
                401, "TokenMissing", "expected Authorization: Bearer and the token, or its session"
            )
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        query = scope["query_string"].decode("latin-1")
        names = Counter(name for name, _ in parse_qsl(query, keep_blank_values=True))
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            return problem(422, "RequestInvalid", f"{twice[0][:80]}: given twice")
        return None

    def _knows_token(self, headers: Headers) -> bool:
        token = self._config.token
        if token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and same(given, token):
            return True
        # The standard library's parser stops at the first cookie, of any other page of this host,
        # that it does not like.
        cookies = cookie_parser(headers.get("cookie", ""))
        return is_session(cookies.get(cookie_of(token), ""), token, now_s=time.time())


def _is_small(headers: Headers) -> bool:
    if "transfer-encoding" in headers:  # it overrules Content-Length, and says no length itself
        return False
    length = headers.get("content-length", "")
    return length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= BODY_MOST


def same(given: str, expected: str) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def is_ours(config: ServiceConfig, host: str) -> bool:
    """Whether a request that names this host may be answered without a token, if none is needed."""
    if config.token is not None or config.proxy_authenticates:
        return True
    name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
    return is_loopback(name.lower()) or name.lower() in config.hosts


def cookie_of(token: str) -> str:
    """Return the name of the cookie: services of one host, on other ports, have their own."""
    return f"skerry_session_{_proof(token, 'name')[:12]}"


def session_of(token: str, *, until_s: int) -> str:
    """Return what a browser's cookie holds: it proves the token until then, and is not the token.

    `until_s` are seconds since 1970.
    """
    return f"{until_s}.{_proof(token, f'session until {until_s}')}"


def is_session(given: str, token: str, *, now_s: float) -> bool:
    until, _, _ = given.partition(".")
    if not (until.isascii() and until.isdigit() and len(until) < 12 and int(until) > now_s):
        return False
    return same(given, session_of(token, until_s=int(until)))


def _proof(token: str, of: str) -> str:
    return hmac.new(token.encode(), f"skerry inspection {of}".encode(), hashlib.sha256).hexdigest()
