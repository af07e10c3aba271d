"""How many inputs a task has open at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from catalog.model import PartitionId
from core.clock import ManualClock
from core.ids import SeededIds
from object_store.local.store import LocalStore
from object_store.local.streams import LocalStream
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.task.compaction_task import run_compaction
from tests.spark_jobs.reference_log import ReferenceLog, batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from pathlib import Path

    from object_store.accounting import Purpose

FILES = 20


@dataclass
class OpenStreams:
    now: int = 0
    most: int = 0


class _WatchedStream(LocalStream):
    open_streams: OpenStreams

    @override
    def _open(self) -> None:
        super()._open()
        self.open_streams.now += 1
        self.open_streams.most = max(self.open_streams.most, self.open_streams.now)

    @override
    def close(self) -> None:
        self.open_streams.now -= self._descriptor >= 0
        super().close()


class WatchedStore(LocalStore):
    """A store that counts the streams which have their file open."""

    def __init__(self, root: Path, ids: SeededIds, open_streams: OpenStreams) -> None:
        super().__init__(root, ids)
        self._open_streams = open_streams

    @override
    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> LocalStream:
        stream = _WatchedStream(self._root, name, (position, end), self._counts, purpose)
        stream.open_streams = self._open_streams
        return stream


@pytest.mark.parametrize(
    ("plan", "partitions", "most"), [("task", 1, 1), ("shuffle", 1, 1), ("task", 2, 2 * FILES)]
)
def test_a_stream_is_closed_with_the_last_part_of_its_input(
    tmp_path: Path, plan: str, partitions: int, most: int
) -> None:
    """One partition in many files has one open at a time; with two, each pass keeps all for the second."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(tmp_path, ids), clock, ids)
    topic = log.create_topic("compact")
    keys = [PartitionId(topic, number) for number in range(partitions)]
    for number in range(FILES):
        log.ingest({key: [batch((b"a", b"%d" % number), (b"%d" % number, b"x"))] for key in keys})
    streams = OpenStreams()
    spec = log.job()

    def new_store() -> WatchedStore:
        return WatchedStore(tmp_path, ids, streams)

    if plan == "shuffle":
        result = run_in_memory(spec, plan_shuffle(spec), new_store, ids)
    else:
        result = run_compaction(spec, new_store(), attempt_id=ids.new_uuid(), clock=clock, ids=ids)

    log.publish(spec, result)
    log.check()
    assert streams.now == 0
    assert streams.most == most
    assert result.counts["get_requests"] == 2 * FILES
