"""The tasks of the shuffle plan, one function per stage; `spark_jobs.shuffle.plan` explains them.

This module does not know Spark: rows come in and go out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from catalog.model import JobResult
from object_format.dedupe import KeyTable, Survivors
from object_format.dedupe.buckets import CHUNK_RECORDS, BucketSplitter, BucketSurvivorFinder
from object_format.offset_set import OffsetSet
from object_format.record_batch.decompression import Scratch
from spark_jobs.errors import IncompleteShuffleError
from spark_jobs.shuffle.plan import keys_expected
from spark_jobs.shuffle.row_counts import JudgeExchange, ReceivedRows, SentRows
from spark_jobs.shuffle.rows import END, FAILURE, PAYLOAD, REPORT, BlobRow, Report, SurvivorRow, merge_reports
from spark_jobs.shuffle.shares import runs_of
from spark_jobs.task.arrangement import arrange, input_uses
from spark_jobs.task.compaction_task import stream_buffer, table_bytes_for
from spark_jobs.task.counts import TaskCounts
from spark_jobs.task.input_pass import InputPass
from spark_jobs.task.output_files import OutputFiles
from spark_jobs.task.partition_writer import PartitionWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from uuid import UUID

    from catalog.model import JobSpec
    from core.clock import Clock
    from core.ids import Ids
    from object_format.dedupe.buckets import Blob
    from object_store.interface import ObjectStore
    from spark_jobs.report import JobFailure
    from spark_jobs.shuffle.plan import ShufflePlan
    from spark_jobs.shuffle.shares import Run
    from spark_jobs.task.arrangement import InputUse, PartitionWork

_VERDICT_COUNTS: Final = ("keys", "keys_outside_table", "tombstones_dropped", "records_invalid")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """Constants of a job that every task needs; `check` may raise to stop the task."""

    spec: JobSpec
    plan: ShufflePlan
    clock: Clock
    check: Callable[[], None]


def cut_share(context: StageContext, share: int, store: ObjectStore) -> Iterator[BlobRow]:
    """Stage 1: yield the blobs of a share, a report for its writer, and the markers.

    `store` belongs to the task alone.
    """
    spec, plan = context.spec, context.plan
    counts = TaskCounts(store, context.clock)
    runs = runs_of(arrange(spec), plan.shares[share])
    uses = input_uses([run.work for run in runs], deduplicated_only=True)
    reader = _pass_over(context, store, uses, counts)
    ends = plan.bucket_ends
    sent = SentRows(share, plan.judges)
    try:
        for position, run in enumerate(runs):
            bits = plan.bits[run.partition_index]
            if bits is None:
                continue
            for blob in _blobs(spec, run.work, bits, reader, counts):
                bucket = ends[run.partition_index] - (1 << bits) + blob.bucket
                counts.add("shuffle_bytes", len(blob.data))
                row = BlobRow(
                    bucket % plan.judges, PAYLOAD, bucket, blob.first_offset, share, run.number, blob.data
                )
                yield sent.add(row, blob.records)
            reader.close_after(position)
    finally:
        reader.close()
    counts.at_least("largest_buffer_bytes", reader.largest_buffer)
    report = Report(counts.finish()).pack()
    yield sent.add(BlobRow(share % plan.judges, REPORT, share, 0, share, 0, report))
    yield from sent.ends()


def failed_cut(plan: ShufflePlan, share: int, failure: JobFailure) -> Iterator[BlobRow]:
    """Yield the rows that stage 1 sends instead of markers after a failure: every judge must know of it."""
    data = Report({}, failure).pack()
    for judge in range(plan.judges):
        yield BlobRow(judge, FAILURE, share, 0, share, 0, data)


def failed_judging(plan: ShufflePlan, judge: int, failure: JobFailure) -> Iterator[SurvivorRow]:
    """Yield the rows that stage 2 sends to every share after a failure, so that none writes."""
    data = Report({}, failure).pack()
    for share in range(len(plan.shares)):
        yield SurvivorRow(share, FAILURE, judge, data=data)


def _pass_over(
    context: StageContext, store: ObjectStore, uses: dict[int, InputUse], counts: TaskCounts
) -> InputPass:
    return InputPass(
        context.spec,
        store,
        uses,
        read_size=stream_buffer(len(uses)),
        check=context.check,
        counts=counts,
    )


def _blobs(
    spec: JobSpec, work: PartitionWork, bits: int, reader: InputPass, counts: TaskCounts
) -> Iterator[Blob]:
    """Yield the blobs of a run, oldest first."""
    chunk = min(max(work.records_in, 1), CHUNK_RECORDS)
    cutter = BucketSplitter(
        spec.hash_seed,
        bits=bits,
        now_ms=spec.now_ms,
        chunk_records=chunk,
        scratch=Scratch(counts.codec_timers),
    )
    counts.at_least("largest_buffer_bytes", cutter.nbytes)
    for part in work.parts:
        for piece, extent, location in reader.pieces(work, part):
            with counts.timed("find_survivors_ms"), counts.timed("kernels_ms"), reader.located(location):
                blobs = list(cutter.feed(piece.batches, offset_shift=extent.offset_shift))
            yield from blobs
    yield from cutter.flush()
    counts.at_least("largest_buffer_bytes", cutter.max_opened_bytes)


def judge_buckets(context: StageContext, rows: Iterable[BlobRow]) -> Iterator[SurvivorRow]:
    """Stage 2: yield the survivors of each bucket by run, the reports and the markers; or the first failure.

    Rows arrive by kind, bucket by bucket, newest first. At their end, raise IncompleteShuffleError unless all
    rows of all shares arrived.
    """
    plan = context.plan
    exchange = JudgeExchange(len(plan.shares))
    judging = _Judging(context, exchange)
    for (kind, number), group in groupby(rows, key=lambda row: (row.kind, row.number)):
        if kind == FAILURE:
            row = next(group)
            failure = Report.unpack(row.data).failure
            assert failure is not None
            yield from failed_judging(plan, row.judge, failure)
            return
        taken = map(exchange.take, group)
        if kind == PAYLOAD:
            yield from map(exchange.send, judging.bucket(number, taken))
            continue
        for row in taken:
            if kind == REPORT:
                yield exchange.send(SurvivorRow(number, REPORT, row.judge, data=bytes(row.data)))
    exchange.check(f"job {context.spec.job_id}")
    for judge in exchange.judges[:1]:
        yield exchange.send(SurvivorRow(0, REPORT, judge, data=Report(judging.counts.finish()).pack()))
    yield from exchange.ends()


class _Judging:
    """Verdicts of a task of stage 2, bucket by bucket, with one key table."""

    def __init__(self, context: StageContext, exchange: JudgeExchange) -> None:
        spec, plan = context.spec, context.plan
        self.counts = TaskCounts(None, context.clock)
        self._context = context
        self._exchange = exchange
        self._works = arrange(spec)
        self._expected = [
            0 if bits is None else keys_expected(work.records_in, bits)
            for work, bits in zip(self._works, plan.bits, strict=True)
        ]
        self._table = KeyTable(table_bytes_for(max(self._expected, default=0), spec.table_bytes))
        self.counts.at_least("table_bytes", self._table.table_bytes)
        self._partition_of = _partition_finder(plan)

    def bucket(self, number: int, rows: Iterable[BlobRow]) -> Iterator[SurvivorRow]:
        """Return the survivors of one bucket; `rows` are its blobs, newest first."""
        partition = self._partition_of(number)
        judge = BucketSurvivorFinder(
            self._table,
            reaches_log_start=self._works[partition].partition.reaches_log_start,
            expected_keys=self._expected[partition],
        )
        runs: list[_SeenRun] = []
        for row in rows:
            self._context.check()
            if not runs or (runs[-1].share, runs[-1].number) != (row.share, row.run):
                runs.append(_SeenRun(row.share, row.run))
            runs[-1].first_offset = row.first_offset
            with self.counts.timed("find_survivors_ms"), self.counts.timed("kernels_ms"):
                self._exchange.judged(row.judge, row.share, judge.feed(row.data))
        survivors = judge.finish()
        for name in _VERDICT_COUNTS:
            self.counts.add(name, getattr(survivors, name))
        return _survivor_rows(survivors, number % self._context.plan.judges, partition, runs)


@dataclass(slots=True)
class _SeenRun:
    """A run that has records in a bucket; `first_offset` is the lowest of their chunks' first offsets."""

    share: int
    number: int
    first_offset: int = 0


