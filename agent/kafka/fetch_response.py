"""What a Fetch request is told: read from wherever it lies, partition by partition.

The way of requests that memory alone cannot answer (`fast_path.fetch`), and of all that is wrong with any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from agent.cluster.brokers import choose, partition_subject
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.fetch_sessions import Seen
from agent.kafka.topics.lookup import check_partition, find_each
from agent.read.fetch_plan import PartitionFetch
from agent.read.pending_fetch import fetch_held
from catalog.model import PartitionId
from core.errors import SiltstoneError
from object_format.codecs.codec import Codec
from object_format.record_batch.headers import iter_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.fetch_sessions import FetchContext, Key
    from agent.read.fetch_result import FetchResult
    from agent.read.memory_reads import Wanted

IDENTIFIERS_SINCE = 13
"""Version in which topics are named by their identifiers."""

_ZSTD_SINCE = 10
_NO_IDENTIFIER = bytes(16)


class FetchLimits(NamedTuple):
    """How much a request wants, for how long it waits (in milliseconds), and where its client is."""

    max_wait: int
    min_bytes: int
    max_bytes: int
    rack: str


@dataclass(slots=True)
class _Item:
    """One partition of a request."""

    name: str
    topic_id: UUID | None
    wanted: Wanted
    fetch: PartitionFetch | None = None
    result: FetchResult | None = None
    error: Exception | None = None
    # The answer that names an agent nearer to the client: nothing is read here.
    redirect: Struct | None = None


async def build_fetch_response(reads: FetchContext, limits: FetchLimits, context: RequestContext) -> Struct:
    """Read what there is, or wait for it; the request has begun in its session."""
    by_id = context.version >= IDENTIFIERS_SINCE
    items = [_item(key, wanted, by_id=by_id) for key, wanted in reads.wanted.items()]
    await _find_topics(items, context)
    await _redirect(items, limits.rack, context)
    await _fetch(items, limits, context)
    if context.version < _ZSTD_SINCE:
        await context.services.pools.kernels.run(partial(_refuse_zstd, items))
    answers = [_partition(item) for item in items]
    session_id, news = reads.answered(map(_seen, answers))
    topics: dict[tuple[str, UUID | None], Struct] = {}
    for item, each, is_news in zip(items, answers, repeat(True) if news is None else news, strict=False):
        if is_news:
            name = item.name, item.topic_id
            topic = topics.setdefault(name, Struct(topic=item.name, topic_id=item.topic_id, partitions=[]))
            topic.partitions.append(each)
    return Struct(session_id=session_id, responses=list(topics.values()))


def _item(key: Key, wanted: Wanted, *, by_id: bool) -> _Item:
    name, _ = key
    if by_id:
        return _Item("", None if name == _NO_IDENTIFIER else UUID(bytes=name), wanted)
    return _Item(name.decode(), None, wanted)


def _seen(answer: Struct) -> Seen:
    """The same, to the session."""
    fields = answer.__dict__
    return Seen(
        answer.high_watermark,
        fields.get("log_start_offset", -1),
        any(map(len, answer.records)),
        failed=bool(fields.get("error_code", 0)),
        redirected="preferred_read_replica" in fields,
    )


async def _redirect(items: Sequence[_Item], rack: str, context: RequestContext) -> None:
    """Name the agent in the client's rack that it should ask, where that is another one.

    As Kafka has it, not for an offset that the log does not have: it is refused here and not sent to and fro.
    """
    services = context.services
    if not rack or rack == services.brokers.own.rack:
        return
    near = [broker for broker in await services.brokers.live() if broker.rack == rack]
    asked = [item.fetch for item in items if item.fetch is not None]
    if not near or not asked:
        return
    ids = [PartitionId(fetch.topic.topic_id, fetch.partition) for fetch in asked]
    try:
        found = await services.pools.catalog.run(partial(services.catalog.topics.states, ids))
    except SiltstoneError:
        return  # it is only a hint
    states = {PartitionId(state.topic_id, state.partition): state for state in found}
    for item in items:
        fetch = item.fetch
        part = None if fetch is None else PartitionId(fetch.topic.topic_id, fetch.partition)
        state = None if part is None else states.get(part)
        if fetch is None or state is None:
            continue
        nearest = choose(near, partition_subject(fetch.topic.topic_id, fetch.partition))
        if state.log_start_offset <= fetch.offset <= state.high_watermark:
            item.fetch = None
            item.redirect = Struct(
                partition_index=fetch.partition,
                high_watermark=state.high_watermark,
                last_stable_offset=state.last_stable_offset,
                log_start_offset=state.log_start_offset,
                aborted_transactions=(),
                preferred_read_replica=nearest.node_id,
                records=(),
            )


async def _find_topics(items: Sequence[_Item], context: RequestContext) -> None:
    by_id = context.version >= IDENTIFIERS_SINCE
    keys = ((item.name, item.topic_id) for item in items)
    found = await find_each(context.services.directory, keys, by_id=by_id)
    for item in items:
        topic, wanted = found[item.name, item.topic_id], item.wanted
        if isinstance(topic, SiltstoneError):
            item.error = topic
            continue
        try:
            check_partition(topic, wanted.partition, wanted.leader_epoch)
        except SiltstoneError as error:
            item.error = error
        else:
            item.fetch = PartitionFetch(
                topic=topic,
                partition=wanted.partition,
                offset=wanted.offset,
                max_bytes=wanted.max_bytes,
            )


async def _fetch(items: Sequence[_Item], limits: FetchLimits, context: RequestContext) -> None:
    good = [item for item in items if item.fetch is not None]
    if not good:
        return
    try:
        held = await fetch_held(
            context.services.read_path,
            [item.fetch for item in good if item.fetch],
            max_bytes=limits.max_bytes,
            min_bytes=limits.min_bytes,
            max_wait_ms=limits.max_wait if len(good) == len(items) else 0,
        )
    except SiltstoneError as error:
        await _fetch_apart(good, error, context)
        return
    context.releases.append(held.release)
    for item, result in zip(good, held.results, strict=True):
        item.result = result
        item.error = result.error


async def _fetch_apart(items: Sequence[_Item], error: SiltstoneError, context: RequestContext) -> None:
    """Something is wrong with one of them, perhaps: read each alone, so that it alone is refused."""
    for item in items:
        item.error = error
    for item in items if len(items) > 1 else ():
        if item.fetch is not None:
            try:
                held = await fetch_held(
                    context.services.read_path, [item.fetch], max_bytes=item.fetch.max_bytes
                )
            except SiltstoneError as own:
                item.error = own
            else:
                context.releases.append(held.release)
                (item.result,) = held.results
                item.error = item.result.error


def _refuse_zstd(items: Sequence[_Item]) -> None:
    for item in items:
        runs = item.result.batches if item.result is not None else ()
        if any(header.codec is Codec.ZSTD for run in runs for _, header in iter_headers(run)):
            item.error = KafkaError(
                ErrorCode.unsupported_compression_type, f"zstd needs fetch requests of version {_ZSTD_SINCE}"
            )


def _partition(item: _Item) -> Struct:
    result = item.result
    if item.redirect is not None:
        return item.redirect
    if item.error is not None or result is None:
        code = ErrorCode.unknown_server_error if item.error is None else _code(item.error)
        return Struct(
            partition_index=item.wanted.partition,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=(),
            records=(),
        )
    return Struct(
        partition_index=item.wanted.partition,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=(),
        records=result.batches,
    )


def _code(error: Exception) -> ErrorCode:
    code = code_of(error)
    # What Fetch knows of "try again"; the others are for producers and admins.
    retriable = {ErrorCode.not_enough_replicas, ErrorCode.request_timed_out}
    return ErrorCode.kafka_storage_error if code in retriable else code
