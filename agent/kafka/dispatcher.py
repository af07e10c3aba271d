"""From the frame of a request to the buffers of its response.

Everything that a client sends is charged before it is read. A header has at most `MAX_HEADER_TAGS` tagged
fields, and a body at most `Api.max_items` items. Large requests are read in a thread of the parsing pool, and
responses with many items are written in one of the rendering pool. On the event loop they would delay all
other requests; a thread yields the interpreter every few milliseconds. The largest
memory that a large request may take is reserved before it is read. Its true size stays reserved until it is
handled.
"""

from __future__ import annotations

from functools import partial
from struct import Struct as Layout
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import structlog

from agent.kafka.api_definition import DeferredResponse, RequestContext, RequestFrame, RetainedBuffers
from agent.kafka.codec import Cursor, MalformedMessageError, Message, Struct
from agent.kafka.codec.reading import read_int16, read_int32, read_string, read_tags
from agent.kafka.codec.writing import begin_response, finish_response
from agent.kafka.errors import ErrorCode, code_of
from agent.kafka.throttling import RequestMeter
from agent.runtime.errors import BusyError
from agent.runtime.request_time import Measured
from agent.security.login import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from prometheus_client import Counter

    from agent.kafka.api_definition import Api
    from agent.kafka.codec.writing import Buffers
    from agent.kafka.services import KafkaServices
    from agent.runtime.work_pool import WorkPool
    from agent.security.identity import Client

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_LOGIN_APIS = {API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE}
_HEADER_START = Layout(">hhi")  # API key, version, correlation id
MAX_HEADER_TAGS = 64
"""Bound on the tagged fields of a request's header. No client sends more than a few."""

_LARGE_REQUEST_BYTES = 8 * 1024
_LARGE_RECORDS_BYTES = 256 * 1024
"""Minimum size of a request that is read in a thread, without and with records. Smaller ones take
milliseconds."""

_ITEM_BYTES = 1024  # of an item's objects, in the request and in the work on it
_MIN_COUNTED_ITEMS = 64
_PARSING_WAIT_SECONDS = 30.0

_LARGE_RESPONSE_ITEMS = 500
_MAX_UNCOUNTED_BYTES = 256 * 1024  # as much as a socket's buffer takes in any case

Response: TypeAlias = "Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | None"
"""The encoded response, a deferred one, or None for a request without a response."""


class UnsupportedRequestError(MalformedMessageError):
    """An API or version that the agent does not serve. The connection is closed, as a Kafka broker does."""


class RequestTooLargeError(MalformedMessageError):
    """The memory for parsed requests stays full of others. The client reconnects after the close."""


class ResponseTooLargeError(MalformedMessageError):
    """The memory for requests is too full for a large response. The client reconnects after the close."""


