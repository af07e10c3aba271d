"""Owners of objects: the session or job in an object's name, which may still commit it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from catalog.errors import JobNotFoundError
from catalog.lifecycle.expiry import OwnerKind
from catalog.lifecycle.sessions import SessionState
from catalog.model import JobState
from object_store.names import CompactedName, IngestionName

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.open import Catalog


class Ownership(StrEnum):
    """State of an owner: whether it may still make an object part of the log."""

    OPEN = "open"  # the session is active, or the job is unfinished
    ENDED = "ended"  # the session ended or was fenced, or the job completed or failed; final
    UNKNOWN = "unknown"  # not in the catalog: perhaps it is the wrong catalog


@dataclass(frozen=True, slots=True)
class Owner:
    """State of an owner.

    ENDED is final; the other states may change at any time. `ended_ms` is the time of the end. The objects of
    an unsettled owner are kept.
    """

    state: Ownership
    ended_ms: int | None = None
    is_unsettled: bool = False

    def ended_before(self, before_ms: int) -> bool:
        """Return True if the owner ended before `before_ms`, by the catalog's time."""
        return self.ended_ms is not None and self.ended_ms < before_ms


def owner_of(name: IngestionName | CompactedName) -> tuple[OwnerKind, UUID]:
    """Return the kind and the id of the owner in `name`."""
    if isinstance(name, IngestionName):
        return OwnerKind.SESSION, name.session_id
    return OwnerKind.JOB, name.job_id


class Owners:
    """Looks up owners in the catalog. Caches the last one, because names are listed by owner."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._last: tuple[UUID, Owner] | None = None

    def of(self, name: IngestionName | CompactedName) -> Owner:
        """Return the owner in `name`."""
        _, owner_id = owner_of(name)
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
        return Owner(Ownership.ENDED, session.closed_ms, session.is_unsettled)

    def _job(self, job_id: UUID) -> Owner:
        try:
            state, finished_ms = self._catalog.jobs.state_of(job_id)
        except JobNotFoundError:
            return Owner(Ownership.UNKNOWN)
        if state in {JobState.COMPLETED, JobState.FAILED}:
            # The publication of the job may be lost, so garbage collection keeps its outputs, too.
            return Owner(Ownership.ENDED, finished_ms, self._catalog.lost_commits.is_any_unsettled())
        return Owner(Ownership.OPEN)
