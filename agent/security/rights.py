"""The rights that requests need: an operation on the resources of a type.

A right is an object that is compared by identity, because the enumerations of Kafka's codes hash slowly and a
right is looked up for each topic of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from catalog.security.acl_bindings import Operation, ResourceType


@dataclass(frozen=True, slots=True, eq=False)
class Right:
    """An operation on resources of one type."""

    resource_type: ResourceType
    operation: Operation


_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTION = ResourceType.TRANSACTIONAL_ID

READ_TOPIC: Final = Right(_TOPIC, Operation.READ)
WRITE_TOPIC: Final = Right(_TOPIC, Operation.WRITE)
CREATE_TOPIC: Final = Right(_TOPIC, Operation.CREATE)
DELETE_TOPIC: Final = Right(_TOPIC, Operation.DELETE)
ALTER_TOPIC: Final = Right(_TOPIC, Operation.ALTER)
DESCRIBE_TOPIC: Final = Right(_TOPIC, Operation.DESCRIBE)
DESCRIBE_TOPIC_CONFIGS: Final = Right(_TOPIC, Operation.DESCRIBE_CONFIGS)
ALTER_TOPIC_CONFIGS: Final = Right(_TOPIC, Operation.ALTER_CONFIGS)

READ_GROUP: Final = Right(_GROUP, Operation.READ)
DELETE_GROUP: Final = Right(_GROUP, Operation.DELETE)
DESCRIBE_GROUP: Final = Right(_GROUP, Operation.DESCRIBE)
DESCRIBE_GROUP_CONFIGS: Final = Right(_GROUP, Operation.DESCRIBE_CONFIGS)
ALTER_GROUP_CONFIGS: Final = Right(_GROUP, Operation.ALTER_CONFIGS)

WRITE_TRANSACTION: Final = Right(_TRANSACTION, Operation.WRITE)
DESCRIBE_TRANSACTION: Final = Right(_TRANSACTION, Operation.DESCRIBE)

CREATE_IN_CLUSTER: Final = Right(_CLUSTER, Operation.CREATE)
DELETE_IN_CLUSTER: Final = Right(_CLUSTER, Operation.DELETE)
ALTER_CLUSTER: Final = Right(_CLUSTER, Operation.ALTER)
DESCRIBE_CLUSTER: Final = Right(_CLUSTER, Operation.DESCRIBE)
CLUSTER_ACTION: Final = Right(_CLUSTER, Operation.CLUSTER_ACTION)
DESCRIBE_CLUSTER_CONFIGS: Final = Right(_CLUSTER, Operation.DESCRIBE_CONFIGS)
ALTER_CLUSTER_CONFIGS: Final = Right(_CLUSTER, Operation.ALTER_CONFIGS)
IDEMPOTENT_WRITE: Final = Right(_CLUSTER, Operation.IDEMPOTENT_WRITE)

SUPPORTED_OPERATIONS: Final = {
    kind: tuple(Right(kind, operation) for operation in operations)
    for kind, operations in {
        _TOPIC: (
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        _GROUP: (
            Operation.READ,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        _CLUSTER: (
            Operation.CREATE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALTER,
            Operation.DESCRIBE,
        ),
    }.items()
}
"""The operations that clients may ask for (Kafka's AclEntry.supportedOperations)."""
