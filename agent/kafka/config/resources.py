"""What configuration requests are about: KIP-133's kinds of resource."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from agent.kafka.errors import ErrorCode, KafkaError
from catalog.groups.names import check_group_name

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


class ResourceType(IntEnum):
    """Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def resource_type_of(number: int) -> ResourceType:
    """The kind of resource that a request names; raises INVALID_REQUEST for one that nobody knows."""
    try:
        return ResourceType(number)
    except ValueError:
        raise KafkaError(ErrorCode.invalid_request, f"there are no resources of type {number}") from None


def require_name(name: str) -> None:
    """Raise INVALID_REQUEST unless a resource has a name."""
    if not name:
        raise KafkaError(ErrorCode.invalid_request, "the resource must have a name")


def require_group_name(name: str) -> None:
    """Raise unless a group may have that name: INVALID_REQUEST for none, InvalidGroupError for a bad one."""
    require_name(name)
    check_group_name(name)


def require_own(name: str, context: RequestContext) -> None:
    """Raise INVALID_REQUEST unless a resource is this broker's."""
    own = context.services.brokers.own.node_id
    if name != str(own):
        raise KafkaError(ErrorCode.invalid_request, f"broker {own} was asked about broker {name!r}")
