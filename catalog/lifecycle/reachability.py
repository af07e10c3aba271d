"""Silence of sessions and job attempts, which counts only while the catalog was reachable.

During an outage no process can send a heartbeat, so silence proves nothing. Every heartbeat of a session or a
job records that the catalog is reachable (`observe`), and so does every process that looks for silent ones. A
gap of more than `MAX_GAP_MS` between two such records is an outage. Silence counts from its end on.

A silent owner loses its session or attempt in two steps:

1. Mark: its last heartbeat is older than `silence_ms`. The next heartbeat voids the mark.
2. Fence: since the mark, and since the last outage, the catalog was seen reachable for `confirm_ms`, and no
   heartbeat came.

Each step is one statement that checks its condition under the row's lock. No step waits for a lock, so the
locks of a process that freezes within a heartbeat delay only its own session, and are ended
(`Database.end_silent_transactions`). Several processes may take the steps at once: the second condition, once
true, stays true until a heartbeat comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("reachability")
MAX_GAP_MS: Final = 10_000
"""Longest time between two records of reachability that is not an outage: five heartbeats of an agent."""
_MIN_STEP_MS: Final = 1_000


def observe(transaction: Transaction, injected_now_ms: int | None) -> None:
    """Send the statement that records that the catalog is reachable; it never waits for a lock."""
    params = {"now_ms": injected_now_ms, "max_gap_ms": MAX_GAP_MS, "min_step_ms": _MIN_STEP_MS}
    transaction.send(_SQL["observe"], params)


def silence_params(database: Database, silence_ms: int, confirm_ms: int) -> dict[str, object]:
    """Return the parameters of the statements that mark and fence."""
    return {"now_ms": database.injected_now_ms, "silence_ms": silence_ms, "confirm_ms": confirm_ms}
