"""Kafka's rules for ACLs, over an immutable index of all of them.

The rules are those of Kafka's StandardAuthorizerData and of Authorizer.authorizeByResourceType:

- The ACLs of a resource are those with its name, with a prefix of its name, and with the name `*`.
- An ACL concerns a client if it names its principal or `User:*`, and its host or `*`.
- An ACL that denies the operation, or ALL, decides. Otherwise one that allows it does.
- READ, WRITE, DELETE and ALTER also allow DESCRIBE, and ALTER_CONFIGS allows DESCRIBE_CONFIGS. A denial
  implies no other.
- A resource without any ACL is decided by a setting.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from catalog.security.acl_bindings import (
    ANY_USER,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    canonical_host,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from agent.security.rights import Right
    from catalog.security.acl_bindings import AclBinding, ResourceType


class Decision(Enum):
    """Result of a search in the ACLs. `NO_ACL`: the resource has no ACL at all."""

    ALLOWED = auto()
    DENIED = auto()
    NO_ACL = auto()


class Grantee(NamedTuple):
    """A client as the ACLs see it. Clients between which no ACL distinguishes are the same grantee."""

    principal: str
    host: str


class _Entry(NamedTuple):
    host: str
    operation: Operation
    permission: Permission


_ByPrincipal: TypeAlias = "dict[str, list[_Entry]]"
_IMPLYING: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_ALLOWED_BY: Final = {each: frozenset((each, Operation.ALL, *_IMPLYING.get(each, ()))) for each in Operation}
_DENIED_BY: Final = {each: frozenset((each, Operation.ALL)) for each in Operation}


class _Patterns:
    """The ACLs of one resource type: by literal name, and by prefix."""

    def __init__(self) -> None:
        self.literal: defaultdict[str, _ByPrincipal] = defaultdict(dict)
        self.prefixed: defaultdict[str, _ByPrincipal] = defaultdict(dict)
        self.lengths: list[int] = []

    def add(self, binding: AclBinding, entry: _Entry) -> None:
        patterns = self.literal if binding.pattern_type is PatternType.LITERAL else self.prefixed
        patterns[binding.resource_name].setdefault(binding.principal, []).append(entry)

    def matching(self, name: str) -> Iterator[_ByPrincipal]:
        """Yield the ACLs of every pattern that matches a resource."""
        for literal in dict.fromkeys((name, WILDCARD)):
            if literal in self.literal:
                yield self.literal[literal]
        for length in self.lengths:
            if length > len(name):
                return
            found = self.prefixed.get(name[:length])
            if found is not None:
                yield found


class AclIndex:
    """Immutable index of all ACLs of one version; safe in any thread."""

    def __init__(self, version: UUID | None, bindings: Sequence[AclBinding]) -> None:
        self.version = version
        self.bindings = tuple(bindings)
        self._types: dict[ResourceType, _Patterns] = {}
        self._of_principal: defaultdict[tuple[ResourceType, str], list[tuple[AclBinding, _Entry]]]
        self._of_principal = defaultdict(list)
        for each in bindings:
            entry = _Entry(canonical_host(each.host) or each.host, each.operation, each.permission)
            self._types.setdefault(each.resource_type, _Patterns()).add(each, entry)
            self._of_principal[each.resource_type, each.principal].append((each, entry))
        self._hosts = {entry.host for entries in self._of_principal.values() for _, entry in entries}
        for patterns in self._types.values():
            patterns.lengths = sorted({*map(len, patterns.prefixed)})

    def decide(self, principal: str, host: str, right: Right, name: str) -> Decision:
        """Return what the ACLs say about an operation on one resource. `host` is in canonical form."""
        patterns = self._types.get(right.resource_type)
        denying, allowing = _DENIED_BY[right.operation], _ALLOWED_BY[right.operation]
        has_acls = is_allowed = False
        for by_principal in () if patterns is None else patterns.matching(name):
            has_acls = True
            for entry in _concerning(by_principal, principal, host):
                if entry.permission is Permission.ALLOW:
                    is_allowed = is_allowed or entry.operation in allowing
                elif entry.operation in denying:
                    return Decision.DENIED
        if not has_acls:
            return Decision.NO_ACL
        return Decision.ALLOWED if is_allowed else Decision.DENIED

    def grantee(self, kind: ResourceType, principal: str, host: str) -> Grantee:
        """Return what the ACLs of a resource type see of a client. `host` is in canonical form."""
        is_named = (kind, principal) in self._of_principal
        return Grantee(principal if is_named else ANY_USER, host if host in self._hosts else WILDCARD)

    def allows_any(self, principal: str, host: str, right: Right) -> bool:
        """Return True if the ACLs allow the operation on any resource of the type.

        As in Kafka, operations imply no others here, and a prefix counts as allowed although longer ones may
        be denied.
        """
        found: defaultdict[tuple[PatternType, str], set[Permission]] = defaultdict(set)
        for each in dict.fromkeys((principal, ANY_USER)):
            for binding, entry in self._of_principal.get((right.resource_type, each), ()):
                if entry.host in {WILDCARD, host} and entry.operation in _DENIED_BY[right.operation]:
                    found[binding.pattern_type, binding.resource_name].add(entry.permission)
        of_all = found.get((PatternType.LITERAL, WILDCARD), set())
        if of_all:
            return Permission.DENY not in of_all
        denied = {
            name
            for (kind, name), permissions in found.items()
            if kind is PatternType.PREFIXED and Permission.DENY in permissions
        }
        lengths = sorted({*map(len, denied)})
        return any(
            permissions == {Permission.ALLOW} and not any(name[:length] in denied for length in lengths)
            for (_, name), permissions in found.items()
        )


def _concerning(by_principal: _ByPrincipal, principal: str, host: str) -> Iterator[_Entry]:
    for each in dict.fromkeys((principal, ANY_USER)):
        for entry in by_principal.get(each, ()):
            if entry.host in {WILDCARD, host}:
                yield entry


NO_ACLS: Final = AclIndex(None, ())


@dataclass(frozen=True, slots=True, eq=False)
class AccessRules:
    """What decides about every client: super users, ACLs, and the setting for resources without any.

    Immutable, and safe in any thread. It neither caches nor logs: the authorizer does.
    """

    super_users: frozenset[str]
    allow_everyone: bool
    index: AclIndex

    def allows(self, principal: str, host: str, right: Right, name: str) -> bool:
        """Return True if a client may do an operation on one resource. `host` is in canonical form."""
        if principal in self.super_users:
            return True
        decision = self.index.decide(principal, host, right, name)
        return self.allow_everyone if decision is Decision.NO_ACL else decision is Decision.ALLOWED

    def grantee(self, kind: ResourceType, principal: str, host: str) -> Grantee:
        """Return the client as these rules see it; its decisions are those of the client."""
        if principal in self.super_users:
            return Grantee(principal, WILDCARD)
        return self.index.grantee(kind, principal, canonical_host(host) or host)
