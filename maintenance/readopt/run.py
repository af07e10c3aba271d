"""One readoption of everything that was lost: a dry run, or the commits themselves.

It may be interrupted and repeated at any point, and several processes may run it at once: each file is
committed at most once, by its id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import CorruptDataError, NotFoundError
from maintenance.readopt.file_contents import read_contents
from maintenance.readopt.lost_files import LostFiles
from maintenance.readopt.readoption import readopt_file
from maintenance.readopt.report import Outcome, ReadoptReport
from object_store.binding import require_bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from core.clock import Clock
    from maintenance.readopt.lost_files import LostFile
    from maintenance.readopt.report import ReadoptedFile
    from object_store.interface import ObjectStore

_POLL_SECONDS: Final = 1.0


def readopt(
    catalog: Catalog,
    store: ObjectStore,
    *,
    apply: bool = False,
    acknowledged_only: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> ReadoptReport:
    """Find the lost files, and with `apply` commit them again; then settle their sessions.

    With `acknowledged_only`, files that no agent reported as acknowledged become garbage. `on_progress` gets
    the numbers of files that are done and of all files. If a file needs a newer Siltstone, settle nothing and
    raise UnsupportedFormatError.
    """
    require_bound(store, catalog.store_binding)
    catalog.incarnations.ensure()
    report = ReadoptReport(applied=apply)
    lost_files = LostFiles(catalog, store)
    found = lost_files.find()
    for done, lost in enumerate(found, 1):
        report.add(_judge(catalog, store, lost, apply=apply, acknowledged_only=acknowledged_only))
        if on_progress is not None:
            on_progress(done, len(found))
    if apply:
        catalog.lost_commits.report(sorted(lost_files.sessions), (), catalog.incarnations.current().epoch)
        catalog.lost_commits.settle(sorted(lost_files.sessions))
        catalog.incarnations.ensure()  # the backlog that metrics show
        report.settled_sessions = len(lost_files.sessions)
    return report


def wait_for_agents(
    catalog: Catalog, clock: Clock, silent_ms: int, on_wait: Callable[[int], None] = lambda _agents: None
) -> None:
    """Wait until the agents that lived when the incarnation began have reported, or it is 30 s old.

    A file that its agent has not reported yet would be committed as if it may never have been acknowledged:
    batches after a gap are rejected permanently. An agent lived if it was silent for at most `silent_ms`.
    `on_wait` gets the number of agents.
    """
    catalog.incarnations.ensure()
    while agents := catalog.lost_commits.unverified(silent_ms):
        on_wait(agents)
        clock.sleep(_POLL_SECONDS)


def _judge(
    catalog: Catalog, store: ObjectStore, lost: LostFile, *, apply: bool, acknowledged_only: bool
) -> ReadoptedFile:
    if acknowledged_only and not lost.acknowledged:
        return lost.with_outcome(Outcome.DISCARDED)
    if apply:
        return readopt_file(catalog, store, lost)
    try:
        sections = read_contents(store, lost.object_name).sections
    except (CorruptDataError, NotFoundError) as error:
        return lost.with_outcome(Outcome.UNREADABLE, detail=error.message)
    records = sum(section.record_count for section in sections)
    topic_ids = sorted({section.topic_id for section in sections})
    known = {topic.topic_id for topic in catalog.topics.by_ids(topic_ids)}
    return lost.with_outcome(
        Outcome.WAITING,
        sections=len(sections),
        records=records,
        unknown_topics=tuple(each for each in topic_ids if each not in known),
    )
