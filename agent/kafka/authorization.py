"""Authorized operations, as the bit fields in the responses of describe requests (KIP-430).

Without an authorizer, a client may do every operation that Kafka knows for a resource
(AclEntry.supportedOperations). The bit positions are Kafka's codes of the operations.
"""

from __future__ import annotations

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12
NOT_REQUESTED = -(2**31)
"""The value for a client that did not ask for authorized operations."""


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


ON_TOPIC = _bits(_READ, _WRITE, _CREATE, _DESCRIBE, _DELETE, _ALTER, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
ON_GROUP = _bits(_READ, _DESCRIBE, _DELETE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
ON_CLUSTER = _bits(
    _CREATE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE, _ALTER, _DESCRIBE
)


def operations_if_requested(operations: int, *, requested: object) -> int:
    """Return the operations if the client asked for them, and `NOT_REQUESTED` otherwise."""
    return operations if requested else NOT_REQUESTED
