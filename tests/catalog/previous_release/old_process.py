"""Process of older code that uses a catalog while it is migrated; it runs in the tree of that code.

    python old_process.py URL

It opens the catalog, or creates it, and prints `ready`. For each line of standard input it does everything
once that agents and drivers do with a catalog, and prints the base offset and the number of the records that
it appended, as JSON.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from catalog import open as opening
from catalog.groups.repository import GroupRecord
from catalog.lifecycle.expiry import OwnerKind
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.ids import Ids


def _append(scene: Scene, topic: Topic, sequence: int) -> list[list[int]]:
    commit = scene.file({PartitionId(topic.topic_id, 0): [run_of(5, producer=(7, 0, sequence)), run_of(2)]})
    (result,) = scene.catalog.commits.commit(commit)
    (again,) = scene.catalog.commits.commit(commit)  # a retry after a lost response
    assert [run.base_offset for run in again.runs] == [run.base_offset for run in result.runs]
    return [[result.runs[0].base_offset, 5], [result.runs[1].base_offset, 2]]


def _compact(scene: Scene, topic: Topic) -> None:
    for _ in range(2):
        scene.commit(topic, run_of(3))
    job = scene.claimed(scene.extents(topic))
    scene.catalog.jobs.heartbeat(job.spec.job_id, job.attempt_id)
    scene.catalog.jobs.complete(scene.result(job))


def _use_group(catalog: Catalog, ids: Ids, number: int) -> None:
    name, claim = f"group-{number}", ids.new_uuid()
    catalog.groups.claim(name, claim, create=True)
    record = GroupRecord(
        group_id=name,
        generation=1,
        protocol_type="consumer",
        member_count=0,
        subscribed_topics=None,
        state=b"",
    )
    assert catalog.groups.save(claim, record)
    assert catalog.groups.delete(name, claim)


def _maintain(scene: Scene, number: int) -> None:
    catalog = scene.catalog
    topic = scene.topic(f"short-lived-{number}", partitions=2)
    _compact(scene, topic)
    catalog.retention.advance_log_starts({PartitionId(topic.topic_id, 0): 4})
    catalog.retention.remove_expired(topic.topic_id, 0)
    catalog.topics.delete(topic.name)
    catalog.garbage.remove_deleted()
    dead = catalog.garbage.dead_files(catalog.clock.now_ms() + 1000, 100)
    catalog.garbage.delete_rows([file.file_id for file in dead])
    limits = inspect.signature(catalog.sessions.fence_silent).parameters  # the release has no `confirm_ms`
    catalog.sessions.fence_silent(*[3_600_000] * len(limits))
    catalog.expiry.inactive_owners(OwnerKind.SESSION, 0, 10)
    catalog.planning.partition_sizes()


def main(url: str) -> None:
    """Use the catalog at `url` once for each line of standard input."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    clock = SystemClock()
    ids = SystemIds(clock)
    if hasattr(opening, "migrate_catalog"):  # the release creates the catalog as it opens it
        opening.migrate_catalog(url, clock, ids)
    with open_catalog(url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic("shared")
        print("ready", flush=True)  # noqa: T201
        for number, _ in enumerate(sys.stdin):
            catalog.sessions.heartbeat(scene.session_id)
            appended = _append(scene, topic, 5 * number)
            _use_group(catalog, ids, number)
            _maintain(scene, number)
            brief = Scene.set_up(catalog, ids)
            catalog.sessions.end(brief.session_id)
            assert isinstance(catalog.brokers.cluster_id(), UUID)
            print(json.dumps(appended), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
