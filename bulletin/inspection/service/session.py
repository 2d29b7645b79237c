"""A browser's session: the token is told once, and a cookie proves it from then on."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from skerry.bulletin.inspection.service.config import ServiceConfig
from skerry.bulletin.inspection.service.guard import cookie_of, same, session_of
from skerry.bulletin.inspection.service.replies import ProblemReply, problem

SESSION_S = 12 * 3600


class SessionRequest(BaseModel):
    """The token that the service was started with."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=512)


def session_router(config: ServiceConfig) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.post(
        "/session",
        status_code=204,
        response_class=Response,
        responses={
            400: {"description": "a body that is no JSON", "model": ProblemReply},
            413: {"description": "a body that is too large", "model": ProblemReply},
            401: {"description": "another token", "model": ProblemReply},
            422: {"description": "no token", "model": ProblemReply},
        },
    )
    async def session(request: Request, body: SessionRequest) -> Response:
        """Take a token and give a cookie that scripts of the page cannot read."""
        if config.token is None:
            return Response(status_code=204)
        if not same(body.token, config.token):
            return problem(401, "TokenInvalid", "that is not the token of this service")
        answer = Response(status_code=204)
        answer.set_cookie(
            cookie_of(config.token),
            session_of(config.token, until_s=int(time.time()) + SESSION_S),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    return router
