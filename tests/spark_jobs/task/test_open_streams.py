"""Number of input streams that a task has open at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from catalog.model import PartitionId
from core.clock import ManualClock
from core.errors import CorruptFileError
from core.ids import SeededIds
from object_store.local.store import LocalStore
from object_store.local.streams import LocalStream
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.task.compaction_task import run_compaction
from spark_jobs.task.small_sections.plan import GroupLimits
from tests.spark_jobs.reference_log import ReferenceLog, batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from pathlib import Path

    from object_store.accounting import Purpose

FILES = 20


@dataclass
class OpenStreams:
    current: int = 0
    peak: int = 0


class _CountedStream(LocalStream):
    open_streams: OpenStreams

    @override
    def _open(self) -> None:
        super()._open()
        self.open_streams.current += 1
        self.open_streams.peak = max(self.open_streams.peak, self.open_streams.current)

    @override
    def close(self) -> None:
        self.open_streams.current -= self._descriptor >= 0
        super().close()


class StreamCountingStore(LocalStore):
    """A store that counts the streams with an open file."""

    def __init__(self, root: Path, ids: SeededIds, open_streams: OpenStreams) -> None:
        super().__init__(root, ids)
        self._open_streams = open_streams

    @override
    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> LocalStream:
        stream = _CountedStream(self._root, name, (position, end), self._counts, purpose)
        stream.open_streams = self._open_streams
        return stream


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize(
    ("plan", "partitions", "peak"), [("task", 1, 2), ("shuffle", 1, 1), ("task", 2, 2 * FILES)]
)
def test_a_stream_is_closed_after_the_last_part_of_its_input(
    tmp_path: Path, plan: str, partitions: int, peak: int, policy: str
) -> None:
    """A job over one partition in many files opens one at a time, and perhaps the next.

    With two partitions, each pass keeps all open.
    """
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(tmp_path, ids), clock, ids)
    topic = log.create_topic(policy)
    keys = [PartitionId(topic, number) for number in range(partitions)]
    for number in range(FILES):
        log.ingest({key: [batch((b"a", b"%d" % number), (b"%d" % number, b"x"))] for key in keys})
    open_streams = OpenStreams()
    spec = log.job()

    def new_store() -> StreamCountingStore:
        return StreamCountingStore(tmp_path, ids, open_streams)

    if plan == "shuffle":
        result = run_in_memory(spec, plan_shuffle(spec), new_store, ids)
    else:
        result = run_compaction(spec, new_store(), attempt_id=ids.new_uuid(), clock=clock, ids=ids)

    log.publish(spec, result)
    log.check()
    assert open_streams.current == 0
    assert open_streams.peak <= peak
    assert result.counts["get_requests"] == (2 if policy == "compact" else 1) * FILES


@pytest.mark.parametrize("position", [1, 0])
def test_all_streams_are_closed_after_an_error(tmp_path: Path, position: int) -> None:
    """Pass 1 or pass 2 fails at the last partition, which is deduplicated or not."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(tmp_path, ids), clock, ids)
    topics = [log.create_topic(policy) for policy in ("compact", "delete")]
    keys = sorted(PartitionId(topic, 0) for topic in topics)
    for number in range(3):
        log.ingest({key: [batch((b"a", b"%d" % number))] for key in keys})
    log.policies[keys[1].topic_id] = ["delete", "compact"][position]
    log.policies[keys[0].topic_id] = "compact"
    spec = log.job()
    path = tmp_path / spec.inputs[-1].object_name
    damaged = bytearray(path.read_bytes())
    damaged[spec.inputs[-1].extents[-1].position + 20] ^= 1
    path.write_bytes(damaged)
    open_streams = OpenStreams()

    with pytest.raises(CorruptFileError):
        run_compaction(
            spec,
            StreamCountingStore(tmp_path, ids, open_streams),
            attempt_id=ids.new_uuid(),
            clock=clock,
            ids=ids,
            limits=GroupLimits(bytes=0),
        )

    assert open_streams.current == 0
    assert open_streams.peak >= 3


def test_a_stream_is_closed_after_the_group_that_reads_the_last_section_of_its_input(tmp_path: Path) -> None:
    """Each file has one partition, and so has each group."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(tmp_path, ids), clock, ids)
    topic = log.create_topic("compact")
    for number in range(FILES):
        log.ingest({PartitionId(topic, number): [batch((b"a", b"1"), (b"a", b"2"))]})
    open_streams = OpenStreams()
    spec = log.job()

    result = run_compaction(
        spec,
        StreamCountingStore(tmp_path, ids, open_streams),
        attempt_id=ids.new_uuid(),
        clock=clock,
        ids=ids,
        limits=GroupLimits(records=2),
    )

    log.publish(spec, result)
    log.check()
    assert (open_streams.current, open_streams.peak) == (0, 2)
    assert result.counts["get_requests"] == 2 * FILES
