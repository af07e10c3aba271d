"""Who may still commit an object that the catalog does not have: the session or the job in its name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from catalog.errors import JobNotFoundError
from catalog.lifecycle.sessions import SessionState
from catalog.model import JobState
from object_store.names import CompactedName, IngestionName

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.open import Catalog


class Ownership(StrEnum):
    """Whether somebody may still make an object part of the log."""

    OPEN = "open"  # the session is active, or the job is not over
    OVER = "over"  # the session has ended or was fenced, the job has completed or failed: for good
    UNKNOWN = "unknown"  # the catalog has never heard of it: perhaps it is the wrong catalog


@dataclass(frozen=True, slots=True)
class Owner:
    """The state of an owner; OVER stays OVER, the others may change at any time. `over_ms` is since when."""

    state: Ownership
    over_ms: int | None = None

    def over_since(self, before_ms: int) -> bool:
        """Whether it was over by then, by the catalog's time."""
        return self.over_ms is not None and self.over_ms < before_ms


class Owners:
    """Asks the catalog about owners; remembers the last one, as names of one owner come together."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._last: tuple[UUID, Owner] | None = None

    def of(self, name: IngestionName | CompactedName) -> Owner:
        """The owner in `name`."""
        owner_id = name.session_id if isinstance(name, IngestionName) else name.job_id
        if self._last is None or self._last[0] != owner_id:
            state = self._session(owner_id) if isinstance(name, IngestionName) else self._job(owner_id)
            self._last = (owner_id, state)
        return self._last[1]

    def _session(self, session_id: UUID) -> Owner:
        session = self._catalog.sessions.get(session_id)
        if session is None:
            return Owner(Ownership.UNKNOWN)
        if session.state is SessionState.ACTIVE:
            return Owner(Ownership.OPEN)
        return Owner(Ownership.OVER, session.closed_ms)

    def _job(self, job_id: UUID) -> Owner:
        try:
            job = self._catalog.jobs.get(job_id)
        except JobNotFoundError:
            return Owner(Ownership.UNKNOWN)
        if job.state in {JobState.COMPLETED, JobState.FAILED}:
            return Owner(Ownership.OVER, job.finished_ms)
        return Owner(Ownership.OPEN)
