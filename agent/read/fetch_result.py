"""The result of a fetch for each partition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.cluster.errors import UnknownPartitionError
from agent.read.batch_slicing import ServedBatches
from core.errors import OffsetOutOfRangeError
from object_format.record_batch.headers import trim_batches
from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.read.fetch_plan import Cursor, PartitionFetch
    from catalog.model import AbortedTransaction
    from core.errors import SiltstoneError

_MAX_OFFSETS_OF_A_BATCH = 2**31
_NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """The result of a fetch for one partition.

    `batches` are runs of whole batches with their final offsets. The first batch may begin below the
    requested offset, because batches are never cut. `next_offset` is the offset of the next fetch. If there
    are only offsets without records up to `next_offset`, they are returned as one empty batch, like the one
    that Kafka's cleaner leaves: a Kafka consumer advances by the offsets of batches, and could not reach the
    end of the log otherwise. With an `error`, the other fields are empty. `late` is set if there are no
    batches because a disk has not responded in time.

    With `committed_only`, no batch lies at or after the last stable offset. The reader drops the batches of
    the `aborted` transactions.
    """

    partition: int
    batches: Sequence[bytearray | memoryview] = ()
    size: int = 0
    next_offset: int = -1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    high_watermark: int = -1
    error: SiltstoneError | None = None
    late: SiltstoneError | None = None
    committed_only: bool = False
    has_transactions: bool = False
    aborted: Sequence[AbortedTransaction] = ()

    @property
    def is_at_end(self) -> bool:
        """Return True if the result reaches the end of what the reader may see."""
        end = self.last_stable_offset if self.committed_only else self.high_watermark
        return self.next_offset >= end


def unknown_partition(name: str) -> UnknownPartitionError:
    """Return the error for a partition that the catalog does not have."""
    return UnknownPartitionError(
        f"partition {name} does not exist", remedy="use one of the topic's partitions"
    )


def offset_error(cursor: Cursor) -> SiltstoneError | None:
    """Return the error that prevents any read at the cursor's position, or None."""
    fetch, state = cursor.fetch, cursor.state
    if state is None:
        return unknown_partition(fetch.partition_name)
    if state.log_start_offset <= cursor.served.next_offset <= state.high_watermark:
        return None
    return OffsetOutOfRangeError(
        fetch.partition_name,
        cursor.served.next_offset,
        log_start_offset=state.log_start_offset,
        high_watermark=state.high_watermark,
    )


def result_of(cursor: Cursor) -> FetchResult:
    """Return the result of the cursor."""
    state = cursor.state
    if cursor.error is not None or state is None:
        return FetchResult(partition=cursor.fetch.partition, error=cursor.error)
    served = cursor.served
    if cursor.fetch.committed_only and served.next_offset > state.last_stable_offset > cursor.fetch.offset:
        served = _stable_part(served, cursor.fetch.offset, state.last_stable_offset)
    runs = served.runs or _hole(cursor.fetch.offset, served.next_offset)
    return FetchResult(
        partition=cursor.fetch.partition,
        batches=runs,
        size=served.size or sum(len(run) for run in runs),
        next_offset=served.next_offset,
        committed_only=cursor.fetch.committed_only,
        has_transactions=state.has_transactions,
        log_start_offset=state.log_start_offset,
        last_stable_offset=state.last_stable_offset,
        high_watermark=state.high_watermark,
        aborted=cursor.aborted,
        late=cursor.late,
    )


def _stable_part(served: ServedBatches, first_offset: int, end: int) -> ServedBatches:
    """Return the batches before the last stable offset, at which a batch begins."""
    runs = [
        trim_batches(memoryview(run), first_offset=first_offset, last_offset=end - 1) for run in served.runs
    ]
    kept: list[bytearray | memoryview] = [run for run in runs if len(run)]
    return ServedBatches(end, kept, sum(map(len, kept)), is_cut=served.is_cut)


def _hole(first_offset: int, next_offset: int) -> list[bytearray | memoryview]:
    """Return one empty batch for the offsets of [first_offset, next_offset), if there are any.

    A batch covers at most 2^31 offsets. The next fetch asks for the rest.
    """
    offsets = min(next_offset - first_offset, _MAX_OFFSETS_OF_A_BATCH)
    if offsets <= 0:
        return []
    batch = encode_batch(
        (), (), (), base_offset=first_offset, last_offset_delta=offsets - 1, leader_epoch=_NO_LEADER_EPOCH
    )
    return [memoryview(batch)]


def is_sufficient(results: Sequence[FetchResult], min_bytes: int) -> bool:
    """Return True if the fetch should respond with `results` instead of waiting for more."""
    if sum(result.size for result in results) >= min_bytes:
        return True
    return any(
        result.error is not None or (result.late is None and not result.is_at_end) for result in results
    )


def within_limits(
    wanted: Sequence[PartitionFetch], results: Sequence[FetchResult], max_bytes: int
) -> list[FetchResult]:
    """Drop the batches of each result that exceeds the limits, except those of the first with batches.

    Each read returns at least one batch, so that a fetch makes progress. Kafka's consumers rely on it for one
    partition of a response only: with more, the response may exceed what they receive.
    """
    kept: list[FetchResult] = []
    left = max_bytes
    for fetch, result in zip(wanted, results, strict=True):
        if left < max_bytes and result.size > min(fetch.max_bytes, left):
            kept.append(replace(result, batches=(), size=0, next_offset=fetch.offset))
        else:
            kept.append(result)
            left -= result.size
    return kept
