"""Produce requests of the usual kind, from their bytes to those of the answer, all partitions at a time.

That is a request of no transaction that waits for its answer, small enough to be judged on the spot, of
batches that are not compressed and without a fault, for topics that are known and live in the object store.
All others, and those of which anything is refused, go the way of `apis.produce`; both ways lead to the same
answers, which a test compares.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import crc32c
from typing_extensions import override

from agent.kafka.api import AtOnce
from agent.kafka.codec.messages import Message
from agent.kafka.codec.produce_survey import ProduceSurvey
from agent.kafka.codec.writing import Output
from agent.kafka.produce_answer import IDENTIFIERS_SINCE, PartitionFate, answer_of, write_appended
from agent.validation import NO_TIMESTAMP, AppendRules, BatchColumns, ValidatedBatches
from bedrock.errors import SiltstoneError
from catalog.model import ProducerStamp
from object_format.kernels.layout import ATTRIBUTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.kafka.api import Context, RequestFrame
    from agent.kafka.codec.writing import Buffers
    from agent.pending_append import PendingAppend
    from agent.topic_directory import TopicDirectory
    from catalog.model import Topic

MOST_BYTES = 256 * 1024
"""Of a request that is judged on the loop: in 40 µs, or 300 where all records are tiny. A pool takes two
changes of threads, which on a busy machine cost more than that."""

_MOST_BATCHES = 4096  # the least batch has 69 bytes
_CRC, _PRODUCER = 9, 11  # columns of the survey


class _Known(NamedTuple):
    """A topic of a request: how it was named, and what its batches have to keep to."""

    name: bytes
    topic: Topic
    partitions: int
    most_bytes: int
    require_keys: bool
    earliest: int
    latest: int


class _Topics:
    """The topics of one request, by the bytes that name them."""

    def __init__(self, directory: TopicDirectory, now_ms: int, *, by_id: bool) -> None:
        self._directory = directory
        self._by_id = by_id
        self._now_ms = now_ms

    def find(self, name: bytes) -> _Known | None:
        """The topic; None for one that is not for this way."""
        if self._by_id:
            topic = self._directory.fresh_by_id(UUID(bytes=name))
        else:
            topic = self._directory.fresh(str(name, "utf-8", "replace"))
        if topic is None:
            return None
        rules = AppendRules.of(topic.config)
        if rules.append_time or rules.is_local:
            return None
        return _Known(
            name,
            topic,
            topic.partition_count,
            rules.max_message_bytes,
            rules.require_keys,
            self._now_ms - rules.before_max_ms,
            self._now_ms + rules.after_max_ms,
        )


class PlainProduce(AtOnce):
    """Takes usual requests of one agent. Belongs to the event loop."""

    def __init__(self) -> None:
        self._survey = ProduceSurvey(_MOST_BATCHES)

    @override
    def take(self, frame: RequestFrame, context: Context) -> Callable[[], Awaitable[Buffers]] | None:
        """Judge and enqueue everything, or nothing."""
        data = frame.data
        if len(data) > MOST_BYTES or data.readonly:
            return None
        by_id = context.version >= IDENTIFIERS_SINCE
        found = self._survey.read(data, frame.position, is_flexible=frame.is_flexible, by_id=by_id)
        if found is None:
            return None
        rows, acks, timeout = found
        if acks not in {-1, 1}:
            return None
        services = context.services
        judged = _judge(rows, data, _Topics(services.directory, services.clock.now_ms(), by_id=by_id))
        if judged is None:
            return None
        names, appends = judged
        try:
            pending = services.appends.enqueue_together(appends)
        except SiltstoneError:
            return None  # refused again, and answered, on the other way
        seconds = max(timeout, 0) / 1000 if acks == -1 else None
        return partial(_answer, names, appends, pending, seconds, context.version, frame)


def _judge(
    rows: Sequence[list[int]], data: memoryview, topics: _Topics
) -> tuple[list[bytes], list[ValidatedBatches]] | None:
    """The topics' names and what to append, batch by batch; None when anything is not as it should be."""
    names: list[bytes] = []
    appends: list[ValidatedBatches] = []
    crc32 = crc32c.crc32c
    named_at, kept = -1, 0
    known: _Known | None = None
    for row in rows:
        name_at, name_end, partition, start, end, count, lowest, highest, *_ = row
        if name_at != named_at:
            named_at = name_at
            known = topics.find(bytes(data[name_at:name_end]))
        if known is None or not _is_taken(row, known) or crc32(data[start + ATTRIBUTES : end]) != row[_CRC]:
            return None
        size = end - start
        batch = BatchColumns(0, size, count, count, lowest, highest, _stamp(row))
        names.append(known.name)
        appends.append(ValidatedBatches(known.topic, partition, data[start:end], (batch,)))
        kept += size
    # What is taken holds on to the whole frame: it must not be the smaller part of it.
    return (names, appends) if appends and 2 * kept >= len(data) else None


def _is_taken(row: list[int], known: _Known) -> bool:
    """Whether the topic takes the batch, just as it is."""
    _, _, partition, start, end, _, lowest, highest, keyless, _, stamped, *_ = row
    return (
        0 <= partition < known.partitions
        and end - start <= known.most_bytes
        and not (keyless and known.require_keys)
        and stamped == highest
        and (lowest >= known.earliest or lowest == NO_TIMESTAMP)
        and (highest <= known.latest or highest == NO_TIMESTAMP)
    )


def _stamp(row: list[int]) -> ProducerStamp | None:
    producer_id, epoch, sequence = row[_PRODUCER:]
    if producer_id < 0:
        return None
    return ProducerStamp(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


async def _answer(
    names: Sequence[bytes],
    appends: Sequence[ValidatedBatches],
    pending: PendingAppend,
    seconds: float | None,
    version: int,
    frame: RequestFrame,
) -> Buffers:
    """The answer, once everything is committed or the time is up."""
    if not pending.is_settled:
        try:
            async with asyncio.timeout(seconds):
                await pending.wait()
        except TimeoutError:
            pass  # those that are not settled say so
    results = pending.results_so_far()
    out = Output()
    out.tail += bytes(4) + frame.correlation_id.to_bytes(4, "big", signed=True)
    if frame.is_flexible:
        out.tail.append(0)
    if all(result is not None and result.appended for result in results):
        write_appended(out, names, appends, results, version)
    else:
        by_id = version >= IDENTIFIERS_SINCE
        fates = [
            PartitionFate(
                name="" if by_id else append.topic.name,
                topic_id=append.topic.topic_id if by_id else None,
                index=append.partition,
                validated=append,
                result=result,
            )
            for append, result in zip(appends, results, strict=True)
        ]
        Message.of("produce", version).write_response(out, answer_of(fates))
    out.tail[:4] = (len(out) - 4).to_bytes(4, "big")
    return out.buffers()