class RequestDispatcher:
    """Passes requests to their APIs. Belongs to the event loop."""

    def __init__(self, apis: Sequence[Api], services: KafkaServices) -> None:
        self._apis = {api.key: api for api in apis}
        self._services = services
        self._quotas = services.quotas
        self._messages: dict[tuple[int, int], Message] = {}
        self._counts: dict[tuple[int, int], Counter] = {}
        self._fast_paths = {api.key: api.fast_path() for api in apis if api.fast_path is not None}

    def arrival_time(self) -> float:
        """Return a monotonic time that is not after the arrival of a request that is read now."""
        return self._services.loop_lag.earliest_arrival()

    def try_fast_path(self, frame: memoryview, client: Client) -> Response:
        """Handle a common request without waiting; return None for one that needs `handle`.

        After None, pass `was_tried` to `handle`.
        """
        if len(frame) < _HEADER_START.size:
            return None
        key, version, correlation_id = _HEADER_START.unpack_from(frame)
        fast_path, message = self._fast_paths.get(key), self._messages.get((key, version))
        if fast_path is None or message is None:
            return None
        cursor = Cursor(frame, _HEADER_START.size, MAX_HEADER_TAGS)
        context = self._context(cursor, message, version, client, self.arrival_time())
        request_frame = RequestFrame(frame, cursor.position, message.is_flexible, correlation_id)
        meter = None if self._quotas.active is None else self._meter(self._apis[key], context, frame)
        response = fast_path.try_handle(request_frame, context)
        if response is not None:
            self._counts[key, version].inc()
            if meter is not None:
                meter.time.stop()
                return meter.charge(response)
        return response

    def _context(
        self, cursor: Cursor, message: Message, version: int, client: Client, arrived_at: float
    ) -> RequestContext:
        """Read the rest of the header, from the client id on."""
        length = read_int16(cursor)
        client_id = None if length == -1 else read_string(cursor, length)
        if message.is_flexible:
            read_tags(cursor, {}, {})
        return RequestContext(
            services=self._services,
            version=version,
            client_id=client_id,
            client=client,
            arrived_at=arrived_at,
            apis=self._apis,
        )

    async def handle(
        self, frame: memoryview, client: Client, *, arrived_at: float | None = None, was_tried: bool = False
    ) -> Response:
        """Handle one request and return its response.

        `arrived_at` is its `arrival_time`, before it waited for others of its connection; None: it is read
        now.
        Raises `MalformedMessageError` for a request that has no error response: the caller closes the
        connection.
        """
        if not was_tried:
            response = self.try_fast_path(frame, client)
            if response is not None:
                return response
        cursor = Cursor(frame, items=MAX_HEADER_TAGS)
        key, version = read_int16(cursor), read_int16(cursor)
        correlation_id = read_int32(cursor)
        api = self._apis.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            if api is not None and key == API_VERSIONS:
                return self._version_fallback(api, correlation_id)
            raise UnsupportedRequestError(f"version {version} of API {key} is not supported")
        message = self._messages.get((key, version))
        if message is None:
            message = self._load_message(api, version)
            response = self.try_fast_path(frame, client)
            if response is not None:
                return response
        arrived_at = self.arrival_time() if arrived_at is None else arrived_at
        context = self._context(cursor, message, version, client, arrived_at)
        request_frame = RequestFrame(frame, cursor.position, message.is_flexible, correlation_id)
        meter = None if self._quotas.active is None else self._meter(api, context, frame)
        try:
            work = self._handle_known(api, message, request_frame, cursor, context)
            if meter is None:
                response = await work
            else:
                meter.time.stop()
                response = meter.charge(await Measured(meter.time, work))
        except BaseException:
            RetainedBuffers([], context.releases).release()
            raise
        if isinstance(response, list) and context.releases:
            return RetainedBuffers(response, context.releases)
        return response

    def _meter(self, api: Api, context: RequestContext, frame: memoryview) -> RequestMeter | None:
        """Return what charges a request.

        The first login of a connection is not charged: all clients that have no name yet would share a limit.
        """
        quotas, login = self._quotas.active, context.client.login
        if quotas is None or (api.key in _LOGIN_APIS and login is not None and login.user is None):
            return None
        return RequestMeter(quotas, api.name, context, len(frame))

    async def _read_and_handle(
        self, api: Api, message: Message, cursor: Cursor, context: RequestContext, correlation_id: int
    ) -> Response:
        """Read the body and handle it, with the memory of its items reserved."""
        size, cursor.items_left = len(cursor.data), api.max_items
        is_large = size > (_LARGE_RECORDS_BYTES if api.request_has_records else _LARGE_REQUEST_BYTES)
        memory = self._services.parsing_budget
        reserved = min(api.max_items, size) * _ITEM_BYTES if is_large else 0
        reserved = min(reserved, memory.limit)
        if reserved and not await memory.wait_for_space(reserved, _PARSING_WAIT_SECONDS):
            raise RequestTooLargeError(memory.rejection(reserved).message)
        memory.reserve_unchecked(reserved)
        try:
            read: Callable[[], Struct] = partial(message.read_request, cursor)
            request = await _parse(self._services.pools.parsing, read) if is_large else read()
            items = api.max_items - cursor.items_left
            needed = items * _ITEM_BYTES if items > _MIN_COUNTED_ITEMS else 0
            memory.reserve_unchecked(needed)
            memory.release(reserved)
            reserved = needed
            return await self._handle_struct(api, request, context, correlation_id)
        finally:
            memory.release(reserved)

    async def _handle_known(
        self, api: Api, message: Message, frame: RequestFrame, cursor: Cursor, context: RequestContext
    ) -> Response:
        """Handle a common request that has to wait on the fast path, and any other one as a struct."""
        fast_path = self._fast_paths.get(api.key)
        if fast_path is None:
            return await self._read_and_handle(api, message, cursor, context, frame.correlation_id)
        try:
            response = await fast_path.handle(frame, context)
        except MalformedMessageError:
            raise
        except Exception as error:  # noqa: BLE001  # as in `_handle_struct`
            response = self._error_response(api, Struct(), context, error)
        if response is None:
            return await self._read_and_handle(api, message, cursor, context, frame.correlation_id)
        self._counts[api.key, context.version].inc()
        if isinstance(response, Struct):
            return encode(api, context.version, frame.correlation_id, response)
        return response

    def _load_message(self, api: Api, version: int) -> Message:
        """Build the readers and writers of a message at its first use, in about a millisecond."""
        message = Message.of(api.name, version)
        key = (api.key, version)
        self._counts[key] = self._services.metrics.kafka_requests.labels(api.name, str(version))
        self._messages[key] = message
        return message

    def outlives_client(self, frame: memoryview) -> bool:
        """Return True if the request is to be handled even after its client has disconnected."""
        api = self._apis.get(int.from_bytes(frame[:2], "big"))
        return api is not None and api.outlives_client

    async def _handle_struct(
        self, api: Api, request: Struct, context: RequestContext, correlation_id: int
    ) -> Response:
        self._counts[api.key, context.version].inc()
        try:
            response = await api.handle(request, context)
        except MalformedMessageError:
            raise
        except Exception as error:  # noqa: BLE001  # every request gets a response
            response = self._error_response(api, request, context, error)
            return encode(api, context.version, correlation_id, response)
        if response is None:
            return None
        if isinstance(response, DeferredResponse):
            return partial(self._finish, api, request, context, correlation_id, response)
        if api.response_has_records or not _has_many_items(response):
            return encode(api, context.version, correlation_id, response)
        write = partial(encode, api, context.version, correlation_id, response)
        buffers = await _run_in_thread(self._services.pools.rendering, write)
        _count_response(buffers, context)
        return buffers

    async def _finish(
        self,
        api: Api,
        request: Struct,
        context: RequestContext,
        correlation_id: int,
        deferred: DeferredResponse,
    ) -> Buffers:
        try:
            response = await deferred.result()
        except Exception as error:  # noqa: BLE001  # as above
            response = self._error_response(api, request, context, error)
        return encode(api, context.version, correlation_id, response)

    def _error_response(self, api: Api, request: Struct, context: RequestContext, error: Exception) -> Struct:
        if not isinstance(error, SiltstoneError) or code_of(error) is ErrorCode.unknown_server_error:
            _log.error("a Kafka request failed", api=api.name, version=context.version, exc_info=error)
        return api.error_response_for(request, context, error)

    def _version_fallback(self, api: Api, correlation_id: int) -> Buffers:
        """Return ApiVersions' response to an unknown version of itself (KIP-511).

        It is a response of version 0, with UNSUPPORTED_VERSION and the versions of ApiVersions alone.
        """
        lowest, highest = api.advertised_versions
        own = Struct(api_key=api.key, min_version=lowest, max_version=highest)
        return encode(
            api, 0, correlation_id, Struct(error_code=ErrorCode.unsupported_version, api_keys=[own])
        )


