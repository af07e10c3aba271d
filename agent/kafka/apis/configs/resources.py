"""The resources of configuration requests (KIP-133), and the checks of their names."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from agent.kafka.authorization import require
from agent.kafka.errors import ErrorCode, KafkaError
from catalog.groups.names import check_group_name

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from agent.security.rights import Right


class ResourceType(IntEnum):
    """Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def resource_type_of(number: int) -> ResourceType:
    """Return the resource type that a request names; raise INVALID_REQUEST if it is unknown."""
    try:
        return ResourceType(number)
    except ValueError:
        raise KafkaError(ErrorCode.invalid_request, f"unknown resource type {number}") from None


def require_right(
    context: RequestContext, kind: ResourceType, name: str, *, on_topic: Right, on_group: Right, else_: Right
) -> None:
    """Raise the error of a refusal unless the client has the right that the type of a resource needs.

    Settings of brokers, loggers and client metrics belong to the cluster.
    """
    if kind is ResourceType.TOPIC:
        require(context, on_topic, name)
    elif kind is ResourceType.GROUP:
        require(context, on_group, name)
    else:
        require(context, else_)


def require_resource_name(name: str) -> None:
    """Raise INVALID_REQUEST if the name is empty."""
    if not name:
        raise KafkaError(ErrorCode.invalid_request, "the resource name must not be empty")


def require_group_name(name: str) -> None:
    """Raise INVALID_REQUEST if the name is empty, or InvalidGroupError if no group may have it."""
    require_resource_name(name)
    check_group_name(name)


def require_own_broker(name: str, context: RequestContext) -> None:
    """Raise INVALID_REQUEST unless the name is the node id of this broker."""
    own = context.services.brokers.own.node_id
    if name != str(own):
        raise KafkaError(ErrorCode.invalid_request, f"this is broker {own}, not broker {name!r}")
