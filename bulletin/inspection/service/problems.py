"""Which status each error is answered with.  None of them is a 500: that is a bug of ours."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skerry.bulletin import errors
from skerry.bulletin.inspection.cells import TooManyPlaces
from skerry.bulletin.inspection.problems import problem_of
from skerry.bulletin.inspection.service.replies import ProblemReply, problem
from skerry.bulletin.inspection.service.site import NotRead, TooLong
from skerry.bulletin.inspection.workers import Busy

# The first class that fits decides; a subclass comes before its base.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (errors.VersionUnknown, 404),
    (errors.NotFound, 404),
    (errors.StoreDenied, 502),
    (errors.Unanswered, 503),
    (errors.StoreError, 502),
    (errors.BulletinError, 502),
    (OSError, 503),
)
_WHAT = {
    404: "no such version, object or island, or it has been collected",
    422: "a parameter is wrong, unknown, or given twice",
    502: "the store refuses, or holds something other than the log says",
    503: "the log has not been read, the store does not answer, or too much is asked at once",
    504: "the store did not answer, or an answer was not computed, in time",
}
RESPONSES: dict[int | str, dict[str, object]] = {
    304: {"description": "what If-None-Match names is still right"},
    401: {"description": "no token, where one is needed", "model": ProblemReply},
    **{status: {"description": what, "model": ProblemReply} for status, what in _WHAT.items()},
}


class Unfit(Exception):
    """A parameter that is within its limits, but not for this run."""


def add_problems(app: FastAPI) -> None:
    """Answer every foreseen error as a problem."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Unfit, _unfit)
    app.add_exception_handler(TooManyPlaces, _unfit)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(NotRead, _not_read)
    app.add_exception_handler(Busy, _busy)
    app.add_exception_handler(TimeoutError, _late)
    app.add_exception_handler(TooLong, _too_long)
    app.add_exception_handler(PydanticSerializationError, _unwritable)
    for kind, _ in _STATUS:
        app.add_exception_handler(kind, _refused)


async def _refused(request: Request, error: Exception) -> Response:
    told = problem_of(error)
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return problem(status, told.kind, told.message, told.acts)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "request"
    return problem(422, "RequestInvalid", f"{where[:80]}: {first['msg'][:200]}")


async def _unfit(request: Request, error: Exception) -> Response:
    return problem(422, "RequestInvalid", str(error))


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = problem(error.status_code, "NotRouted", str(error.detail), "you: see /openapi.json")
    answer.headers.update(error.headers or {})
    return answer


async def _not_read(request: Request, error: Exception) -> Response:
    return problem(503, "NotRead", str(error), "nobody, or the operator of the store: see /health")


async def _busy(request: Request, error: Exception) -> Response:
    return problem(503, "Busy", str(error), "you: ask again later")


async def _unwritable(request: Request, error: Exception) -> Response:
    return problem(
        502,
        "NotJson",
        "what was found cannot be answered as JSON: it is nested too deeply, or is no text",
        "whoever runs the writer: it wrote what no reader can show",
    )


async def _too_long(request: Request, error: Exception) -> Response:
    return problem(504, "TooLong", str(error), "you: ask for less, or again later")


async def _late(request: Request, error: Exception) -> Response:
    return problem(
        504, "StoreSilent", "the store did not answer in time", "the operator of the store"
    )
