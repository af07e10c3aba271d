"""Quotas of HTTP clients: the same ones as those of Kafka clients, by user (KIP-13, KIP-124, KIP-599).

The body of a request that appends records is charged to `producer_byte_rate`, the body of a response with
records to `consumer_byte_rate`, the time of each request to `request_percentage`, and partitions that are
created or deleted to `controller_mutation_rate`. HTTP has no client id, so these clients are those of the
default client id. While a client is throttled, its requests get status 429 with `Retry-After`; nothing of
them is read.

A route charges its own requests. A comparison of paths could differ from that of the router, and a client
could choose a path that costs nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from fastapi.routing import APIRoute
from typing_extensions import override

from agent.http.authorization import client_of
from agent.http.errors import ThrottledError
from agent.runtime.request_time import Measured, RequestTime
from agent.security.identity import ANONYMOUS, Client
from catalog.config.quota_entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

    from agent.quotas.client_quotas import ClientQuotas
    from agent.quotas.follower import QuotaFollower

_RECORDS: Final = "/records"
_CHARGED: Final = {"POST": QuotaKey.PRODUCER_BYTE_RATE, "GET": QuotaKey.CONSUMER_BYTE_RATE}


def charged_route(quotas: QuotaFollower) -> type[APIRoute]:
    """Return the class of routes that charge the users of their requests."""

    class ChargedRoute(APIRoute):
        @override
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            active = quotas.active
            if active is None:
                await super().handle(scope, receive, send)
                return
            key = _CHARGED.get(scope["method"]) if self.path.endswith(_RECORDS) else None
            charge = _Charge(active, _user(scope), key)
            await charge.run(super().handle(scope, charge.received(receive), charge.sent(send)))

    return ChargedRoute


class _Charge:
    """The charge of one request. `key` is the quota of its body, or of that of its response."""

    def __init__(self, quotas: ClientQuotas, user: str, key: QuotaKey | None) -> None:
        self._quotas = quotas
        self._user = user
        self._key = key
        self._bytes = 0

    def received(self, receive: Receive) -> Receive:
        """Return `receive` such that the body of the request counts, if it is charged."""
        if self._key is not QuotaKey.PRODUCER_BYTE_RATE:
            return receive

        async def count() -> Message:
            message = await receive()
            self._bytes += len(message.get("body", b""))
            return message

        return count

    def sent(self, send: Send) -> Send:
        """Return `send` such that the body of the response counts, if it is charged."""
        if self._key is not QuotaKey.CONSUMER_BYTE_RATE:
            return send

        async def count(message: Message) -> None:
            self._bytes += len(message.get("body", b""))
            await send(message)

        return count

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Serve the request and charge it; raise ThrottledError without serving it while it must wait."""
        try:
            for key in (QuotaKey.REQUEST_PERCENTAGE, *([self._key] if self._key else [])):
                _require(self._quotas.throttle_left(key, self._user, None), self._user, key)
        except ThrottledError:
            work.close()
            raise
        time = RequestTime(asyncio.get_running_loop().time)
        time.stop()
        try:
            await Measured(time, work)
        finally:
            self._quotas.record(QuotaKey.REQUEST_PERCENTAGE, self._user, None, 100 * time.close())
            if self._key is not None:
                self._quotas.record(self._key, self._user, None, self._bytes)


class Mutations:
    """Charges of one request for partitions that it creates or deletes; strict, as KIP-599 has it."""

    def __init__(self, quotas: QuotaFollower, request: Request) -> None:
        self._quotas = quotas.active
        self._user = client_of(request).principal.name

    @property
    def is_limited(self) -> bool:
        """True if any quota is set."""
        return self._quotas is not None

    def charge(self, partitions: int) -> None:
        """Charge a mutation; raise ThrottledError if the quota does not allow it."""
        if self._quotas is None:
            return
        allowed, throttle_ms = self._quotas.mutate(self._user, None, partitions, strict=True)
        if not allowed:
            _require(throttle_ms, self._user, QuotaKey.CONTROLLER_MUTATION_RATE)

    def record(self, partitions: int) -> None:
        """Charge a mutation that has happened."""
        if self._quotas is not None:
            self._quotas.mutate(self._user, None, partitions, strict=False)


def _user(scope: Scope) -> str:
    """Return the name of the client that the listener has authenticated."""
    client = scope.get("state", {}).get("client")
    return client.principal.name if isinstance(client, Client) else ANONYMOUS.name


def _require(throttle_ms: int, user: str, key: QuotaKey) -> None:
    """Raise ThrottledError if the user has to wait."""
    if throttle_ms:
        raise ThrottledError(
            f"user {user} exceeds its {key}",
            remedy="retry after the seconds of Retry-After, or ask the operator for a higher quota",
            retry_after_seconds=throttle_ms / 1000,
        )
