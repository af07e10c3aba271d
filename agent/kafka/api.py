"""What an API of the protocol is to the dispatch: a name, versions, and what answers it.

One module of `agent.kafka.apis` makes one `Api`; `agent.kafka.table` lists them. A handler gets the request
as a `Struct` with the fields of every version, and returns

- a `Struct`: the answer;
- a `Later`: the answer to come. The connection's next request is taken meanwhile, answers keep their order;
- None: nobody wants an answer.

An API may also take usual requests `at_once`: from their bytes to those of the answer, past the structs. Some
of them take a while nevertheless; the connection's next request waits for them as for a handler.

Whatever a handler raises becomes the answer of `refuse`: by default one with that error code at its top.
Requests of one connection are handled one after the other, so a handler may rely on their order.
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
    from agent.kafka.services import Services

MAX_ITEMS = 20_000
"""Of a request, unless its API says else: an item may take a microsecond to read and a kilobyte to answer."""


# Not frozen, for a request makes one of each and frozen ones take three times as long to make.
@dataclass(slots=True, kw_only=True)
class Context:
    """Who asks, and what there is to answer with. `client_host` is an address without its port.

    A handler whose answer holds memory adds to `releases` what lets go of it: that is called once the
    answer's bytes have left, or when it comes to nothing.
    """

    services: Services
    version: int
    client_id: str | None
    client_host: str
    apis: Mapping[int, Api] = field(repr=False)
    releases: list[Callable[[], None]] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Later:
    """An answer to come: `answer` is called and awaited once, in the order of the connection's requests.

    It is not called at all when the connection is lost before.
    """

    answer: Callable[[], Awaitable[Struct]]


@dataclass(slots=True)
class RetainedBuffers:
    """An answer that holds memory: `release` is to be called once, when it has left or is given up."""

    buffers: Buffers
    releases: list[Callable[[], None]]

    def release(self) -> None:
        """Let go of the memory."""
        for release in self.releases:
            release()


class AtOnce(Protocol):
    """Takes requests past the structs; belongs to one dispatch.

    Both ways give None for a request that has to go the usual way; nothing was done for it then. It is judged
    there from its begin, and so is everything that is wrong with it.
    """

    def take(
        self, frame: RequestFrame, context: Context
    ) -> Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | None:
        """Without a step between, the whole answer, or what gives it, called once as that of a `Later`.

        No buffers: nobody wants an answer.
        """
        ...

    async def take_in_turn(
        self, frame: RequestFrame, context: Context
    ) -> Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | Struct | None:
        """As `take`, which gave None; the connection's next request waits. A struct is yet to be written."""
        ...


class RequestFrame(NamedTuple):
    """A request as it came; `position` is where its body begins."""

    data: memoryview
    position: int
    is_flexible: bool
    correlation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: `name` is its schema's (`list_offsets`), versions are inclusive.

    `advertised_lowest` is for an API that old clients must see in a version that nobody serves. A request
    that `outlives_client` is handled also when its connection is lost before its turn comes. One that
    `carries_records` has few items for its bytes, and an answer that `gives_records` is counted where they
    were read. `most_items` bounds what all arrays of a request may hold: beyond it the request is not read
    on, and its connection is closed.
    """

    name: str
    lowest: int
    highest: int
    handle: Callable[[Struct, Context], Awaitable[Struct | Later | None]]
    at_once: Callable[[], AtOnce] | None = None
    refuse: Callable[[Struct, Context, Exception], Struct] | None = None
    advertised_lowest: int | None = None
    outlives_client: bool = False
    carries_records: bool = False
    gives_records: bool = False
    most_items: int = MAX_ITEMS

    @property
    def key(self) -> int:
        """Kafka's number of the API."""
        return api_key_of(self.name)

    @property
    def advertised(self) -> tuple[int, int]:
        """The versions that clients are told."""
        return self.lowest if self.advertised_lowest is None else self.advertised_lowest, self.highest

    def refusal(self, request: Struct, context: Context, error: Exception) -> Struct:
        """The answer when `error` came in the way; raises it when the API has no place for a code."""
        if self.refuse is not None:
            return self.refuse(request, context, error)
        known = Message.of(self.name, context.version).response_defaults
        if "error_code" not in known:
            raise error
        words = {"error_message": message_of(error)} if "error_message" in known else {}
        return Struct(error_code=code_of(error), **words)
