"""Files that a failover or a restore has lost: objects without rows that may have been acknowledged.

The candidates are the lost commits that agents reported, also those that could not be read, and the other
objects without a file row of

- unsettled sessions whose agent has not compared its commits, because it died;
- sessions that the catalog does not know, because their registration was lost, too.

The agent of a *reported* session has named every acknowledged commit that was lost, so other objects of that
session were never acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import structlog

from catalog.lifecycle.sessions import SessionState
from maintenance.listing import files_beside_objects
from maintenance.readopt.report import Outcome, ReadoptedFile
from object_store import names
from object_store.accounting import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from uuid import UUID

    from catalog.lifecycle.lost_commits import LostCommit
    from catalog.model import OffsetRange, RefusedRun
    from catalog.open import Catalog
    from object_store.interface import ObjectStore

_log = structlog.get_logger(__name__)
_IDS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFile:
    """File to commit again. `acknowledged` is None if that is unknown; `old_offsets` are empty then.

    `committed_epoch` is the epoch in which the file was committed, None if that is unknown. `found_epoch` is
    a later one, in which the file was reported or found. `number` is its order within its session. `refused`
    are the runs that its commit refused.
    `was_unreadable`: an earlier attempt could not read it.
    """

    file_id: UUID
    session_id: UUID
    object_name: str
    acknowledged: bool | None
    old_offsets: Sequence[OffsetRange] = ()
    committed_epoch: int | None = None
    found_epoch: int = 0
    number: int = 0
    was_unreadable: bool = False
    refused: Sequence[RefusedRun] = ()

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


def reported_files(catalog: Catalog) -> list[LostFile]:
    """Return the files that wait and that agents reported as acknowledged, in the order of their commits."""
    waiting = catalog.lost_commits.list(waiting=True)
    return in_commit_order([_lost_file_of(commit) for commit in waiting if commit.acknowledged])


def _lost_file_of(commit: LostCommit) -> LostFile:
    return LostFile(
        file_id=commit.file_id,
        session_id=commit.session_id,
        object_name=commit.object_name,
        acknowledged=True if commit.acknowledged else None,
        old_offsets=commit.old_offsets,
        committed_epoch=commit.committed_epoch,
        found_epoch=commit.epoch,
        number=commit.number,
        was_unreadable=commit.outcome is not None,
        refused=commit.refused,
    )


def in_commit_order(files: Iterable[LostFile]) -> list[LostFile]:
    """Return files in an order in which they may have been committed.

    An epoch is one history of commits, so the epochs in which the files were committed decide first. Reports
    do not: a later failover may interrupt them, and an agent may be away for several failovers. A producer
    may have moved from one agent to another, whose clock may be behind. So the old offsets decide next, in
    each partition, and the numbers in each session. Files that have neither are ordered by their ids, which
    begin with the time.

    A file of unknown epoch belongs to the newest known one before it was found, or else to that of its
    report. Its offsets may then contradict others. Such files are ordered by their ids, with a logged error,
    because every agent waits for the order.
    """
    unordered = list(files)
    known = sorted({file.committed_epoch for file in unordered if file.committed_epoch is not None})
    by_epoch: dict[int, list[LostFile]] = {}
    for file in unordered:
        by_epoch.setdefault(_epoch_of(file, known), []).append(file)
    ordered: list[LostFile] = []
    contradicting: list[LostFile] = []
    for _, of_one_history in sorted(by_epoch.items()):
        ordered += _in_commit_order(of_one_history, contradicting)
    if contradicting:
        _log.error(
            "old offsets and numbers of lost files contradict each other",
            files=len(contradicting),
            first_object=contradicting[0].object_name,
            order="by their ids",
        )
    return ordered


def _epoch_of(file: LostFile, known: Sequence[int]) -> int:
    if file.committed_epoch is not None:
        return file.committed_epoch
    before = bisect_left(known, file.found_epoch)
    return known[before - 1] if before else file.found_epoch


def _in_commit_order(files: Sequence[LostFile], contradicting: list[LostFile]) -> list[LostFile]:
    """Return the files of one history in order, and add those to `contradicting` that have no place in it."""
    sequences: dict[object, list[tuple[int, LostFile]]] = {}
    for file in files:
        if file.number:
            sequences.setdefault(file.session_id, []).append((file.number, file))
        for topic_id, partition, base_offset, _ in file.old_offsets:
            sequences.setdefault((topic_id, partition), []).append((base_offset, file))
    followers: dict[UUID, list[LostFile]] = {}
    predecessors: Counter[UUID] = Counter()
    for sequence in sequences.values():
        in_order = [file for _, file in sorted(sequence, key=itemgetter(0))]
        for before, after in pairwise(in_order):
            followers.setdefault(before.file_id, []).append(after)
            predecessors[after.file_id] += 1
    ready = [(file.file_id.bytes, file) for file in files if not predecessors[file.file_id]]
    heapify(ready)
    ordered: dict[UUID, LostFile] = {}
    by_id = iter(sorted(files, key=lambda file: file.file_id.bytes))
    while len(ordered) < len(files):
        if not ready:
            contradicting.append(next(file for file in by_id if file.file_id not in ordered))
            ready = [(contradicting[-1].file_id.bytes, contradicting[-1])]
        _, file = heappop(ready)
        ordered[file.file_id] = file
        for after in followers.get(file.file_id, ()):
            predecessors[after.file_id] -= 1
            if not predecessors[after.file_id] and after.file_id not in ordered:
                heappush(ready, (after.file_id.bytes, after))
    return list(ordered.values())


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
        self._epoch = 0

    def find(self) -> list[LostFile]:
        """Return the lost files in the order of their commits."""
        self._epoch = self._catalog.incarnations.current().epoch
        for session in self._catalog.lost_commits.unsettled_sessions():
            self.sessions.add(session.session_id)
            self._sweeps[session.session_id] = _Sweep.SETTLED if session.is_reported else _Sweep.UNKNOWN
        waiting = self._catalog.lost_commits.list(waiting=True, unreadable=True)
        found = {lost.file_id: _lost_file_of(lost) for lost in waiting}
        self.sessions.update(lost.session_id for lost in found.values() if lost.was_unreadable)
        for each in self._without_rows():
            found.setdefault(each.file_id, each)
            self.sessions.add(each.session_id)
        return in_commit_order(found.values())

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
                        found_epoch=self._epoch,
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
