"""From a frame to the buffers of its answer."""

from __future__ import annotations

from functools import partial
from struct import Struct as Layout
from typing import TYPE_CHECKING, TypeAlias

import structlog

from agent.kafka.api import Context, Later, RequestFrame, RetainedBuffers
from agent.kafka.codec import Cursor, MalformedMessageError, Message, Output, Struct
from agent.kafka.codec.reading import read_int16, read_int32, read_string, read_tags
from agent.kafka.errors import ErrorCode, code_of
from agent.kafka.large_messages import LARGE_BYTES, elsewhere, hold, is_large
from agent.runtime.errors import BusyError
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from prometheus_client import Counter

    from agent.kafka.api import Api
    from agent.kafka.codec.writing import Buffers
    from agent.kafka.services import Services

_log = structlog.get_logger(__name__)
_API_VERSIONS = 18
# API, version, correlation id.
_BEGIN = Layout(">hhi")
Answer: TypeAlias = "Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | None"


class UnsupportedRequestError(MalformedMessageError):
    """An API or version that nobody serves; as a broker does, the connection is closed."""


class Dispatch:
    """Hands requests to their APIs. Belongs to the event loop."""

    def __init__(self, apis: Sequence[Api], services: Services) -> None:
        self._apis = {api.key: api for api in apis}
        self._services = services
        self._messages: dict[tuple[int, int], Message] = {}
        self._counts: dict[tuple[int, int], Counter] = {}
        self._at_once = {api.key: api.at_once() for api in apis if api.at_once is not None}

    def take_at_once(self, frame: memoryview, client_host: str) -> Answer:
        """As `take`, of a usual request, without a step between; None where it is not one.

        Who gets None asks `take`, and says that this was tried.
        """
        if len(frame) < _BEGIN.size:
            return None
        key, version, correlation_id = _BEGIN.unpack_from(frame)
        at_once, message = self._at_once.get(key), self._messages.get((key, version))
        if at_once is None or message is None:
            return None
        cursor = Cursor(frame, _BEGIN.size)
        context = self._context(cursor, message, version, client_host)
        whole = RequestFrame(frame, cursor.position, message.is_flexible, correlation_id)
        answer = at_once.take(whole, context)
        if answer is not None:
            self._counts[key, version].inc()
        return answer

    def _context(self, cursor: Cursor, message: Message, version: int, client_host: str) -> Context:
        """The rest of the header, from the client's name on."""
        length = read_int16(cursor)
        client_id = None if length == -1 else read_string(cursor, length)
        if message.is_flexible:
            read_tags(cursor, {}, {})
        return Context(
            services=self._services,
            version=version,
            client_id=client_id,
            client_host=client_host,
            apis=self._apis,
        )

    async def take(self, frame: memoryview, client_host: str, *, was_tried: bool = False) -> Answer:
        """Handle one request: the answer, or what to call for the answer to come, or None without one.

        Raises `MalformedMessageError` for what cannot be answered: the connection has to be closed.
        """
        if not was_tried:
            at_once = self.take_at_once(frame, client_host)
            if at_once is not None:
                return at_once
        cursor = Cursor(frame)
        key, version = read_int16(cursor), read_int16(cursor)
        correlation_id = read_int32(cursor)
        api = self._apis.get(key)
        if api is None or not api.lowest <= version <= api.highest:
            if api is not None and key == _API_VERSIONS:
                return self._version_fallback(api, correlation_id)
            raise UnsupportedRequestError(f"API {key} in version {version} is not served")
        message = self._messages.get((key, version))
        if message is None:
            message = await self._learn(api, version)
            at_once = self.take_at_once(frame, client_host)
            if at_once is not None:
                return at_once
        context = self._context(cursor, message, version, client_host)
        whole = RequestFrame(frame, cursor.position, message.is_flexible, correlation_id)
        try:
            answer = await self._in_turn(api, whole, context)
            if answer is None:
                cursor.items_left = api.most_items
                read: Callable[[], Struct] = partial(message.read_request, cursor)
                is_large = len(frame) > LARGE_BYTES and not api.carries_records
                request = await elsewhere(self._services.pools.rendering, read) if is_large else read()
                answer = await self._handle(api, request, context, correlation_id)
        except BaseException:
            RetainedBuffers([], context.releases).release()
            raise
        if isinstance(answer, list) and context.releases:
            return RetainedBuffers(answer, context.releases)
        return answer

    async def _in_turn(self, api: Api, whole: RequestFrame, context: Context) -> Answer:
        """As `take_at_once`, of a usual request that takes a while."""
        at_once = self._at_once.get(api.key)
        if at_once is None:
            return None
        try:
            answer = await at_once.take_in_turn(whole, context)
        except MalformedMessageError:
            raise
        except Exception as error:  # noqa: BLE001  # as in `_handle`
            answer = self._refuse(api, Struct(), context, error)
        if answer is not None:
            self._counts[api.key, context.version].inc()
        if isinstance(answer, Struct):
            return encode(api, context.version, whole.correlation_id, answer)
        return answer

    async def _learn(self, api: Api, version: int) -> Message:
        """What a message looks like; it is read off many modules at its first use, away from the loop."""
        try:
            message = await self._services.pools.rendering.run(partial(Message.of, api.name, version))
        except BusyError:
            message = Message.of(api.name, version)
        place = (api.key, version)
        self._counts[place] = self._services.metrics.kafka_requests.labels(api.name, str(version))
        self._messages[place] = message
        return message

    def outlives_client(self, frame: memoryview) -> bool:
        """Whether a request is to be handled although nobody waits for the answer."""
        api = self._apis.get(int.from_bytes(frame[:2], "big"))
        return api is not None and api.outlives_client

    async def _handle(self, api: Api, request: Struct, context: Context, correlation_id: int) -> Answer:
        self._counts[api.key, context.version].inc()
        try:
            answer = await api.handle(request, context)
        except MalformedMessageError:
            raise
        except Exception as error:  # noqa: BLE001  # every request is answered
            return encode(api, context.version, correlation_id, self._refuse(api, request, context, error))
        if answer is None:
            return None
        if isinstance(answer, Later):
            return partial(self._finish, api, request, context, correlation_id, answer)
        if api.gives_records or not is_large(answer):
            return encode(api, context.version, correlation_id, answer)
        write = partial(encode, api, context.version, correlation_id, answer)
        buffers = await elsewhere(self._services.pools.rendering, write)
        hold(buffers, context)
        return buffers

    async def _finish(
        self, api: Api, request: Struct, context: Context, correlation_id: int, later: Later
    ) -> Buffers:
        try:
            answer = await later.answer()
        except Exception as error:  # noqa: BLE001  # as above
            answer = self._refuse(api, request, context, error)
        return encode(api, context.version, correlation_id, answer)

    def _refuse(self, api: Api, request: Struct, context: Context, error: Exception) -> Struct:
        if not isinstance(error, SiltstoneError) or code_of(error) is ErrorCode.unknown_server_error:
            _log.error("a Kafka request failed", api=api.name, version=context.version, exc_info=error)
        return api.refusal(request, context, error)

    def _version_fallback(self, api: Api, correlation_id: int) -> Buffers:
        """KIP-511: version 0 with UNSUPPORTED_VERSION and the versions of this API alone."""
        lowest, highest = api.advertised
        own = Struct(api_key=api.key, min_version=lowest, max_version=highest)
        return encode(
            api, 0, correlation_id, Struct(error_code=ErrorCode.unsupported_version, api_keys=[own])
        )


def encode(api: Api, version: int, correlation_id: int, answer: Struct) -> Buffers:
    """A whole response frame, its length included."""
    message = Message.of(api.name, version)
    out = Output()
    out.tail += bytes(4) + correlation_id.to_bytes(4, "big", signed=True)
    # KIP-511: the answer to ApiVersions never has tagged fields in its header.
    if message.is_flexible and api.key != _API_VERSIONS:
        out.tail.append(0)
    message.write_response(out, answer)
    size = len(out) - 4
    buffers = out.buffers()
    first = buffers[0]
    assert isinstance(first, bytearray)
    first[:4] = size.to_bytes(4, "big")
    return buffers
