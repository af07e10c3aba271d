"""One readoption of everything that was lost: a dry run, or the commits themselves.

It may be interrupted and repeated at any point, and several processes may run it at once: each file is
committed at most once, by its id.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from catalog.errors import MissingTopicsError
from catalog.lifecycle.lost_commits import READOPTION_WAIT_MS
from catalog.model import PartitionId
from core.errors import CorruptDataError, NotFoundError
from maintenance.readopt.file_contents import read_contents
from maintenance.readopt.lost_files import LostFiles
from maintenance.readopt.read_ahead import ReadAhead
from maintenance.readopt.readoption import read_lost_file, readopt_file
from maintenance.readopt.report import Outcome, ReadoptReport
from object_store.binding import require_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from catalog.model import FileCommit
    from catalog.open import Catalog
    from core.clock import Clock
    from maintenance.readopt.lost_files import LostFile
    from maintenance.readopt.report import ReadoptedFile
    from object_format.segment_file import SectionEntry
    from object_store.interface import ObjectStore

_POLL_SECONDS: Final = 1.0


def readopt(
    catalog: Catalog,
    store: ObjectStore,
    *,
    apply: bool = False,
    acknowledged_only: bool = False,
    discard_unknown_topics: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> ReadoptReport:
    """Find the lost files, and with `apply` commit them again; then settle their sessions.

    A file waits while the catalog lacks one of its topics, or a partition, or may have lost the undeletion of
    a topic. With `discard_unknown_topics`, the records of these are rejected instead. Files that could not be
    read are tried again. The session of one that was acknowledged is not settled, as long as its object
    exists.

    With `acknowledged_only`, files that no agent reported as acknowledged become garbage. `on_progress` gets
    the numbers of files that are done and of all files. If a file needs a newer Siltstone, settle nothing and
    raise UnsupportedFormatError. CatalogReplacedError: the catalog failed over meanwhile, so the rest is to
    be found again.
    """
    require_bound(store, catalog.store_binding)
    epoch = catalog.incarnations.ensure().epoch
    report = ReadoptReport(applied=apply)
    lost_files = LostFiles(catalog, store)
    found = lost_files.find()
    wanted = [lost for lost in found if lost.acknowledged or not acknowledged_only]
    wanted_ids = {lost.file_id for lost in wanted}
    with ExitStack() as reads:
        if apply:
            # Before the first read: an agent of an earlier release may have settled the session of an
            # unreadable file, so that garbage collection may delete its object.
            for session_id in {lost.session_id for lost in wanted if lost.was_unreadable}:
                catalog.lost_commits.keep(session_id)
            commits = reads.enter_context(ReadAhead(wanted, partial(read_lost_file, store)))
            judge = partial(
                _readopt,
                catalog,
                store,
                commits.take,
                epoch=epoch,
                discard_unknown_topics=discard_unknown_topics,
            )
        else:
            contents = reads.enter_context(ReadAhead(wanted, partial(_read_sections, store)))
            judge = partial(_examine, catalog, contents.take)
        for done, lost in enumerate(found, 1):
            is_discarded = lost.file_id not in wanted_ids
            report.add(_discard(catalog, lost, apply=apply) if is_discarded else judge(lost))
            if on_progress is not None:
                on_progress(done, len(found))
    if apply:
        catalog.lost_commits.report(sorted(lost_files.sessions), (), epoch)
        report.settled_sessions = catalog.lost_commits.settle(sorted(lost_files.sessions), epoch)
        catalog.incarnations.ensure()  # the backlog that metrics show
    return report


def wait_for_agents(
    catalog: Catalog, clock: Clock, silent_ms: int, on_wait: Callable[[int], None] = lambda _agents: None
) -> None:
    """Wait until the agents that lived when the incarnation began have reported, or it is 30 s old.

    A file that its agent has not reported yet would be committed as if it may never have been acknowledged:
    batches after a gap are rejected permanently. An agent lived if it was silent for at most `silent_ms`.
    `on_wait` gets the number of agents.

    The age counts by the catalog's clock. It may have stepped back since, so the wait takes no longer than
    `READOPTION_WAIT_MS` by the clock of this process.
    """
    catalog.incarnations.ensure()
    until = clock.monotonic() + READOPTION_WAIT_MS / 1000
    while clock.monotonic() < until and (agents := catalog.lost_commits.unverified(silent_ms)):
        on_wait(agents)
        clock.sleep(_POLL_SECONDS)


def _discard(catalog: Catalog, lost: LostFile, *, apply: bool) -> ReadoptedFile:
    if apply:
        catalog.lost_commits.discard(lost.file_id)
    return lost.with_outcome(Outcome.DISCARDED)


def _readopt(
    catalog: Catalog,
    store: ObjectStore,
    read: Callable[[LostFile], FileCommit],
    lost: LostFile,
    *,
    epoch: int,
    discard_unknown_topics: bool,
) -> ReadoptedFile:
    try:
        return readopt_file(catalog, read, lost, epoch=epoch, discard_unknown_topics=discard_unknown_topics)
    except MissingTopicsError:
        catalog.lost_commits.keep_waiting(lost.file_id, lost.session_id, lost.object_name, lost.found_epoch)
    return _examine(catalog, partial(_read_sections, store), lost)


def _read_sections(store: ObjectStore, lost: LostFile) -> Sequence[SectionEntry]:
    return read_contents(store, lost.object_name).sections


def _examine(
    catalog: Catalog, read: Callable[[LostFile], Sequence[SectionEntry]], lost: LostFile
) -> ReadoptedFile:
    """Return the contents of a file that waits, and the topics for which it waits."""
    try:
        sections = read(lost)
    except (CorruptDataError, NotFoundError) as error:
        return lost.with_outcome(Outcome.UNREADABLE, detail=error.message)
    partitions = (PartitionId(section.topic_id, section.partition) for section in sections)
    return lost.with_outcome(
        Outcome.WAITING,
        sections=len(sections),
        records=sum(section.record_count for section in sections),
        missing_topics=tuple(catalog.lost_commits.missing_topics(partitions, lost.committed_epoch)),
    )
