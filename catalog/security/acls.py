"""The stored ACLs, and the channel on which their changes are notified.

A change locks the row of `acl_state`, so changes follow each other, and gives it a new random version. Equal
versions therefore mean equal ACLs, also after a failover that has lost changes: a number could come again.
The notification is part of the transaction. It is a hint, and readers also poll the version.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import InvalidAclError
from catalog.security.acl_bindings import AclBinding, Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.security.acl_bindings import AclFilter

_SQL = load_queries("acls")
ACL_CHANNEL: Final = "siltstone_acls"
MAX_ACLS: Final = 20_000
"""Maximum number of ACLs. Every agent keeps all of them in memory."""


class StoredAcls(NamedTuple):
    """All ACLs at one moment, and their version."""

    version: UUID
    bindings: list[AclBinding]


class Acls:
    """ACLs of the cluster; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self, known: UUID | None = None) -> StoredAcls | None:
        """Return all ACLs; None if their version is still `known`. This is one statement in each case."""
        rows = self._database.read("acls.load", _SQL["load_acls"], {"known": known})
        version: UUID = rows[0].version
        if version == known:
            return None
        return StoredAcls(version, [_binding(row) for row in rows if row.resource_name is not None])

    def add(self, bindings: Collection[AclBinding]) -> int:
        """Add the ACLs that are missing; return their number. All are added, or none.

        InvalidAclError: a binding is invalid, or there would be more than `MAX_ACLS`.
        """
        for each in bindings:
            each.check()
        if not bindings:
            return 0
        distinct = list(dict.fromkeys(bindings))

        def work(transaction: Transaction) -> int:
            transaction.rows(_SQL["lock_acl_state"])
            added = len(transaction.rows(_SQL["add_acls"], _columns(distinct)))
            if added:
                self._end_change(transaction)
            return added

        return self._database.transact("acls.add", work)

    def remove(self, filters: Sequence[AclFilter]) -> list[list[AclBinding]]:
        """Remove the ACLs that any filter selects; return the selected ones for each filter."""

        def work(transaction: Transaction) -> list[list[AclBinding]]:
            transaction.rows(_SQL["lock_acl_state"])
            known = [
                _binding(row)
                for row in transaction.rows(_SQL["load_acls"], {"known": None})
                if row.resource_name is not None
            ]
            selected = [[each for each in known if wanted.matches(each)] for wanted in filters]
            removed = {each for some in selected for each in some}
            if removed:
                transaction.send(_SQL["remove_acls"], {"digests": arrays.byteas([*map(_digest, removed)])})
                self._end_change(transaction)
            return selected

        return self._database.transact("acls.remove", work)

    def _end_change(self, transaction: Transaction) -> None:
        params = {"version": self._database.new_uuid(), "channel": ACL_CHANNEL}
        if transaction.rows(_SQL["change_acl_state"], params)[0].acls > MAX_ACLS:
            raise InvalidAclError(
                f"there would be more than {MAX_ACLS} ACLs", remedy="use prefixed patterns, or remove some"
            )


def _columns(bindings: Sequence[AclBinding]) -> dict[str, object]:
    return {
        "digests": arrays.byteas([*map(_digest, bindings)]),
        "resource_types": arrays.integers([each.resource_type for each in bindings]),
        "pattern_types": arrays.integers([each.pattern_type for each in bindings]),
        "resource_names": [each.resource_name for each in bindings],
        "principals": [each.principal for each in bindings],
        "hosts": [each.host for each in bindings],
        "operations": arrays.integers([each.operation for each in bindings]),
        "permissions": arrays.integers([each.permission for each in bindings]),
    }


def _digest(binding: AclBinding) -> bytes:
    """Return the key of a binding, which is short enough for an index. No text in it contains a NUL."""
    parts = [each if isinstance(each, str) else str(int(each)) for each in binding]
    return hashlib.sha256("\0".join(parts).encode()).digest()


def _binding(row: Row) -> AclBinding:
    return AclBinding(
        ResourceType(row.resource_type),
        PatternType(row.pattern_type),
        row.resource_name,
        row.principal,
        row.host,
        Operation(row.operation),
        Permission(row.permission),
    )
