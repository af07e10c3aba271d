"""Shared looks: what planners remember of the last look at the catalog, so that they need not repeat it.

A look that planned nothing would plan nothing again until a time that it knows, unless something changes.
Triggers note each change in its own transaction, so that it becomes visible together with its note. A look
first consumes the notes, and then reads the catalog. It therefore sees each change whose note it consumed.
New ingestion files are not noted, because every commit would have to write. Planners ask for them.

One look runs at a time. The lease only saves work: after it, another planner begins a look, and the outcome
of the older one is ignored. Times are the catalog's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.pool import Database, Transaction
    from core.ids import Ids

_SQL = load_queries("looks")
LOOK_MS: Final = 60_000


class LastLook(NamedTuple):
    """The last look of any planner.

    `is_due` if the catalog may need another one, apart from new ingestion files. `is_running` if a planner
    looks now.
    """

    look_id: UUID | None
    now_ms: int
    is_running: bool
    is_due: bool


class Looks:
    """The last look of the planners; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, ids: Ids) -> None:
        self._database = database
        self._ids = ids

    def last(self, settings: str) -> LastLook:
        """Return the last look; `settings` identifies what the outcome of a look depends on."""
        params = {
            "settings": settings,
            "duration_ms": LOOK_MS,
            "now_ms": self._database.injected_now_ms,
        }
        (row,) = self._database.read("looks.last", _SQL["find_look"], params)
        return LastLook(**row._asdict())

    def begin(self, settings: str, last: LastLook) -> UUID | None:
        """Begin a look and return its id; None if another planner has begun one since `last`."""
        look_id = self._ids.new_uuid()

        def work(transaction: Transaction) -> bool:
            params = {
                "look_id": look_id,
                "last_id": last.look_id,
                "settings": settings,
                "duration_ms": LOOK_MS,
                "now_ms": transaction.now_ms(),
            }
            if not transaction.count(_SQL["begin_look"], params):
                return False
            transaction.send(_SQL["consume_changes"])
            return True

        return look_id if self._database.transact("looks.begin", work) else None

    def finish(self, look_id: UUID, next_ms: int) -> None:
        """Finish a look: the next one is due at `next_ms` if nothing changes, 0 means at once."""
        params = {"look_id": look_id, "next_ms": next_ms}
        self._database.transact(
            "looks.finish", lambda transaction: transaction.send(_SQL["finish_look"], params)
        )
