"""The authorizer: super users first, then the ACLs, then the setting for resources without any.

Decisions are cached for each connection. A cached decision holds for one index of ACLs and one principal, so
that another version of the ACLs ends all of them.
"""

from __future__ import annotations

from dataclasses import replace
from sys import getsizeof
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from agent.security.acl_rules import NO_ACLS, AccessRules
from agent.security.identity import Decisions
from agent.security.rights import SUPPORTED_OPERATIONS
from catalog.security.acl_bindings import CLUSTER_NAME, canonical_host, is_principal
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from agent.security.acl_rules import AclIndex
    from agent.security.audit import AuditLog
    from agent.security.identity import Client
    from agent.security.rights import Right
    from catalog.security.acl_bindings import ResourceType

MAX_CACHED_BYTES: Final = 32 * 1024 * 1024
"""Bound on the cached decisions of all connections. Beyond it, all of them are forgotten."""

_BYTES_PER_DECISION = 200  # without the name


def parse_super_users(text: str) -> frozenset[str]:
    """Return the principals of Kafka's `super.users`: TYPE:NAME, separated by semicolons.

    A name may contain commas, as the distinguished name of a certificate does.
    """
    names = [each.strip() for each in text.split(";")]
    for name in names:
        if name and not is_principal(name):
            raise InvalidInputError(
                f"super_users has {name!r}, which is not a principal",
                remedy="write TYPE:NAME, such as User:admin, and separate principals by semicolons",
            )
    return frozenset(filter(None, names))


class Authorizer:
    """Decides what the client of a connection may do. Belongs to the event loop."""

    def __init__(self, *, super_users: str, allow_everyone: bool, audit: AuditLog) -> None:
        """Take Kafka's `super.users` and `allow.everyone.if.no.acl.found`. There are no ACLs at first."""
        self._rules = AccessRules(parse_super_users(super_users), allow_everyone, NO_ACLS)
        self._cached: WeakSet[Decisions] = WeakSet()
        self._cached_bytes = 0
        self.audit = audit

    @property
    def index(self) -> AclIndex:
        """The current ACLs."""
        return self._rules.index

    @property
    def rules(self) -> AccessRules:
        """All that decides now, for checks outside the event loop."""
        return self._rules

    def replace(self, index: AclIndex) -> None:
        """Decide by these ACLs from now on."""
        self._rules = replace(self._rules, index=index)
        self._forget_decisions()

    def allows(
        self, client: Client, right: Right, name: str = CLUSTER_NAME, *, log_denied: bool = True
    ) -> bool:
        """Return True if the client may do an operation on one resource; log the decision."""
        by_name = self._decisions(client).by_right[right]
        is_allowed = by_name.get(name)
        if is_allowed is None:
            is_allowed = self.decide(client, right, name)
            self._count(getsizeof(name))
            by_name[name] = is_allowed
        if self.audit.logs_allowed if is_allowed else log_denied:
            self.audit.record(client, right, name, is_allowed=is_allowed)
        return is_allowed

    def cached(self, client: Client, right: Right) -> dict[str, bool]:
        """Return the cached decisions for a right, for callers with many names.

        It has no decision that must be logged each time: those callers use `allows` for what is missing or
        False. Do not change it, and do not keep it.
        """
        return {} if self.audit.logs_allowed else self._decisions(client).by_right[right]

    def allows_any(self, client: Client, right: Right) -> bool:
        """Return True if the client may do an operation on any resource (Kafka's authorizeByResourceType)."""
        decisions = self._decisions(client)
        is_allowed = decisions.any_of.get(right)
        if is_allowed is None:
            principal, host = str(client.principal), _host(client)
            is_allowed = self.decide(client, right, "hardcode") or self.index.allows_any(
                principal, host, right
            )
            decisions.any_of[right] = is_allowed
        return is_allowed

    def decide(self, client: Client, right: Right, name: str) -> bool:
        """Return True if the client may do an operation on one resource; neither cache nor log it."""
        return self._rules.allows(str(client.principal), _host(client), right, name)

    def operations(self, client: Client, kind: ResourceType, name: str) -> int:
        """Return the bit field of the operations that the client may do (KIP-430)."""
        return sum(
            1 << right.operation for right in SUPPORTED_OPERATIONS[kind] if self.decide(client, right, name)
        )

    def _decisions(self, client: Client) -> Decisions:
        decisions = client.decisions
        if (
            decisions is None
            or decisions.index is not self.index
            or decisions.principal is not client.principal
        ):
            decisions = client.decisions = Decisions(self.index, client.principal)
            self._cached.add(decisions)
        return decisions

    def _count(self, name_bytes: int) -> None:
        """Count a new cached decision. Those of closed connections count until all are forgotten."""
        self._cached_bytes += _BYTES_PER_DECISION + name_bytes
        if self._cached_bytes > MAX_CACHED_BYTES:
            self._forget_decisions()

    def _forget_decisions(self) -> None:
        for decisions in self._cached:
            for by_name in decisions.by_right.values():
                by_name.clear()
        self._cached_bytes = 0


def _host(client: Client) -> str:
    return canonical_host(client.host) or client.host
