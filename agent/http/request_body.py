"""JSON request bodies, with bounds on the size of one body and on the memory of all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from agent.http.errors import BodyTimeoutError, PayloadTooLargeError, UnsupportedMediaTypeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from agent.runtime.byte_budget import ByteBudget


def require_json(request: Request) -> None:
    """Raise `UnsupportedMediaTypeError` unless the headers declare an uncompressed JSON body."""
    given = request.headers.get("content-type", "")
    media_type = given.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaTypeError(
            f"the body's Content-Type is {given!r}" if given else "the body has no Content-Type",
            remedy="send application/json (curl: --json)",
        )
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMediaTypeError(
            f"the body's Content-Encoding is {request.headers['content-encoding']!r}",
            remedy="send it uncompressed",
        )


@contextlib.asynccontextmanager
async def json_body(
    request: Request, *, limit: int, budget: ByteBudget, seconds: float
) -> AsyncIterator[bytes]:
    """Read the JSON body of a request; its bytes are reserved in `budget` until the block ends.

    Raises `PayloadTooLargeError` if the body is longer than `limit` bytes, `BusyError` if the budget is full,
    and `BodyTimeoutError` if the client needs more than `seconds` to send it. The first two are raised as
    early as possible.
    """
    require_json(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        _check_size(int(declared), limit)
    reserved = 0
    chunks: list[bytes] = []
    try:
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    _check_size(reserved + len(chunk), limit)
                    budget.reserve(len(chunk))
                    reserved += len(chunk)
                    chunks.append(chunk)
        except TimeoutError:
            raise BodyTimeoutError(
                f"the body did not arrive within {seconds:g} seconds", remedy="send smaller requests"
            ) from None
        body = b"".join(chunks)
        chunks.clear()
        yield body
    finally:
        budget.release(reserved)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLargeError(
            f"the body has at least {size} bytes, and this agent accepts {limit}",
            remedy="send fewer records in one request",
        )
