"""The one place where errors become HTTP answers: the status follows from what the caller must do.

==========================  ======  =======================================
kind                        status  what a client does
==========================  ======  =======================================
not JSON, wrong media type  415     send `application/json`
too large                   413     send less at once
too slow                    408     send it faster, or in parts
unknown name                404     name something that exists
offset out of range         416     read within the range that is given
name is taken               409     choose another
other invalid input         422     change the request
stale state                 409     look again, decide anew
retryable                   503     send it again after `Retry-After`
anything else               500     tell who runs the agent
==========================  ======  =======================================

Of what goes wrong behind the agent a client gets the plain cause, and a reference by which the agent's log
has the rest.
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING

import orjson
import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from agent.cluster.client_messages import is_client_safe, new_reference, plain_cause, the_log_says_more
from catalog.errors import TopicExistsError
from core.errors import (
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
    RetryableError,
    SiltstoneError,
    StaleStateError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI
    from starlette.requests import Request

    from core.ids import Ids

_log = structlog.get_logger(__name__)


class UnsupportedMediaTypeError(InvalidInputError):
    """The request body has a media type that the call does not accept."""


class PayloadTooLargeError(InvalidInputError):
    """The request body is larger than the agent accepts."""


class BodyTimeoutError(InvalidInputError):
    """The request body did not arrive in time."""


class InvalidBodyError(InvalidInputError):
    """The request body does not have the documented form; the message says where."""


# The first that fits decides.
_STATUS: tuple[tuple[type[SiltstoneError], int], ...] = (
    (UnsupportedMediaTypeError, 415),
    (PayloadTooLargeError, 413),
    (BodyTimeoutError, 408),
    (OffsetOutOfRangeError, 416),
    (NotFoundError, 404),
    (TopicExistsError, 409),
    (InvalidInputError, 422),
    (StaleStateError, 409),
    (RetryableError, 503),
)


def status_of(error: SiltstoneError) -> int:
    """The HTTP status that tells a client what to do about `error`."""
    if not is_client_safe(error) and not isinstance(error, RetryableError):
        return 500
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def code_of(error: SiltstoneError) -> str:
    """The error's name for programs: `OffsetOutOfRangeError` is `offset_out_of_range`."""
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def error_body(code: str, message: str, remedy: str | None = None, **more: object) -> bytes:
    """The JSON of one error, with a newline for those who read it in a terminal."""
    detail = {"code": code, "message": message, **({"remedy": remedy} if remedy else {}), **more}
    return orjson.dumps({"error": detail}, option=orjson.OPT_APPEND_NEWLINE)


class ErrorAnswers:
    """Answers requests that ended in an error; `ids` gives the references."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def expected(self, request: Request, error: Exception) -> Response:
        """The answer to a request that ended in one of our own errors."""
        assert isinstance(error, SiltstoneError)
        headers: dict[str, str] = {}
        if isinstance(error, RetryableError):
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_seconds or 1.0)))
        bounds: Mapping[str, object] = {}
        if isinstance(error, OffsetOutOfRangeError):
            bounds = {"log_start_offset": error.log_start_offset, "high_watermark": error.high_watermark}
        if is_client_safe(error):
            body = error_body(code_of(error), error.message, error.remedy, **bounds)
        else:
            body = self._kept_apart(request, error)
        return Response(body, status_code=status_of(error), headers=headers, media_type="application/json")

    def _kept_apart(self, request: Request, error: SiltstoneError) -> bytes:
        """Log what went wrong behind the agent, and say where to look for it."""
        reference = new_reference(self._ids)
        passes = isinstance(error, RetryableError)
        _log.log(
            logging.WARNING if passes else logging.ERROR,
            "a request failed",
            reference=reference,
            method=request.method,
            path=request.url.path,
            reason=str(error),
            exc_info=None if passes else error,
        )
        remedy = "send it again later" if passes else "tell who runs the agent"
        return error_body(code_of(error), f"{plain_cause(error)}; {the_log_says_more(reference)}", remedy)

    def unexpected(self, request: Request, error: Exception) -> Response:
        """The answer to a request that met what nobody thought of."""
        reference = new_reference(self._ids)
        _log.error(
            "a request met a bug",
            reference=reference,
            method=request.method,
            path=request.url.path,
            exc_info=error,
        )
        body = error_body(
            "internal_error",
            f"the agent met an error that it did not expect; {the_log_says_more(reference)}",
            "tell who runs the agent",
        )
        return Response(body, status_code=500, media_type="application/json")


def _bad_parameters(request: Request, error: Exception) -> Response:
    """FastAPI's own complaint about path, query or body, in our form."""
    del request
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
    body = error_body("invalid_request", problems, "see /docs for what this call takes")
    return Response(body, status_code=422, media_type="application/json")


def _http_exception(request: Request, error: Exception) -> Response:
    """No such path, or not by this method."""
    assert isinstance(error, HTTPException)
    code = {404: "no_such_path", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    body = error_body(
        code, f"{request.method} {request.url.path}: {error.detail}", "see /docs for what is here"
    )
    return Response(body, status_code=error.status_code, headers=error.headers, media_type="application/json")


def install(app: FastAPI, ids: Ids) -> None:
    """Make `app` answer every error in the one form."""
    answers = ErrorAnswers(ids)
    app.add_exception_handler(SiltstoneError, answers.expected)
    app.add_exception_handler(RequestValidationError, _bad_parameters)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, answers.unexpected)
