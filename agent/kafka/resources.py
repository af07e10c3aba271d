"""What configuration requests are about: KIP-133's kinds of resource."""

from __future__ import annotations

from enum import IntEnum

from agent.kafka.errors import ErrorCode, KafkaError


class ResourceType(IntEnum):
    """Kafka's ConfigResource.Type, as far as anything here has settings."""

    TOPIC = 2
    BROKER = 4


def require_topic(resource_type: int) -> None:
    """Raise unless the resource is a topic: nothing else can be changed while it runs."""
    if resource_type != ResourceType.TOPIC:
        raise KafkaError(
            ErrorCode.invalid_request, f"resources of type {resource_type} cannot be changed; topics can"
        )
