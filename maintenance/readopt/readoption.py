"""Readoption of one file: commit it again behind the log ends, by the rules of an ordinary commit."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog

from catalog.commit.results import appended_range
from core.errors import CorruptDataError, NotFoundError
from maintenance.readopt.file_contents import read_file_commit
from maintenance.readopt.report import Outcome, ReadoptedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from catalog.model import FileCommit, OffsetRange, SectionResult
    from catalog.open import Catalog
    from maintenance.readopt.lost_files import LostFile
    from object_store.interface import ObjectStore

_log = structlog.get_logger(__name__)
_MAX_LOGGED: Final = 20


def readopt_file(
    catalog: Catalog,
    read: Callable[[LostFile], FileCommit],
    lost: LostFile,
    *,
    epoch: int,
    discard_unknown_topics: bool = False,
) -> ReadoptedFile:
    """Commit a lost file again, or record that its object cannot be read; may be repeated.

    `read` is `read_lost_file` or has called it. A file is given up if an earlier attempt could not read it,
    and its object is missing now.

    Raises SessionFencedError if its session may still commit it, or garbage collection may delete it, and
    UnsupportedFormatError if the file needs a newer Siltstone, for which it then waits. CatalogReplacedError:
    `epoch`, in which the file was found to be lost, has ended. MissingTopicsError:
    the catalog lacks a topic of the file, or its partition, or may have lost its undeletion. With
    `discard_unknown_topics`, their records are rejected instead, which is final.
    """
    try:
        commit = read(lost)
    except (CorruptDataError, NotFoundError) as error:
        gives_up = lost.was_unreadable and isinstance(error, NotFoundError)
        catalog.lost_commits.mark_unreadable(
            lost.file_id, lost.session_id, lost.object_name, error.message, gives_up=gives_up
        )
        _log.error("a lost file cannot be committed again", object=lost.object_name, reason=error.message)
        is_kept = bool(lost.acknowledged) and not gives_up
        return lost.with_outcome(Outcome.UNREADABLE, detail=error.message, is_kept=is_kept)
    results = catalog.commits.readopt(
        commit,
        acknowledged=bool(lost.acknowledged),
        refused=lost.refused,
        epoch=epoch,
        committed_epoch=lost.committed_epoch,
        discard_unknown_topics=discard_unknown_topics,
    )
    return _readopted(lost, commit, results)


def read_lost_file(store: ObjectStore, lost: LostFile) -> FileCommit:
    """Return the commit of a lost file.

    One response of the store proves nothing, so the file is read twice before it counts as unreadable. Raises
    the errors of `read_file_commit`.
    """
    try:
        return read_file_commit(store, lost.object_name)
    except (CorruptDataError, NotFoundError) as error:
        _log.warning("a lost file is read again", object=lost.object_name, reason=error.message)
        return read_file_commit(store, lost.object_name)


def _readopted(lost: LostFile, commit: FileCommit, results: Sequence[SectionResult]) -> ReadoptedFile:
    records = duplicates = rejected = rejected_acknowledged = 0
    refused = frozenset(lost.refused)
    old_offsets = {(each.topic_id, each.partition): each for each in lost.old_offsets}
    reasons: dict[OffsetRange, str] = {}
    new_offsets: list[OffsetRange] = []
    for section, result in zip(commit.sections, results, strict=True):
        appended = appended_range(section, result.runs)
        new_offsets += [] if appended is None else [appended]
        key = (str(section.topic_id), section.partition)
        old = old_offsets.get(key)
        for run, done in zip(section.runs, result.runs, strict=True):
            records += run.record_count
            duplicates += run.record_count * done.duplicate
            if done.refusal is not None:
                rejected += run.record_count
                # A transaction is aborted as a whole: its end was lost, too.
                is_transactional = run.producer is not None and run.producer.is_transactional
                if old is not None and not is_transactional and (*key, run.first_offset) not in refused:
                    rejected_acknowledged += run.record_count
                    reasons.setdefault(old, f"{done.refusal.value}: {done.detail}")
    if reasons:
        _log.error(
            "acknowledged records of a lost file were rejected",
            object=lost.object_name,
            records=rejected_acknowledged,
            partitions=len(reasons),
            old_offsets_and_reasons=[
                (*each, reason) for each, reason in islice(reasons.items(), _MAX_LOGGED)
            ],
            remedy="the object is deleted after grace_seconds; copy it first if you need the records",
        )
    return lost.with_outcome(
        Outcome.READOPTED,
        sections=len(commit.sections),
        records=records,
        duplicates=duplicates,
        rejected=rejected,
        rejected_acknowledged=rejected_acknowledged,
        new_offsets=tuple(new_offsets),
    )
