"""A log with transactions on real parts, and a slow, obvious model of what its readers may see.

The model keeps every batch that was ever written, and the outcome of its transaction. It knows nothing of
extents, aborted ranges or control batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from catalog.model import (
    BatchRun,
    FileCommit,
    FileKind,
    PartitionId,
    ProducerStamp,
    SectionCommit,
)
from core.clock import SystemClock
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batches, encode_batch
from object_format.segment_file import SegmentFileWriter, SegmentKind, parse_data_blocks
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from object_store.names import ingestion_name
from spark_jobs.shuffle.plan import PlanChoice, choose_plan
from spark_jobs.task.compaction_task import run_compaction
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from catalog.model import Extent, Job, JobResult, PartitionState
    from catalog.transactions.rules import ProducerIdentity
    from tests.planner.system import Row, System

_TIMEOUT_MS = 3_600_000


class Outcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Written:
    """A record of the model; plain records are committed at once."""

    key: bytes
    value: bytes | None
    outcome: Outcome


@dataclass
class Producer:
    """A transactional producer and its open transaction in the model."""

    name: str
    identity: ProducerIdentity
    sequences: dict[PartitionId, int] = field(default_factory=dict)
    open: list[tuple[PartitionId, int]] = field(default_factory=list)
    is_ongoing: bool = False


class Batch(NamedTuple):
    """A batch as a consumer gets it."""

    first_offset: int
    last_offset: int
    producer_id: int
    is_transactional: bool
    aborts: bool | None
    records: tuple[tuple[int, bytes | None, bytes | None], ...]


Part = tuple["Producer | None", "Sequence[Row]"]
"""A batch to write."""


class TransactionalLog:
    """Appends, compacts and reads like agents, planners, workers and consumers do."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.catalog = system.catalog
        self.written: dict[PartitionId, dict[int, Written]] = {}

    def producer(self, name: str) -> Producer:
        return Producer(name, self.catalog.transactions.initialize(name, _TIMEOUT_MS).producer)

    def write(self, sections: Mapping[PartitionId, Sequence[Part]]) -> None:
        """Write and commit one ingestion file; producers begin their transactions if necessary."""
        file_id = self.system.ids.new_uuid()
        pieces: list[bytes | memoryview] = []
        writer = SegmentFileWriter(
            kind=SegmentKind.INGESTION,
            file_id=file_id,
            writer_id=self.system.session_id,
            created_ms=self.system.clock.now_ms(),
            sink=lambda data: pieces.append(bytes(data)),
        )
        commits = []
        for key in sorted(sections):
            writer.begin_section(key.topic_id, key.partition)
            runs: list[BatchRun] = []
            end = 0
            for producer, rows in sections[key]:
                runs.append(self._append(writer, key, producer, rows, end))
                end += len(rows)
            entry = writer.end_section(
                base_offset=0,
                last_offset=end - 1,
                record_count=end,
                min_timestamp=self.system.clock.now_ms(),
                max_timestamp=self.system.clock.now_ms(),
            )
            commits.append(
                SectionCommit(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    position=entry.data_position,
                    length=entry.data_length,
                    runs=tuple(runs),
                )
            )
        summary = writer.finish()
        commit = FileCommit(
            file_id=file_id,
            object_name=ingestion_name(self.system.session_id, file_id),
            size=summary.size,
            directory_length=summary.directory_length,
            session_id=self.system.session_id,
            sections=tuple(commits),
        )
        self.system.put(commit.object_name, pieces)
        for result in self.catalog.commits.commit(commit):
            key = PartitionId(result.topic_id, result.partition)
            for (producer, rows), run in zip(sections[key], result.runs, strict=True):
                assert run.refusal is None, run
                self._note(key, producer, rows, run.base_offset)

    def _append(
        self,
        writer: SegmentFileWriter,
        key: PartitionId,
        producer: Producer | None,
        rows: Sequence[Row],
        first: int,
    ) -> BatchRun:
        now = self.system.clock.now_ms()
        stamp = None
        identity = (-1, -1, -1)
        if producer is not None:
            identity = (*producer.identity, producer.sequences.get(key, 0))
            producer.sequences[key] = identity[2] + len(rows)
            stamp = ProducerStamp(
                producer_id=identity[0],
                producer_epoch=identity[1],
                base_sequence=identity[2],
                is_transactional=True,
                adds_partition=True,
                transactional_id=producer.name,
            )
        writer.append(
            encode_batch(
                [now] * len(rows),
                [row[0] for row in rows],
                [row[1] for row in rows],
                base_offset=first,
                producer=identity,
                is_transactional=producer is not None,
            )
        )
        return BatchRun(
            first_offset=first,
            offset_count=len(rows),
            record_count=len(rows),
            min_timestamp=now,
            max_timestamp=now,
            producer=stamp,
        )

    def _note(self, key: PartitionId, producer: Producer | None, rows: Sequence[Row], base: int) -> None:
        for offset, (name, value) in enumerate(rows, base):
            outcome = Outcome.OPEN if producer is not None else Outcome.COMMITTED
            self.written.setdefault(key, {})[offset] = Written(name, value, outcome)
            if producer is not None:
                producer.open.append((key, offset))
                producer.is_ongoing = True

    def end(self, producer: Producer, *, commits: bool) -> None:
        """End the producer's transaction."""
        self.catalog.transactions.end(producer.name, producer.identity, commits=commits)
        for key, offset in producer.open:
            self.written[key][offset].outcome = Outcome.COMMITTED if commits else Outcome.ABORTED
        producer.open.clear()
        producer.is_ongoing = False

    def result_of(self, job: Job) -> JobResult:
        """Run a job with the real task, or the real stages of the shuffle."""
        assert job.attempt_id is not None
        shuffle = choose_plan(job.spec, PlanChoice.AUTO)
        directory = Path(unquote(urlsplit(self.system.store.url).path))
        if shuffle is None:
            store = LocalStore(directory, self.system.ids)
            try:
                return run_compaction(
                    job.spec, store, attempt_id=job.attempt_id, clock=SystemClock(), ids=self.system.ids
                )
            finally:
                store.close()
        found = run_in_memory(
            job.spec, shuffle, lambda: LocalStore(directory, self.system.ids), self.system.ids
        )
        return type(found)(
            job_id=found.job_id, attempt_id=job.attempt_id, files=found.files, counts=found.counts
        )

    def state(self, key: PartitionId) -> PartitionState:
        (state,) = self.catalog.topics.states([key])
        return state

    def batches(self, key: PartitionId, offset: int, end: int) -> tuple[list[Batch], list[Extent]]:
        """Return the batches that overlap [offset, end), and the extents that they were read from."""
        extents = [
            extent
            for extent in self.catalog.extents.from_offset(
                key.topic_id, key.partition, offset, max_extents=10_000
            )
            if extent.base_offset < end
        ]
        found = [batch for extent in extents for batch in self._batches_of(extent)]
        return [each for each in found if each.last_offset >= offset and each.first_offset < end], extents

    def _batches_of(self, extent: Extent) -> Iterator[Batch]:
        if extent.control is not None:
            assert extent.file_kind is FileKind.CONTROL
            offset, control = extent.base_offset, extent.control
            yield Batch(offset, offset, control.producer_id, True, not control.commits, ())
        if not extent.length:
            return
        data = self.system.store.read_range(
            extent.object_name, extent.position, extent.length, purpose=Purpose.FETCH
        )
        payloads = parse_data_blocks(
            data,
            name=extent.object_name,
            file_id=extent.file_id,
            position=extent.position,
            section=(extent.topic_id, extent.partition),
        )
        for payload in payloads:
            for position, header in iter_headers(payload):
                one = payload[position : position + header.size]
                (columns,) = decode_batches(one, offset_shift=extent.offset_shift)
                first = header.base_offset + extent.offset_shift
                if not extent.base_offset <= first <= extent.last_offset:
                    continue
                yield Batch(
                    first,
                    header.last_offset + extent.offset_shift,
                    header.producer_id,
                    header.is_transactional,
                    None,
                    tuple((each.offset, each.key, each.value) for each in columns.records()),
                )

    def committed(
        self, key: PartitionId, offset: int, *, batches_each: int
    ) -> dict[int, tuple[bytes | None, bytes | None]]:
        """Read committed records from an offset on, in fetches of so many batches.

        This is what Kafka's consumer does (Fetcher.CompletedFetch): for each fetch, it gets the aborted
        transactions of the range, drops the transactional batches of their producers from the first offset
        on, and stops to do so at the next abort marker of the producer.
        """
        seen: dict[int, tuple[bytes | None, bytes | None]] = {}
        position = max(offset, self.state(key).log_start_offset)
        end = self.state(key).last_stable_offset
        while position < end:
            batches, extents = self.batches(key, position, end)
            batches = batches[:batches_each]
            following = batches[-1].last_offset + 1 if batches else end
            found = self.catalog.transaction_lookups.aborted({key: (position, following)}, extents)
            waiting = sorted(found[key], key=lambda each: each.first_offset)
            dropped: set[int] = set()
            for batch in batches:
                while waiting and waiting[0].first_offset <= batch.last_offset:
                    dropped.add(waiting.pop(0).producer_id)
                if batch.aborts is not None:
                    if batch.aborts:
                        dropped.discard(batch.producer_id)
                elif not (batch.is_transactional and batch.producer_id in dropped):
                    seen |= {at: (name, value) for at, name, value in batch.records if at >= position}
            position = following
        return seen

    def check(self, key: PartitionId, *, is_compacted: bool, offset: int, batches_each: int) -> None:
        """Compare readers of both isolation levels with the model, from an offset on."""
        state = self.state(key)
        start = max(offset, state.log_start_offset)
        written = {at: each for at, each in self.written.get(key, {}).items() if at >= start}
        stable = {
            at: (each.key, each.value)
            for at, each in written.items()
            if at < state.last_stable_offset and each.outcome is Outcome.COMMITTED
        }
        assert all(
            each.outcome is not Outcome.OPEN for at, each in written.items() if at < state.last_stable_offset
        )
        seen = self.committed(key, offset, batches_each=batches_each)
        _compare(seen, stable, is_compacted=is_compacted)
        batches, _ = self.batches(key, start, state.high_watermark)
        everything = {at: pair for batch in batches for at, *pair in batch.records if at >= start}
        for at, pair in everything.items():
            assert tuple(pair) == (written[at].key, written[at].value)
        assert everything.keys() >= {at for at in written if at >= state.last_stable_offset}
        _compare(
            {at: (pair[0], pair[1]) for at, pair in everything.items() if at in stable},
            stable,
            is_compacted=is_compacted,
        )


def _compare(
    seen: Mapping[int, tuple[bytes | None, bytes | None]],
    expected: Mapping[int, tuple[bytes | None, bytes | None]],
    *,
    is_compacted: bool,
) -> None:
    """Compare committed records; a compacted topic may lack superseded ones and old tombstones."""
    if not is_compacted:
        assert dict(seen) == dict(expected)
        return
    assert all(expected.get(at) == pair for at, pair in seen.items())
    assert _newest(seen) == _newest(expected)


def _newest(
    records: Mapping[int, tuple[bytes | None, bytes | None]],
) -> dict[bytes | None, tuple[int, bytes]]:
    """Return offset and value of the newest record of each key that is not deleted."""
    newest = {name: (at, value) for at, (name, value) in sorted(records.items())}
    return {name: (at, value) for name, (at, value) in newest.items() if value is not None}
