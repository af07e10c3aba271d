"""Transactions that have outlasted their timeouts: they are aborted, and their producers fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog

from core.errors import SiltstoneError
from maintenance.report import no_progress

if TYPE_CHECKING:
    from catalog.open import Catalog
    from catalog.transactions.lookups import TimedOutTransaction
    from maintenance.report import MaintenanceReport, Progress

_log = structlog.get_logger(__name__)
# No agent ignores notifications of this origin.
_NO_ORIGIN: Final = UUID(int=0)


def abort_timed_out(catalog: Catalog, report: MaintenanceReport, progress: Progress = no_progress) -> None:
    """Abort the transactions that have lasted for longer than their timeouts, and fence their producers.

    A transaction that cannot be aborted does not hold up the others; its error is raised after them.
    """
    failures: dict[str, SiltstoneError] = {}
    while found := catalog.transaction_lookups.timed_out():
        failures = {}
        for each in found:
            error = _abort(catalog, each, report)
            if error is not None:
                failures[each.transactional_id] = error
        if len(failures) == len(found):
            break
        progress()
    for failure in failures.values():
        raise failure


def _abort(catalog: Catalog, found: TimedOutTransaction, report: MaintenanceReport) -> SiltstoneError | None:
    """Abort a transaction; return why that is not possible, or None."""
    try:
        ended = catalog.transactions.abort(
            found.transactional_id, found.producer, started_ms=found.started_ms
        )
        catalog.commits.announce(ended.partitions, _NO_ORIGIN)
        if ended.leaders:
            catalog.local_transactions.announce()
    except SiltstoneError as error:
        _log.warning(
            "a transaction could not be aborted",
            transactional_id=found.transactional_id,
            reason=str(error),
            remedy="maintenance tries again; readers of committed records wait meanwhile",
        )
        return error
    report.aborted_transactions += 1
    return None
