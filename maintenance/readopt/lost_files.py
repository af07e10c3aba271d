"""Files that a failover or a restore has lost: objects without rows that may have been acknowledged.

The candidates are the lost commits that agents reported, and the other objects without a file row of

- unsettled sessions whose agent has not compared its commits, because it died;
- sessions that the catalog does not know, because their registration was lost, too.

The agent of a *reported* session has named every acknowledged commit that was lost, so other objects of that
session were never acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from catalog.lifecycle.sessions import SessionState
from maintenance.listing import files_beside_objects
from maintenance.readopt.report import Outcome, ReadoptedFile
from object_store import names
from object_store.accounting import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from catalog.lifecycle.lost_commits import AcknowledgedCommit
    from catalog.model import OffsetRange
    from catalog.open import Catalog
    from object_store.interface import ObjectStore

_IDS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFile:
    """File to commit again. `acknowledged` is None if that is unknown; `old_offsets` are empty then."""

    file_id: UUID
    session_id: UUID
    object_name: str
    acknowledged: bool | None
    old_offsets: Sequence[OffsetRange] = ()

    def with_outcome(self, outcome: Outcome, **details: Any) -> ReadoptedFile:  # noqa: ANN401  # any field
        """Return the file for a report."""
        file = ReadoptedFile(
            file_id=self.file_id,
            object_name=self.object_name,
            session_id=self.session_id,
            acknowledged=self.acknowledged,
            outcome=outcome,
            old_offsets=self.old_offsets,
        )
        return replace(file, **details)


def lost_file_of(commit: AcknowledgedCommit) -> LostFile:
    """Return the lost file of a commit that an agent acknowledged."""
    return LostFile(
        file_id=commit.file_id,
        session_id=commit.session_id,
        object_name=commit.object_name,
        acknowledged=True,
        old_offsets=commit.offsets,
    )


class _Sweep(Enum):
    """Knowledge about the objects without rows of one session."""

    UNKNOWN = "unknown"  # any of them may be acknowledged
    SETTLED = "settled"  # none of them is, except for those that were reported


class LostFiles:
    """All lost files of a catalog, and the sessions that can be settled once they were judged."""

    def __init__(self, catalog: Catalog, store: ObjectStore) -> None:
        self._catalog = catalog
        self._store = store
        self.sessions: set[UUID] = set()
        self._sweeps: dict[UUID, _Sweep] = {}

    def find(self) -> list[LostFile]:
        """Return the lost files in the order in which they were written (file ids begin with the time)."""
        for session in self._catalog.lost_commits.unsettled_sessions():
            self.sessions.add(session.session_id)
            self._sweeps[session.session_id] = _Sweep.SETTLED if session.is_reported else _Sweep.UNKNOWN
        found = {
            lost.file_id: LostFile(
                file_id=lost.file_id,
                session_id=lost.session_id,
                object_name=lost.object_name,
                acknowledged=True if lost.acknowledged else None,
                old_offsets=lost.old_offsets,
            )
            for lost in self._catalog.lost_commits.list(waiting=True)
        }
        for each in self._without_rows():
            found.setdefault(each.file_id, each)
            self.sessions.add(each.session_id)
        return sorted(found.values(), key=lambda lost: lost.file_id.bytes)

    def _without_rows(self) -> Iterator[LostFile]:
        """Yield the objects without rows that may be acknowledged; those of expired commits are left out."""
        page: list[LostFile] = []
        for lost in self._beside_files():
            page.append(lost)
            if len(page) == _IDS_AT_ONCE:
                yield from self._unknown(page)
                page = []
        yield from self._unknown(page)

    def _unknown(self, page: Sequence[LostFile]) -> Iterator[LostFile]:
        """Yield the files that the catalog does not know, by a look after that at the object."""
        unknown = self._catalog.lost_commits.unknown([lost.file_id for lost in page]) if page else ()
        yield from (lost for lost in page if lost.file_id in unknown)

    def _beside_files(self) -> Iterator[LostFile]:
        for root in names.ROOT_PREFIXES:
            for file, info in files_beside_objects(self._catalog, self._store, root, Purpose.FSCK):
                name = None if file is not None or info is None else names.parse(info.name)
                if isinstance(name, names.IngestionName) and self._sweep(name.session_id) is _Sweep.UNKNOWN:
                    yield LostFile(
                        file_id=name.file_id,
                        session_id=name.session_id,
                        object_name=str(name),
                        acknowledged=None,
                    )

    def _sweep(self, session_id: UUID) -> _Sweep:
        known = self._sweeps.get(session_id)
        if known is None:
            session = self._catalog.sessions.get(session_id)
            known = _Sweep.UNKNOWN if session is None else _Sweep.SETTLED
            if session is not None and session.state is SessionState.ACTIVE:
                return known
            self._sweeps[session_id] = known
        return known
