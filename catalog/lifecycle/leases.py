"""Leases of periodic tasks, so that one process at a time runs each of them.

A lease only saves work. A process may pause beyond the end of its lease, so a task must be harmless if two
processes run it at once: each transaction of a task checks its own conditions. Times are the catalog's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.pool import Database, Transaction

_SQL = load_queries("leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Outcome of an attempt to take a lease.

    `success_age_ms` is the age of the task's last successful round in any process, None if there was none.
    """

    is_held: bool
    success_age_ms: int | None


class Leases:
    """Leases of periodic tasks; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(self, name: str, holder_id: UUID, duration_ms: int) -> Lease:
        """Take or renew the lease of a task for `duration_ms`, unless another process holds it."""

        def work(transaction: Transaction) -> Lease:
            now_ms = transaction.now_ms()
            params = {"name": name, "holder_id": holder_id, "duration_ms": duration_ms, "now_ms": now_ms}
            transaction.send(_SQL["acquire"], params)
            (row,) = transaction.rows(_SQL["find_lease"], params)
            age_ms = None if row.succeeded_ms is None else max(0, now_ms - row.succeeded_ms)
            return Lease(is_held=row.holder_id == holder_id, success_age_ms=age_ms)

        return self._database.transact("leases.acquire", work)

    def renew(self, name: str, holder_id: UUID, duration_ms: int) -> bool:
        """Prolong a lease; return False if another process holds it now."""

        def work(transaction: Transaction) -> int:
            params = {"name": name, "holder_id": holder_id, "duration_ms": duration_ms}
            return transaction.count(_SQL["renew"], {**params, "now_ms": transaction.now_ms()})

        return self._database.transact("leases.renew", work) == 1

    def record_success(self, name: str) -> None:
        """Record that a round of a task has succeeded."""

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["record_success"], {"name": name, "now_ms": transaction.now_ms()})

        self._database.transact("leases.record_success", work)

    def release(self, holder_id: UUID) -> None:
        """Give up all leases of a process."""
        self._database.transact(
            "leases.release", lambda transaction: transaction.send(_SQL["release"], {"holder_id": holder_id})
        )
