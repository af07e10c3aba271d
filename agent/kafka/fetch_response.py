"""The ordinary way to serve a Fetch request: read each partition from memory, disk or the object store.

Requests that memory alone can serve take `fast_path.fetch` instead. Requests with any error come here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from agent.cluster.brokers import choose, partition_subject
from agent.kafka.authorization import current_acls, refusal, refused_names
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, code_of
from agent.kafka.fetch_sessions import PartitionStatus
from agent.kafka.topic_lookup import check_partition, epoch_error, find_permitted_topics
from agent.read.fetch_plan import PartitionFetch
from agent.read.pending_fetch import fetch_within_budget
from agent.security.rights import READ_TOPIC
from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.fetch_sessions import FetchContext, PartitionKey
    from agent.read.fetch_result import FetchResult
    from agent.read.memory_reads import PartitionRead

READ_COMMITTED = 1
"""The isolation level of readers of committed records."""

TOPIC_IDS_SINCE = 13
"""The first version that names topics by their ids."""

_NO_TOPIC_ID = bytes(16)


class FetchLimits(NamedTuple):
    """How much a request wants, how long it waits for it (in milliseconds), and its client's rack.

    `committed_only` is the isolation level READ_COMMITTED.
    """

    max_wait: int
    min_bytes: int
    max_bytes: int
    rack: str
    committed_only: bool = False


@dataclass(slots=True)
class _Item:
    """One partition of a request, with a result, a redirect or an error in the end. An error goes first."""

    name: str
    topic_id: UUID | None
    wanted: PartitionRead
    fetch: PartitionFetch | None = None
    result: FetchResult | None = None
    error: Exception | None = None
    # The response that names an agent in the client's rack. Nothing is read for it.
    redirect: Struct | None = None


async def build_fetch_response(
    fetch_context: FetchContext, limits: FetchLimits, context: RequestContext
) -> Struct:
    """Read all partitions, wait if there is too little, and return the response.

    The caller has called `begin` on the session's request.
    """
    by_id = context.version >= TOPIC_IDS_SINCE
    items = [_item(key, wanted, by_id=by_id) for key, wanted in fetch_context.wanted.items()]
    acls = current_acls(context)
    await _find_topics(items, context, committed_only=limits.committed_only)
    await _redirect_to_rack(items, limits.rack, context)
    await _fetch(items, limits, context)
    if current_acls(context) is not acls:
        await _authorize_again(items, context)
    _check_epoch_again(items, context.services.epoch.current)
    partitions = [_partition(item) for item in items]
    session_id, changed = fetch_context.complete(map(_status, partitions))
    topics: dict[tuple[str, UUID | None], Struct] = {}
    included = repeat(True) if changed is None else changed
    for item, response, is_included in zip(items, partitions, included, strict=False):
        if is_included:
            name = item.name, item.topic_id
            topic = topics.setdefault(name, Struct(topic=item.name, topic_id=item.topic_id, partitions=[]))
            topic.partitions.append(response)
    return Struct(session_id=session_id, responses=list(topics.values()))


def _item(key: PartitionKey, wanted: PartitionRead, *, by_id: bool) -> _Item:
    name, _ = key
    if by_id:
        return _Item("", None if name == _NO_TOPIC_ID else UUID(bytes=name), wanted)
    return _Item(name.decode(), None, wanted)


def _status(partition: Struct) -> PartitionStatus:
    """Return what the session needs to know of a partition's response."""
    fields = partition.__dict__
    return PartitionStatus(
        partition.high_watermark,
        fields.get("log_start_offset", -1),
        any(map(len, partition.records)),
        failed=bool(fields.get("error_code", 0)),
        redirected="preferred_read_replica" in fields,
    )


