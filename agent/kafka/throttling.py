"""Quotas of Kafka requests (KIP-13, KIP-124, KIP-219, KIP-599): charges, throttle times, muted connections.

As Kafka's brokers do since KIP-219, an agent responds at once. The response states the throttle time, and the
connection receives nothing more for this time. Rules by API:

- Produce is charged with the size of its request when it has arrived, not when it is committed: otherwise a
  client that pipelines would be ahead of its quota by all its open requests. Its response states the rest of
  the time.
- Fetch is charged with the size of its response, and returns at most what the quota's windows allow. While
  the client is throttled, further requests, on any connection, get an empty response.
- Every request with a response is charged with its time, except those of a connection's first login. Kafka
  also exempts Produce with acks 0.
- Creations and deletions of topics and partitions are charged by their handlers (`MutationCharges`).

Nothing here runs while no quota is set.
"""

from __future__ import annotations

import asyncio
import math
from functools import cache, partial
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final

from agent.kafka.api_definition import RetainedBuffers
from agent.kafka.codec import Cursor
from agent.kafka.codec.messages import Message
from agent.kafka.codec.schema import NUMBER_CODES, is_number, schema_of
from agent.kafka.codec.writing import begin_response, finish_response
from agent.kafka.errors import ErrorCode, KafkaError
from agent.runtime.request_time import RequestTime
from catalog.config.quota_entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec.writing import Buffers
    from agent.quotas.client_quotas import ClientQuotas, FetchAllowance

    Response = Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | None

_HEADER_BYTES: Final = 8  # of a response: length and correlation id
_API_VERSIONS: Final = "api_versions"
_INT32 = Layout(">i")


class RequestMeter:
    """What one request costs its client. `size` is that of the request in bytes."""

    def __init__(self, quotas: ClientQuotas, api: str, context: RequestContext, size: int) -> None:
        self.time = RequestTime(context.services.clock.monotonic)
        self._quotas = quotas
        self._api = api
        self._context = context
        self._size = size

    def charge(self, response: Response) -> Response:
        """Charge the client and mute its connection; return the response with the throttle time."""
        percent = 100 * self.time.close()
        throttle_ms = 0
        if self._api == "produce":
            throttle_ms = self._record(QuotaKey.PRODUCER_BYTE_RATE, self._size)
        elif self._api == "fetch" and response is not None and not callable(response):
            throttle_ms = self._record(QuotaKey.CONSUMER_BYTE_RATE, _size(response))
        if response:  # neither None nor no buffers
            throttle_ms = max(throttle_ms, self._record(QuotaKey.REQUEST_PERCENTAGE, percent))
        if callable(response):
            self._mute(throttle_ms)
            if throttle_ms:
                until = asyncio.get_running_loop().time() + throttle_ms / 1000
                return partial(self._respond_later, response, until)
            return response
        if isinstance(response, RetainedBuffers):
            response.buffers, throttle_ms = self._stated(response.buffers, throttle_ms)
        elif response:
            response, throttle_ms = self._stated(response, throttle_ms)
        self._mute(throttle_ms)
        return response

    def _record(self, key: QuotaKey, amount: float) -> int:
        client = self._context.client
        return self._quotas.record(key, client.principal.name, self._context.client_id, amount)

    def _mute(self, throttle_ms: int) -> None:
        mute = self._context.client.mute
        if throttle_ms and mute is not None:
            mute(throttle_ms / 1000)

    async def _respond_later(self, response: Callable[[], Awaitable[Buffers]], until: float) -> Buffers:
        buffers = await response()
        left_ms = math.ceil((until - asyncio.get_running_loop().time()) * 1000)
        return self._stated(buffers, max(left_ms, 0))[0]

    def _stated(self, buffers: Buffers, throttle_ms: int) -> tuple[Buffers, int]:
        """Return the response with the longer one of its throttle time and `throttle_ms`, and that time."""
        return state_throttle_time(buffers, self._api, self._context.version, throttle_ms)


def state_throttle_time(buffers: Buffers, api: str, version: int, throttle_ms: int) -> tuple[Buffers, int]:
    """Return an encoded response with the longer one of its throttle time and `throttle_ms`, and that time.

    Versions without the field state nothing, and are throttled like others.
    """
    position = _position(api, version)
    if position is None:
        if throttle_ms and "throttle_time" in {
            each.name for each in schema_of(api, version, "response").fields
        }:
            return _encoded_again(buffers, api, version, throttle_ms), throttle_ms
        return buffers, throttle_ms
    (own_ms,) = _INT32.unpack_from(buffers[0], position)
    if own_ms >= throttle_ms:
        return buffers, own_ms
    first = bytearray(buffers[0])
    _INT32.pack_into(first, position, throttle_ms)
    return [first, *buffers[1:]], throttle_ms


@cache
def _position(api: str, version: int) -> int | None:
    """Return where the throttle time is in a response; None if it has none, or at no fixed place."""
    schema = schema_of(api, version, "response")
    position = _HEADER_BYTES + (schema.is_flexible and api != _API_VERSIONS)
    for each in schema.fields:
        if each.name == "throttle_time":
            return position
        if not is_number(each) or each.tag is not None:
            return None
        position += Layout(NUMBER_CODES[each.kind]).size
    return None


def _encoded_again(buffers: Buffers, api: str, version: int, throttle_ms: int) -> Buffers:
    """Return a response whose throttle time follows fields of any length. Such responses are small."""
    message = Message.of(api, version)
    frame = memoryview(b"".join(buffers))
    has_tags = message.is_flexible and api != _API_VERSIONS
    response = message.read_response(Cursor(frame, _HEADER_BYTES + has_tags))
    response.throttle_time = throttle_ms
    out = begin_response(int.from_bytes(frame[4:_HEADER_BYTES], "big", signed=True), is_flexible=has_tags)
    message.write_response(out, response)
    return finish_response(out)


def _size(response: Buffers | RetainedBuffers) -> int:
    buffers = response.buffers if isinstance(response, RetainedBuffers) else response
    return sum([len(each) for each in buffers])


def fetch_allowance(context: RequestContext) -> FetchAllowance | None:
    """Return what a Fetch may return; None if no quota limits it."""
    quotas = context.services.quotas.active
    if quotas is None:
        return None
    return quotas.fetch_allowance(context.client.principal.name, context.client_id)


class MutationCharges:
    """Charges of one request for the partitions that it creates or deletes (KIP-599).

    `refused` has the errors of mutations that the quota does not allow: from version `strict_since` of the
    API on, those for which nothing is left. `throttle_ms` is the throttle time for the response.
    """

    def __init__(self, context: RequestContext, *, strict_since: int) -> None:
        self._quotas = context.services.quotas.active
        self._context = context
        self._is_strict = context.version >= strict_since
        self.refused: dict[str, KafkaError] = {}
        self.throttle_ms = 0

    @property
    def is_limited(self) -> bool:
        """True if any quota is set."""
        return self._quotas is not None

    def charge(self, name: str, partitions: int) -> bool:
        """Charge a mutation of a topic; return False if it is refused."""
        try:
            self.require(partitions)
        except KafkaError as error:
            self.refused[name] = error
            return False
        return True

    def require(self, partitions: int) -> None:
        """Charge a mutation; raise THROTTLING_QUOTA_EXCEEDED if it is refused."""
        if self._quotas is None:
            return
        user, client_id = self._context.client.principal.name, self._context.client_id
        allowed, throttle_ms = self._quotas.mutate(user, client_id, partitions, strict=self._is_strict)
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        if not allowed:
            raise KafkaError(ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded.")
