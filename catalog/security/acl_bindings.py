"""ACL bindings and their filters, with Kafka's names, codes and rules (AclBinding, AclBindingFilter).

A binding allows or denies a principal an operation on the resources that a pattern names. A filter selects
bindings: None and `ANY` match everything.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import Final, NamedTuple

from catalog.errors import InvalidAclError

WILDCARD: Final = "*"
"""A literal resource name that stands for all resources of its type, and a host that stands for all hosts."""

ANY_USER: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""

MAX_NAME_BYTES: Final = 2500
MAX_PRINCIPAL_BYTES: Final = 1024


class ResourceType(IntEnum):
    """Kafka's ResourceType. The catalog stores no ACL of `DELEGATION_TOKEN` and `USER`."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's PatternType. `ANY` and `MATCH` occur in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's AclOperation. `ANY` occurs in filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Kafka's AclPermissionType. `ANY` occurs in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class AclBinding(NamedTuple):
    """One ACL. `principal` is a type and a name, such as `User:alice`."""

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def check(self) -> None:
        """Raise InvalidAclError unless the catalog can store the binding, and an authorizer can apply it."""
        if self.resource_type not in _STORED_TYPES:
            raise InvalidAclError(
                f"there are no ACLs of resources of type {self.resource_type.name}",
                remedy="name a topic, a group, the cluster or a transactional id",
            )
        if self.pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
            raise InvalidAclError("the pattern of an ACL is literal or prefixed")
        if self.operation is Operation.ANY or self.permission is Permission.ANY:
            raise InvalidAclError("an ACL has one operation and one permission")
        _check_resource_name(self)
        _check_text("principal", self.principal, MAX_PRINCIPAL_BYTES)
        if not is_principal(self.principal):
            raise InvalidAclError(
                f"{self.principal!r} is not a principal", remedy="write TYPE:NAME, such as User:alice"
            )
        if canonical_host(self.host) is None:
            raise InvalidAclError(
                f"host {self.host[:80]!r} is not an IP address", remedy="name an IP address, or * for all"
            )


class AclFilter(NamedTuple):
    """A selection of bindings. None and `ANY` match everything.

    `PatternType.MATCH` selects the bindings that apply to a resource of this name.
    """

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, binding: AclBinding) -> bool:
        """Return True if the filter selects the binding."""
        return (
            self.resource_type in {ResourceType.ANY, binding.resource_type}
            and self._matches_pattern(binding)
            and self.principal in {None, binding.principal}
            and self.host in {None, binding.host}
            and self.operation in {Operation.ANY, binding.operation}
            and self.permission in {Permission.ANY, binding.permission}
        )

    def _matches_pattern(self, binding: AclBinding) -> bool:
        wanted, name = self.pattern_type, self.resource_name
        if wanted not in {PatternType.ANY, PatternType.MATCH, binding.pattern_type}:
            return False
        if name is None:
            return True
        if wanted is not PatternType.MATCH:
            return name == binding.resource_name
        if binding.pattern_type is PatternType.PREFIXED:
            return name.startswith(binding.resource_name)
        return binding.resource_name in {name, WILDCARD}


_STORED_TYPES: Final = frozenset(
    {ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID}
)


def is_principal(text: str) -> bool:
    """Return True if the text is a type and a name with a colon between them."""
    kind, separator, name = text.partition(":")
    return bool(kind and separator and name)


def canonical_host(host: str) -> str | None:
    """Return the one form of an IP address, `*` unchanged, and None for other text.

    A dual-stack socket shows IPv4 clients as mapped IPv6 addresses. They get the form of IPv4.
    """
    if host == WILDCARD:
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _check_resource_name(binding: AclBinding) -> None:
    _check_text("resource", binding.resource_name, MAX_NAME_BYTES)
    if binding.resource_type is not ResourceType.CLUSTER:
        return
    if binding.resource_name != CLUSTER_NAME or binding.pattern_type is not PatternType.LITERAL:
        raise InvalidAclError(f"the only valid name of the CLUSTER resource is {CLUSTER_NAME}")


def _check_text(what: str, text: str, max_bytes: int) -> None:
    if not text or "\0" in text:
        raise InvalidAclError(f"the name of the {what} must not be empty, and must not contain a NUL")
    if len(text.encode()) > max_bytes:
        raise InvalidAclError(f"the name of the {what} has more than {max_bytes} bytes")
