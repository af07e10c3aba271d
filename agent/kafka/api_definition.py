"""The interface between the dispatcher and the APIs: names, versions, handlers and fast paths.

Each API defines one `Api`; `agent.kafka.api_registry` lists them. A handler gets the request as a `Struct`
with the fields of every version. It returns

- a `Struct`: the response;
- a `DeferredResponse`: a response that is still to come. The connection handles the next request meanwhile,
  and sends the responses in the order of the requests;
- None: the request has no response.

The exception that a handler raises becomes an error response (`Api.error_response`). The requests of one
connection are handled in order, and a handler may rely on that.

An API may also have a `FastPath`, which turns the bytes of common requests into those of their responses
without structs in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from agent.kafka.codec.messages import Message, api_key_of
from agent.kafka.codec.struct import Struct
from agent.kafka.errors import code_of, message_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent.kafka.codec.writing import Buffers
    from agent.kafka.services import KafkaServices
    from agent.security.identity import Client

MAX_ITEMS = 20_000
"""Default bound on the items of a request: an item may take 1 µs to read and 1 KiB in the response."""


# Not frozen: every request needs one, and constructing a frozen dataclass takes three times as long.
@dataclass(slots=True, kw_only=True)
class RequestContext:
    """The client, its request's version, and the services that handlers call.

    `arrived_at` is a monotonic time that is not after the arrival of the request at the agent's machine.
    A handler whose response retains memory appends a callback to `releases`. It is called once the bytes of
    the response have left, or when the response is dropped.
    """

    services: KafkaServices
    version: int
    client_id: str | None
    client: Client
    arrived_at: float
    apis: Mapping[int, Api] = field(repr=False)
    releases: list[Callable[[], None]] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class DeferredResponse:
    """A response that is still to come.

    The connection calls and awaits `result` once, in the order of its requests. It does not call it at all
    when the client disconnects first.
    """

    result: Callable[[], Awaitable[Struct]]


@dataclass(slots=True)
class RetainedBuffers:
    """A response that retains memory. Call `release` once, when it has left or is dropped."""

    buffers: Buffers
    releases: list[Callable[[], None]]

    def release(self) -> None:
        """Release the memory."""
        for release in self.releases:
            release()


class FastPath(Protocol):
    """Handles common requests without structs. Each dispatcher has its own instance.

    Both methods return None for a request that they do not handle. They have no effect on it then: the API's
    ordinary handler processes it from the start, and reports any error in it.
    """

    def try_handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | None:
        """Handle the request without waiting, and return its response or a deferred one.

        An empty list of buffers means that the request has no response.
        """
        ...

    async def handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | Struct | None:
        """Handle a request that `try_handle` rejected, while the connection's next request waits.

        A struct is returned where the response is not encoded yet.
        """
        ...


class RequestFrame(NamedTuple):
    """A request as received; its body starts at `position`."""

    data: memoryview
    position: int
    is_flexible: bool
    correlation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: `name` is that of its schema (`list_offsets`), versions are inclusive.

    - `advertised_min_version`: a lower version to advertise for old clients, which no handler serves.
    - `is_advertised`: ApiVersions reports the API.
    - `outlives_client`: handle queued requests even after their client has disconnected.
    - `request_has_records`: most bytes of a request are records, so that it has few items for its size.
    - `response_has_records`: the memory of a response is counted where its records were read.
    - `max_items`: bound on the items in all arrays of a request. Beyond it the connection is closed.
    """

    name: str
    min_version: int
    max_version: int
    handle: Callable[[Struct, RequestContext], Awaitable[Struct | DeferredResponse | None]]
    fast_path: Callable[[], FastPath] | None = None
    error_response: Callable[[Struct, RequestContext, Exception], Struct] | None = None
    advertised_min_version: int | None = None
    is_advertised: bool = True
    outlives_client: bool = False
    request_has_records: bool = False
    response_has_records: bool = False
    max_items: int = MAX_ITEMS

    @property
    def key(self) -> int:
        """Kafka's number of the API."""
        return api_key_of(self.name)

    @property
    def advertised_versions(self) -> tuple[int, int]:
        """The lowest and the highest version that ApiVersions reports."""
        lowest = self.min_version if self.advertised_min_version is None else self.advertised_min_version
        return lowest, self.max_version

    def error_response_for(self, request: Struct, context: RequestContext, error: Exception) -> Struct:
        """Return the response that reports `error`; raise it if the response has no error code."""
        if self.error_response is not None:
            return self.error_response(request, context, error)
        known = Message.of(self.name, context.version).response_defaults
        if "error_code" not in known:
            raise error
        message = {"error_message": message_of(error)} if "error_message" in known else {}
        return Struct(error_code=code_of(error), **message)
