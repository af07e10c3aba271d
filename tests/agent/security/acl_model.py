"""A slow model of Kafka's rules for ACLs: it goes through all of them for each decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.security.acl_bindings import Operation, PatternType, Permission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.security.rights import Right
    from catalog.security.acl_bindings import AclBinding


def is_allowed(
    bindings: Sequence[AclBinding], principal: str, host: str, right: Right, name: str, *, by_default: bool
) -> bool:
    """Decide as Kafka's documentation says."""
    of_resource = [
        each
        for each in bindings
        if each.resource_type == right.resource_type
        and (
            each.resource_name in {name, "*"}
            if each.pattern_type is PatternType.LITERAL
            else name.startswith(each.resource_name)
        )
    ]
    if not of_resource:
        return by_default
    of_client = [each for each in of_resource if concerns(each, principal, host)]
    denied = {each.operation for each in of_client if each.permission is Permission.DENY}
    allowed = {each.operation for each in of_client if each.permission is Permission.ALLOW}
    if denied & {right.operation, Operation.ALL}:
        return False
    if right.operation is Operation.DESCRIBE and allowed & {
        Operation.READ,
        Operation.WRITE,
        Operation.DELETE,
        Operation.ALTER,
    }:
        return True
    if right.operation is Operation.DESCRIBE_CONFIGS and Operation.ALTER_CONFIGS in allowed:
        return True
    return bool(allowed & {right.operation, Operation.ALL})


def allows_any(bindings: Sequence[AclBinding], principal: str, host: str, right: Right) -> bool:
    """Decide as Kafka's Authorizer.authorizeByResourceType does without super users and defaults."""
    of_client = [
        each
        for each in bindings
        if each.resource_type == right.resource_type
        and concerns(each, principal, host)
        and each.operation in {right.operation, Operation.ALL}
    ]
    patterns = {
        (permission, kind): {
            each.resource_name
            for each in of_client
            if each.permission is permission and each.pattern_type is kind
        }
        for permission in (Permission.ALLOW, Permission.DENY)
        for kind in (PatternType.LITERAL, PatternType.PREFIXED)
    }
    denied_literals = patterns[Permission.DENY, PatternType.LITERAL]
    denied_prefixes = patterns[Permission.DENY, PatternType.PREFIXED]
    if "*" in denied_literals:
        return False
    if "*" in patterns[Permission.ALLOW, PatternType.LITERAL]:
        return True
    for kind in (PatternType.LITERAL, PatternType.PREFIXED):
        for name in patterns[Permission.ALLOW, kind]:
            if kind is PatternType.LITERAL and name in denied_literals:
                continue
            if not any(name[:length] in denied_prefixes for length in range(1, len(name) + 1)):
                return True
    return False


def concerns(binding: AclBinding, principal: str, host: str) -> bool:
    """Return True if the ACL names this client."""
    return binding.principal in {principal, "User:*"} and binding.host in {host, "*"}