def _partition_finder(plan: ShufflePlan) -> Callable[[int], int]:
    """Return a function that finds the partition of a bucket, for buckets in ascending order."""
    ends = plan.bucket_ends
    partition = 0

    def find(bucket: int) -> int:
        nonlocal partition
        while ends[partition] <= bucket:
            partition += 1
        return partition

    return find


def _survivor_rows(
    survivors: Survivors, judge: int, partition_index: int, runs: Iterable[_SeenRun]
) -> Iterator[SurvivorRow]:
    """Yield the bitmaps cut by run, newest run first; a run without survivors gets none."""
    end = survivors.offsets.max() + 1 if len(survivors.offsets) else 0
    for run in runs:
        first, end, last = run.first_offset, run.first_offset, end
        offsets = survivors.offsets.restricted(first, last - 1)
        if not len(offsets):
            continue
        yield SurvivorRow(
            run.share,
            PAYLOAD,
            judge,
            partition_index,
            run.number,
            survivors.keys_outside_table,
            offsets.serialize(),
            survivors.tombstones.restricted(first, last - 1).serialize(),
        )


@dataclass(slots=True)
class ShareInput:
    """Input of the last stage for one share: reports, and the merged survivors by run.

    `arrivals` counts the judges' rows.
    """

    arrivals: ReceivedRows = field(default_factory=ReceivedRows)
    reports: list[Report] = field(default_factory=list)
    offsets: defaultdict[tuple[int, int], OffsetSet] = field(default_factory=lambda: defaultdict(OffsetSet))
    tombstones: defaultdict[tuple[int, int], OffsetSet] = field(
        default_factory=lambda: defaultdict(OffsetSet)
    )
    outside: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, row: SurvivorRow) -> None:
        """Take a row."""
        if row.kind == END:
            self.arrivals.end(row.judge, row.data)
            return
        self.arrivals.add(row.judge)
        if row.kind in {FAILURE, REPORT}:
            self.reports.append(Report.unpack(row.data))
            return
        key = row.partition_index, row.run
        self.offsets[key].update(OffsetSet.deserialize(bytes(row.data)))
        self.tombstones[key].update(OffsetSet.deserialize(bytes(row.tombstones)))
        self.outside[key] += row.outside

    def survivors(self, run: Run) -> Survivors | None:
        """Remove and return the survivors of a run; None for a partition that is not deduplicated."""
        if not run.work.partition.deduplicate:
            return None
        key = run.partition_index, run.number
        return Survivors(
            offsets=self.offsets.pop(key, OffsetSet()),
            tombstones=self.tombstones.pop(key, OffsetSet()),
            records_in=run.work.records_in,
            keys=0,
            keys_outside_table=self.outside[key],
            tombstones_dropped=0,
            records_invalid=0,
            max_buffer_bytes=0,
        )


