"""JSON request bodies, with bounds on the size of one body and on the memory of all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect

from agent.http.errors import BodyTimeoutError, PayloadTooLargeError, UnsupportedMediaTypeError
from agent.http.transport.json_size import ITEM_BYTES, MAX_ITEMS
from agent.runtime.byte_budget import MIN_BYTES_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

    from agent.runtime.byte_budget import ByteBudget

_GRACE_SECONDS: Final = 10.0  # as the policy for Kafka clients has it
_CHECK_SECONDS: Final = 2.5
_SMALL_BYTES: Final = 64 * 1024  # what never waits for the memory of larger requests
_SMALL_BODY_BYTES: Final = 4 * 1024  # what is never rejected for lack of memory, as for Kafka clients


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

    Raises `PayloadTooLargeError` if the body is longer than `limit` bytes, and `BusyError` if the budget is
    full, both as early as possible; a small body is accepted nevertheless. Raises `BodyTimeoutError` if the
    client needs more than `seconds` to send the body, or sends it slowly while the budget is more than half
    full.
    """
    require_json(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        _check_size(int(declared), limit)
    reserved = 0
    chunks: list[bytes] = []
    try:
        async for chunk in _chunks(request, seconds, lambda: budget.is_scarce):
            _check_size(reserved + len(chunk), limit)
            if reserved + len(chunk) <= _SMALL_BODY_BYTES:
                budget.reserve_unchecked(len(chunk))
            else:
                budget.reserve(len(chunk))
            reserved += len(chunk)
            chunks.append(chunk)
        body = b"".join(chunks)
        chunks.clear()
        yield body
    finally:
        budget.release(reserved)


async def _chunks(request: Request, seconds: float, is_scarce: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the parts of the body as they arrive."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    received, more = 0, True
    while more:
        passed = loop.time() - begun
        is_slow = passed >= _GRACE_SECONDS and received < MIN_BYTES_PER_SECOND * passed
        if passed >= seconds or (is_slow and is_scarce()):
            raise BodyTimeoutError(
                f"{received} bytes of the body arrived in {passed:.0f} seconds",
                remedy="send smaller requests",
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds - passed, _CHECK_SECONDS)):
                message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk, more = message.get("body", b""), message.get("more_body", False)
            received += len(chunk)
            yield chunk


@contextlib.asynccontextmanager
async def reserving_items(budget: ByteBudget, count: int) -> AsyncIterator[None]:
    """Reserve memory for the items of a body during the block; many items wait for it.

    Raises `PayloadTooLargeError` beyond `MAX_ITEMS`, and `BusyError` if the memory stays full of others.
    """
    size = _check_items(count) * ITEM_BYTES
    if size > _SMALL_BYTES and not await budget.wait_for_space(size, _GRACE_SECONDS):
        raise budget.rejection(size)
    budget.reserve_unchecked(size)
    try:
        yield
    finally:
        budget.release(size)


def _check_items(count: int) -> int:
    """Return the number of items in a body; raise `PayloadTooLargeError` beyond `MAX_ITEMS`."""
    if count > MAX_ITEMS:
        raise PayloadTooLargeError(
            f"the body has {count} values and fields, and this agent accepts {MAX_ITEMS}",
            remedy="send fewer records in one request",
        )
    return count


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLargeError(
            f"the body has at least {size} bytes, and this agent accepts {limit}",
            remedy="send fewer records in one request",
        )
