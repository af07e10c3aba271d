"""Request bodies, within bounds: of one request, and of all that are under way."""

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
    """Raise `UnsupportedMediaTypeError` unless the body calls itself JSON."""
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
    """The JSON body of `request`, whose bytes are held in `budget` until the block ends.

    Raises `PayloadTooLargeError` beyond `limit` bytes and `BusyError` when the budget is full, both as early
    as they can be known, and `BodyTimeoutError` when the client takes more than `seconds` to send it.
    """
    require_json(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        _check(int(declared), limit)
    held = 0
    chunks: list[bytes] = []
    try:
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    _check(held + len(chunk), limit)
                    budget.reserve(len(chunk))
                    held += len(chunk)
                    chunks.append(chunk)
        except TimeoutError:
            raise BodyTimeoutError(
                f"the body did not arrive within {seconds:g} seconds", remedy="send it in smaller parts"
            ) from None
        body = b"".join(chunks)
        chunks.clear()
        yield body
    finally:
        budget.release(held)


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLargeError(
            f"the body has {size} bytes or more, and this agent takes {limit}",
            remedy="send fewer records in a request",
        )
