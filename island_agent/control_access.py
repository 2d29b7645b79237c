"""Who may use `/control`, and how it says no."""

from __future__ import annotations

import hmac

from fastapi import Request, Response
from fastapi.responses import JSONResponse


def refusal(request: Request, token: str | None) -> Response | None:
    """Return the answer to whoever has not the token, None to whoever has it."""
    if token is None:
        return error(403, "ControlOff", "this agent was started without a control token")
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind != "Bearer" or not hmac.compare_digest(given.encode(), token.encode()):
        answer = error(401, "TokenInvalid", "expected Authorization: Bearer and the token")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
    return None


def error(status: int, kind: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"type": kind, "message": message}}, status_code=status)
