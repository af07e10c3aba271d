"""APIs that agents do not serve and do not advertise.

Clients that skip ApiVersions send them nevertheless, and get UNSUPPORTED_VERSION. A Kafka broker closes the
connection of such a client, which then retries for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct


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