def write_share(
    context: StageContext, share: int, known: ShareInput, store: ObjectStore, attempt_id: UUID, ids: Ids
) -> JobResult:
    """Stage 3: run pass 2 of a share; return its files and the merged counters.

    Raise IncompleteShuffleError, and abort the uploads, unless all rows of all judges arrived and the judges
    judged as many records as pass 2 reads.
    """
    spec, plan = context.spec, context.plan
    where = f"job {spec.job_id}, share {share}"
    judged = known.arrivals.check(plan.judges, where)
    read = 0
    counts = TaskCounts(store, context.clock)
    runs = runs_of(arrange(spec), plan.shares[share])
    works = [run.work for run in runs]
    pass2_uses = input_uses(works, deduplicated_only=False)
    pass1_uses = input_uses(works, deduplicated_only=True)
    counter = "input_files" if plan.shares[share].byte_range is None else "byte_ranges"
    counts.add(counter, len(pass2_uses))
    counts.add(f"{counter}_read_once", len(pass2_uses.keys() - pass1_uses.keys()))
    outputs = OutputFiles(store, spec, attempt_id, ids, counts)
    inputs = _pass_over(context, store, pass2_uses, counts)
    writer = PartitionWriter(spec, inputs, outputs, counts)
    try:
        for position, run in enumerate(runs):
            survivors = known.survivors(run)
            with counts.timed("write_ms"):
                records = writer.write(run.work, survivors, series=run.number)
            read += 0 if survivors is None else records
            inputs.close_after(position)
        counts.add_aborted(inputs.aborted_records)
        if read != judged:
            raise IncompleteShuffleError(f"{where}: pass 2 read {read} records, but {judged} were judged")
        with counts.timed("complete_ms"):
            files = outputs.complete()
    finally:
        try:
            outputs.abort()
        finally:
            inputs.close()
    counts.add("compacted_files", len(files))
    counts.add("compacted_bytes", sum(file.size for file in files))
    return JobResult(
        job_id=spec.job_id,
        attempt_id=attempt_id,
        files=files,
        counts=merge_reports(counts.finish(), known.reports),
    )
