"""APIs of features that the agent does not have: reassignments.

Clients that use one of these features learn from the response that the agent does not have it. Without the
API they would report an unsupported version, or try again until they time out. Requests that list things
succeed, and list nothing: consoles ask for them to draw a page.

Each row of the table names an API, its versions, the rejection, and the function that writes the rejection
into that API's response. Most responses carry the error code once for each item of the request.

`UNSERVED_APIS` are not advertised. Clients that skip ApiVersions send them nevertheless, and get
UNSUPPORTED_VERSION. A Kafka broker closes the connection of such a client, which then retries for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.security.rights import DESCRIBE_CLUSTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kafka.api_definition import RequestContext


@dataclass(frozen=True, slots=True)
class Rejection:
    """The error code of a rejected API. `reason` is sent in responses that have a field for a message."""

    code: ErrorCode
    reason: str


@dataclass(frozen=True, slots=True)
class RejectedApi:
    """One API whose requests are rejected. `respond` builds its response for one request."""

    name: str
    min_version: int
    max_version: int
    rejection: Rejection
    respond: Callable[[Rejection, Struct, RequestContext], Struct]

    @property
    def api(self) -> Api:
        """The entry of the dispatch table."""
        return Api(
            name=self.name, min_version=self.min_version, max_version=self.max_version, handle=self._handle
        )

    async def _handle(self, request: Struct, context: RequestContext) -> Struct:
        return self.respond(self.rejection, request, context)


def _list_reassignments(rejection: Rejection, request: Struct, context: RequestContext) -> Struct:
    del request
    require(context, DESCRIBE_CLUSTER)
    return Struct(error_code=rejection.code, topics=[])


_NO_REASSIGNMENTS = Rejection(ErrorCode.none, "partitions in the object store have nothing to move")

REJECTED_APIS: tuple[RejectedApi, ...] = (
    RejectedApi("list_partition_reassignments", 0, 0, _NO_REASSIGNMENTS, _list_reassignments),
)


async def _refuse(request: Struct, context: RequestContext) -> Struct:
    del request, context
    raise KafkaError(ErrorCode.unsupported_version, "the agent does not serve this API")


UNSERVED_APIS: tuple[Api, ...] = tuple(
    Api(
        name=name,
        min_version=lowest,
        max_version=highest,
        handle=_refuse,
        is_advertised=False,
    )
    for name, lowest, highest in (
        ("create_delegation_token", 1, 3),
        ("renew_delegation_token", 1, 2),
        ("expire_delegation_token", 1, 2),
        ("describe_delegation_token", 1, 3),
        ("elect_leaders", 1, 2),
        ("describe_quorum", 0, 2),
        ("update_features", 0, 2),
        ("unregister_broker", 0, 0),
        ("get_telemetry_subscriptions", 0, 0),
        ("push_telemetry", 0, 0),
        ("share_group_heartbeat", 1, 1),
        ("share_fetch", 1, 2),
        ("share_acknowledge", 1, 2),
        ("streams_group_heartbeat", 0, 0),
    )
)