def encode(api: Api, version: int, correlation_id: int, response: Struct) -> Buffers:
    """Return a whole response frame, including its length."""
    message = Message.of(api.name, version)
    # KIP-511: the header of an ApiVersions response never has tagged fields.
    has_tags = message.is_flexible and api.key != API_VERSIONS
    out = begin_response(correlation_id, is_flexible=has_tags)
    message.write_response(out, response)
    return finish_response(out)


def _has_many_items(response: Struct) -> bool:
    """Return True if the nested lists of a response have so many items that a thread is to write it."""
    count, structs = 0, [response]
    while structs:
        for value in structs.pop().__dict__.values():
            if isinstance(value, list):
                count += len(value)
                if count > _LARGE_RESPONSE_ITEMS:
                    return True
                structs += [item for item in value if isinstance(item, Struct)]
    return False


async def _parse(pool: WorkPool, read: Callable[[], Struct]) -> Struct:
    try:
        return await pool.run(read)
    except BusyError as error:
        raise RequestTooLargeError(error.message) from None


async def _run_in_thread(pool: WorkPool, call: Callable[[], T]) -> T:
    """Run `call` in a thread of the pool, or right here if the pool is full."""
    try:
        return await pool.run(call)
    except BusyError:
        return call()


def _count_response(buffers: Buffers, context: RequestContext) -> None:
    """Count a large response in the requests' memory until it has left; raise if it does not fit.

    A response larger than half of that memory counts as half, because it could never be sent otherwise.
    """
    budget = context.services.request_budget
    size = min(sum(map(len, buffers)), budget.limit // 2)
    if size <= _MAX_UNCOUNTED_BYTES:
        return
    try:
        budget.reserve(size)
    except BusyError as error:
        # Without the cause: its stack frames refer to the whole response.
        raise ResponseTooLargeError(error.message) from None
    context.releases.append(partial(budget.release, size))