async def _redirect_to_rack(items: Sequence[_Item], rack: str, context: RequestContext) -> None:
    """Redirect the client to an agent in its own rack, if this agent is in another one (KIP-392).

    As in Kafka, an offset outside the log is not redirected. It fails here; otherwise the agents could
    redirect the client back and forth. A local topic is not redirected either: only its leader has the log.
    """
    services = context.services
    if not rack or rack == services.brokers.own.rack:
        return
    brokers = await services.brokers.live_on(context.client.listener)
    in_rack = [broker for broker in brokers if broker.rack == rack]
    fetches = [each.fetch for each in items if each.fetch is not None and not each.fetch.topic.is_local]
    if not in_rack or not fetches:
        return
    ids = [PartitionId(fetch.topic.topic_id, fetch.partition) for fetch in fetches]
    try:
        found = await services.pools.catalog.run(partial(services.catalog.topics.states, ids))
    except SiltstoneError:
        return  # the redirect is only a hint
    states = {PartitionId(state.topic_id, state.partition): state for state in found}
    for item in items:
        fetch = item.fetch
        partition = None if fetch is None else PartitionId(fetch.topic.topic_id, fetch.partition)
        state = None if partition is None else states.get(partition)
        if fetch is None or state is None:
            continue
        replica = choose(in_rack, partition_subject(fetch.topic.topic_id, fetch.partition))
        if state.log_start_offset <= fetch.offset <= state.high_watermark:
            item.redirect = Struct(
                partition_index=fetch.partition,
                high_watermark=state.high_watermark,
                last_stable_offset=state.last_stable_offset,
                log_start_offset=state.log_start_offset,
                aborted_transactions=(),
                preferred_read_replica=replica.node_id,
                records=(),
            )


async def _find_topics(items: Sequence[_Item], context: RequestContext, *, committed_only: bool) -> None:
    by_id = context.version >= TOPIC_IDS_SINCE
    keys = ((item.name, item.topic_id) for item in items)
    found = await find_permitted_topics(context, keys, READ_TOPIC, by_id=by_id)
    for item in items:
        topic, wanted = found[item.name, item.topic_id], item.wanted
        if isinstance(topic, SiltstoneError):
            item.error = topic
            continue
        try:
            check_partition(topic, wanted.partition, context.services.epoch.current, wanted.leader_epoch)
        except SiltstoneError as error:
            item.error = error
        else:
            item.fetch = PartitionFetch(
                topic=topic,
                partition=wanted.partition,
                offset=wanted.offset,
                max_bytes=wanted.max_bytes,
                committed_only=committed_only,
            )


async def _fetch(items: Sequence[_Item], limits: FetchLimits, context: RequestContext) -> None:
    """Read all partitions together. A request with an error in any partition does not wait."""
    valid = [item for item in items if item.fetch is not None and item.redirect is None]
    if not valid:
        return
    try:
        pending = await fetch_within_budget(
            context.services.read_path,
            [item.fetch for item in valid if item.fetch],
            max_bytes=limits.max_bytes,
            min_bytes=limits.min_bytes,
            max_wait_ms=limits.max_wait if len(valid) == len(items) else 0,
        )
    except SiltstoneError as error:
        for item in valid:
            item.error = error
        return
    context.releases.append(pending.release)
    for item, result in zip(valid, pending.results, strict=True):
        item.result = result
        item.error = result.error


async def _authorize_again(items: Sequence[_Item], context: RequestContext) -> None:
    """Reject reads whose right was revoked while the fetch waited."""
    names = {item.fetch.topic.name for item in items if item.fetch is not None}
    refused = await refused_names(context, READ_TOPIC, names)
    for item in items:
        if item.fetch is not None and item.fetch.topic.name in refused:
            item.error = refusal(READ_TOPIC)


def _check_epoch_again(items: Sequence[_Item], epoch: int) -> None:
    """Reject the reads of clients in an earlier epoch than that which the agent learned of during the fetch.

    Their positions may lie after the records that the new epoch begins with, or after its log end. With this
    error, the client validates its position instead of resetting it.
    """
    for item in items:
        topic = item.fetch.topic if item.fetch is not None else None
        if topic is not None and not topic.is_local and -1 < item.wanted.leader_epoch < epoch:
            name = f"{topic.name}-{item.wanted.partition}"
            item.error = epoch_error(name, epoch, item.wanted.leader_epoch)


def _partition(item: _Item) -> Struct:
    result = item.result
    if item.redirect is not None and item.error is None:
        return item.redirect
    if item.error is not None or result is None:
        code = ErrorCode.unknown_server_error if item.error is None else _fetch_error_code(item.error)
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
        aborted_transactions=[
            Struct(producer_id=each.producer_id, first_offset=each.first_offset) for each in result.aborted
        ],
        records=result.batches,
    )


def _fetch_error_code(error: Exception) -> ErrorCode:
    """Return the error's code, with the retriable codes of other requests replaced by Fetch's own."""
    code = code_of(error)
    retriable = {ErrorCode.not_enough_replicas, ErrorCode.request_timed_out}
    return ErrorCode.kafka_storage_error if code in retriable else code
