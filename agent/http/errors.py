"""Error responses. The status of an error follows from what the client must do.

==========================  ======  ===================================
kind of error               status  what the client does
==========================  ======  ===================================
not JSON, wrong media type  415     send `application/json`
body too large              413     send smaller requests
body too slow               408     send it faster, or in smaller parts
not authorized              403     authenticate as another user
unknown name                404     name something that exists
offset out of range         416     read within the range of the error
name exists                 409     choose another name
other invalid input         422     change the request
stale state                 409     read the state again and retry
exceeds a quota             429     retry after `Retry-After` seconds
retryable                   503     retry after `Retry-After` seconds
the client has left         499     nothing: it does not receive the response
anything else               500     contact the operator of the agent
==========================  ======  ===================================

A message about the catalog, the object store or a disk is not for clients. They get a short cause and a
reference; the agent's log has the details under this reference.
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
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from agent.cluster.client_messages import is_client_safe, log_reference_hint, new_reference, public_cause
from agent.runtime.errors import BusyError
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

_CLIENT_CLOSED_REQUEST = 499  # as nginx counts a client that did not wait for the response
_log = structlog.get_logger(__name__)


class UnsupportedMediaTypeError(InvalidInputError):
    """The request body has a media type that the call does not accept."""


class PayloadTooLargeError(InvalidInputError):
    """The request body is larger than the agent accepts."""


class BodyTimeoutError(InvalidInputError):
    """The request body did not arrive in time."""


class NotAuthorizedError(InvalidInputError):
    """The principal of the request may not do this."""


class ThrottledError(BusyError):
    """The user exceeds a quota, and has to wait."""


class InvalidBodyError(InvalidInputError):
    """The request body does not have the documented form; the message says where."""


# The first matching class decides.
_STATUS: tuple[tuple[type[SiltstoneError], int], ...] = (
    (UnsupportedMediaTypeError, 415),
    (PayloadTooLargeError, 413),
    (BodyTimeoutError, 408),
    (NotAuthorizedError, 403),
    (OffsetOutOfRangeError, 416),
    (NotFoundError, 404),
    (TopicExistsError, 409),
    (InvalidInputError, 422),
    (StaleStateError, 409),
    (ThrottledError, 429),
    (RetryableError, 503),
)


def status_of(error: SiltstoneError) -> int:
    """Return the HTTP status of an error."""
    if not is_client_safe(error) and not isinstance(error, RetryableError):
        return 500
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def code_of(error: SiltstoneError) -> str:
    """Return the stable name of an error: `OffsetOutOfRangeError` is `offset_out_of_range`."""
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def error_body(code: str, message: str, remedy: str | None = None, **more: object) -> bytes:
    """Return the JSON of one error, and a newline for terminals."""
    detail = {"code": code, "message": message, **({"remedy": remedy} if remedy else {}), **more}
    return orjson.dumps({"error": detail}, option=orjson.OPT_APPEND_NEWLINE)


class ErrorResponses:
    """Responses to requests that failed. `ids` creates the references."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def expected(self, request: Request, error: Exception) -> Response:
        """Return the response for an error that Siltstone raised."""
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
            body = self._logged(request, error)
        return Response(body, status_code=status_of(error), headers=headers, media_type="application/json")

    def _logged(self, request: Request, error: SiltstoneError) -> bytes:
        """Log an error that is not for clients, and return a body that refers to the log."""
        reference = new_reference(self._ids)
        is_retryable = isinstance(error, RetryableError)
        _log.log(
            logging.WARNING if is_retryable else logging.ERROR,
            "HTTP request failed",
            reference=reference,
            method=request.method,
            path=request.url.path,
            reason=str(error),
            exc_info=None if is_retryable else error,
        )
        remedy = "retry later" if is_retryable else "contact the operator of the agent"
        return error_body(code_of(error), f"{public_cause(error)}; {log_reference_hint(reference)}", remedy)

    def unexpected(self, request: Request, error: Exception) -> Response:
        """Return the response for an exception that Siltstone did not raise on purpose."""
        reference = new_reference(self._ids)
        _log.error(
            "HTTP request failed unexpectedly",
            reference=reference,
            method=request.method,
            path=request.url.path,
            exc_info=error,
        )
        body = error_body(
            "internal_error",
            f"the agent failed unexpectedly; {log_reference_hint(reference)}",
            "contact the operator of the agent",
        )
        return Response(body, status_code=500, media_type="application/json")


def _bad_parameters(request: Request, error: Exception) -> Response:
    """Return FastAPI's validation error in the common form."""
    del request
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
    body = error_body("invalid_request", problems, "see /docs for the parameters of this call")
    return Response(body, status_code=422, media_type="application/json")


def _http_exception(request: Request, error: Exception) -> Response:
    """Return the response for an unknown path or method."""
    assert isinstance(error, HTTPException)
    code = {404: "path_not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    body = error_body(code, f"{request.method} {request.url.path}: {error.detail}", "see /docs for all calls")
    return Response(body, status_code=error.status_code, headers=error.headers, media_type="application/json")


async def _client_has_left(request: Request, error: Exception) -> Response:
    """Return a response that the client does not receive; the metric of requests counts it."""
    del request, error
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


def install(app: FastAPI, ids: Ids) -> None:
    """Let the application return every error in the common form."""
    responses = ErrorResponses(ids)
    app.add_exception_handler(SiltstoneError, responses.expected)
    app.add_exception_handler(RequestValidationError, _bad_parameters)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientDisconnect, _client_has_left)
    app.add_exception_handler(Exception, responses.unexpected)
