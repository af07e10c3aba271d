"""Who may still commit an object that the catalog does not have: the session or the job in its name."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from catalog.errors import JobNotFoundError
from catalog.model import JobState
from catalog.sessions import SessionState
from object_store.names import CompactedName, IngestionName

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.open import Catalog


class Ownership(StrEnum):
    """Whether somebody may still make an object part of the log."""

    OPEN = "open"  # the session is active, or the job is not over
    OVER = "over"  # the session has ended or was fenced, the job has completed or failed: for good
    UNKNOWN = "unknown"  # the catalog has never heard of it: perhaps it is the wrong catalog


class Owners:
    """Asks the catalog about owners; remembers the last one, as names of one owner come together."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._last: tuple[UUID, Ownership] | None = None

    def of(self, name: IngestionName | CompactedName) -> Ownership:
        """The state of the owner in `name`; OVER stays OVER, the others may change at any time."""
        owner_id = name.session_id if isinstance(name, IngestionName) else name.job_id
        if self._last is None or self._last[0] != owner_id:
            state = self._session(owner_id) if isinstance(name, IngestionName) else self._job(owner_id)
            self._last = (owner_id, state)
        return self._last[1]

    def _session(self, session_id: UUID) -> Ownership:
        session = self._catalog.sessions.get(session_id)
        if session is None:
            return Ownership.UNKNOWN
        return Ownership.OPEN if session.state is SessionState.ACTIVE else Ownership.OVER

    def _job(self, job_id: UUID) -> Ownership:
        try:
            job = self._catalog.jobs.get(job_id)
        except JobNotFoundError:
            return Ownership.UNKNOWN
        return Ownership.OVER if job.state in {JobState.COMPLETED, JobState.FAILED} else Ownership.OPEN
