"""Warm-up: runs small jobs by both plans in this process, so that every kernel of compaction is compiled.

The jobs contain each kind of input for which a kernel is compiled separately: batches with and without
compression, batches whose records survive, partly or not at all, tombstones, gaps between offsets, and a
batch that is too large to be filtered at once.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.model import Extent, FileKind, JobInput, JobPartition, JobSpec
from core.clock import SystemClock
from core.ids import SystemIds
from object_format.codecs.codec import Codec
from object_format.dedupe.long_batches import CHUNK_OFFSETS
from object_format.record_batch.headers import assign_offsets, iter_headers
from object_format.record_batch.records import decode_batch, encode_batch
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from object_store.names import ingestion_name
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.shuffle.shares import ShareSizes
from spark_jobs.shuffle.stages import ShareInput, StageContext, cut_share, judge_buckets, write_share
from spark_jobs.task.compaction_task import run_compaction
from spark_jobs.task.small_sections.plan import GroupLimits
from spark_jobs.task.small_sections.runner import DEFAULT_LIMITS

if TYPE_CHECKING:
    from pathlib import Path

    from spark_jobs.shuffle.rows import BlobRow

_TOPIC: Final = UUID(int=1)
_NOW_MS: Final = 1_700_000_000_000
_PARTITIONS: Final = (
    ("compact", (Codec.NONE,)),
    ("compact", (Codec.NONE, Codec.LZ4, Codec.ZSTD)),  # those that kernels decompress
    ("delete", tuple(Codec)),
    ("compact,delete", tuple(Codec)),
)
"""Cleanup policy of each partition, and the codecs of its batches."""
_LONG_BATCH: Final = 3
"""Partition with a batch that is too large to be filtered at once; pass 1 filters none of its batches."""
_RECORDS: Final = 300
_NO_GROUPS: Final = GroupLimits(bytes=0)
_OFFSETS: Final = 1 << 20
"""Offsets of one extent. Most have no record."""


def warm_up(directory: Path) -> None:
    """Compact a few files below an empty directory. Blocking; takes a minute if nothing is compiled."""
    clock = SystemClock()
    ids = SystemIds(clock)
    with closing(LocalStore(directory, ids)) as store:
        inputs = [_write_file(store, number) for number in range(3)]
        for merge, limits in ((True, _NO_GROUPS), (False, _NO_GROUPS), (True, DEFAULT_LIMITS)):
            spec = _spec(inputs, merge=merge)
            run_compaction(spec, store, attempt_id=UUID(int=2), clock=clock, ids=ids, limits=limits)
        _run_shuffled(_spec(inputs, merge=True), store, clock, ids)


def _batches(number: int, partition: int) -> bytearray:
    """Return the batches of one section; later files supersede most keys of earlier ones."""
    data = bytearray()
    values = [None if each % 50 == number else bytes(100) for each in range(_RECORDS)]
    keys = []
    for codec in _PARTITIONS[partition][1]:
        keys = [b"%d-%d" % (codec, each * (number + 1) % 400) for each in range(_RECORDS)]
        data += encode_batch([_NOW_MS] * _RECORDS, keys, values, codec=codec)
        data += encode_batch([_NOW_MS], [b"key-%d" % codec], [b"small"], codec=codec)
    deltas = list(range(0, 2 * _RECORDS, 2))
    data += encode_batch([_NOW_MS] * _RECORDS, keys, values, offset_deltas=deltas)
    data += encode_batch([_NOW_MS], [b"gone"], [None], delete_horizon_ms=_NOW_MS - 1)
    data += encode_batch([_NOW_MS], [None], [b"without a key"])
    if number == 0 and partition == _LONG_BATCH:
        count = CHUNK_OFFSETS + 1
        data += encode_batch([_NOW_MS] * count, [b"key"] * count, [None] * count, codec=Codec.ZSTD)
    return data


def _write_file(store: LocalStore, number: int) -> JobInput:
    file_id = UUID(int=10 + number)
    name = ingestion_name(UUID(int=3), file_id)
    pieces: list[bytes] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.INGESTION,
        file_id=file_id,
        writer_id=UUID(int=3),
        created_ms=_NOW_MS,
        sink=lambda data: pieces.append(bytes(data)),
    )
    extents = []
    shift = number * _OFFSETS
    for partition in range(len(_PARTITIONS)):
        data = _batches(number, partition)
        end = assign_offsets(data)
        records = sum(header.record_count for _, header in iter_headers(data))
        writer.begin_section(_TOPIC, partition)
        writer.append(data)
        entry = writer.end_section(
            base_offset=0,
            last_offset=end - 1,
            record_count=records,
            min_timestamp=_NOW_MS,
            max_timestamp=_NOW_MS,
        )
        extents.append(
            Extent(
                topic_id=_TOPIC,
                partition=partition,
                base_offset=shift,
                last_offset=shift + _OFFSETS - 1,
                record_count=records,
                min_timestamp=_NOW_MS,
                max_timestamp=_NOW_MS,
                file_id=file_id,
                object_name=name,
                file_kind=FileKind.INGESTION,
                position=entry.data_position,
                length=entry.data_length,
                index_position=entry.index_position,
                index_length=entry.index_length,
                offset_shift=shift,
                leader_epoch=1,
                unique_keys=False,
                committed_ms=_NOW_MS,
            )
        )
        decode_batch(data)  # for readers of single records
    summary = writer.finish()
    store.put(name, pieces, purpose=Purpose.CHECK)
    return JobInput(file_id=file_id, object_name=name, size=summary.size, extents=tuple(extents))


def _spec(inputs: list[JobInput], *, merge: bool) -> JobSpec:
    partitions = tuple(
        JobPartition(
            topic_id=_TOPIC,
            partition=number,
            topic_name="warm-up",
            cleanup_policy=policy,
            compression_type="lz4" if number == _LONG_BATCH else "producer",
            deduplicate="compact" in policy,
            reaches_log_start=True,
            base_offset=0,
            upper_offset=len(inputs) * _OFFSETS,
            delete_retention_ms=1000,
            max_message_bytes=1 << 20,
        )
        for number, (policy, _) in enumerate(_PARTITIONS)
    )
    return JobSpec(
        job_id=UUID(int=4),
        created_ms=_NOW_MS,
        now_ms=_NOW_MS,
        hash_seed=bytes(16),
        table_bytes=1 << 16,  # too small for all keys
        reason="warm-up",
        inputs=tuple(inputs),
        partitions=partitions,
        merge_batches=merge,
    )


def _run_shuffled(spec: JobSpec, store: LocalStore, clock: SystemClock, ids: SystemIds) -> None:
    """Run the stages of the shuffle plan, one task after another."""
    sizes = ShareSizes(share_bytes=1 << 16, min_shares=2, min_piece_bytes=1 << 14)
    plan = plan_shuffle(spec, sizes)
    context = StageContext(spec=spec, plan=plan, clock=clock, check=lambda: None)
    blobs: defaultdict[int, list[BlobRow]] = defaultdict(list)
    for share in range(len(plan.shares)):
        for blob in cut_share(context, share, store):
            blobs[blob.judge].append(blob)
    known: defaultdict[int, ShareInput] = defaultdict(ShareInput)
    for rows in blobs.values():
        rows.sort(key=lambda row: (row.kind, row.number, -row.first_offset))
        for row in judge_buckets(context, rows):
            known[row.share].add(row)
    for share in range(len(plan.shares)):
        write_share(context, share, known[share], store, UUID(int=5), ids)
