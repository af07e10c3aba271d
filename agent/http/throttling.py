"""Byte rates of HTTP clients: the same quotas as those of Kafka clients, by user (KIP-13).

The body of a request that appends records is charged to `producer_byte_rate`, and the body of a response with
records to `consumer_byte_rate`. HTTP has no client id, so these clients are those of the default client id.
While a client is throttled, its requests get status 429 with `Retry-After`; nothing of them is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from agent.http.errors import error_body
from agent.security.identity import ANONYMOUS, Client
from catalog.config.quota_entities import QuotaKey

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from agent.quotas.follower import QuotaFollower

_RECORDS: Final = "/records"
_CHARGED: Final = {"POST": QuotaKey.PRODUCER_BYTE_RATE, "GET": QuotaKey.CONSUMER_BYTE_RATE}


class RecordQuotas:
    """ASGI middleware that charges the routes of records, and rejects requests of throttled users."""

    def __init__(self, app: ASGIApp, quotas: QuotaFollower) -> None:
        self._app = app
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        quotas = self._quotas.active
        key = None if quotas is None or scope["type"] != "http" else _key(scope)
        if quotas is None or key is None:
            await self._app(scope, receive, send)
            return
        user = _user(scope)
        if throttle_ms := quotas.throttle_left(key, user, None):
            await _rejection(key, user, throttle_ms)(scope, receive, send)
            return
        size = 0

        async def count_received() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            return message

        async def count_sent(message: Message) -> None:
            nonlocal size
            size += len(message.get("body", b""))
            await send(message)

        try:
            if key is QuotaKey.PRODUCER_BYTE_RATE:
                await self._app(scope, count_received, send)
            else:
                await self._app(scope, receive, count_sent)
        finally:
            quotas.record(key, user, None, size)


def _user(scope: Scope) -> str:
    """Return the name of the client that the listener has authenticated."""
    client = scope.get("state", {}).get("client")
    return client.principal.name if isinstance(client, Client) else ANONYMOUS.name


def _key(scope: Scope) -> QuotaKey | None:
    return _CHARGED.get(scope["method"]) if scope["path"].endswith(_RECORDS) else None


def _rejection(key: QuotaKey, user: str, throttle_ms: int) -> Response:
    seconds = math.ceil(throttle_ms / 1000)
    body = error_body(
        "throttled",
        f"user {user} exceeds its {key}",
        f"retry after {seconds} seconds, or ask the operator for a higher quota",
    )
    headers = {"Retry-After": str(seconds)}
    return Response(body, status_code=429, headers=headers, media_type="application/json")
