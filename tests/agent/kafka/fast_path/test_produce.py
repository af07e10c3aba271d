"""Differential test of Produce: the fast path and the ordinary path make the same appends and responses."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch
from uuid import UUID

import crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from agent.cluster.errors import AppendFailedError
from agent.kafka.apis.records import produce
from agent.kafka.codec import MalformedMessageError, Struct
from agent.kafka.dispatcher import RequestDispatcher
from agent.kafka.errors import ErrorCode
from agent.kafka.fast_path import produce as fast_produce
from agent.kafka.fast_path import produce_parser
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.errors import BusyError
from agent.runtime.health import LoopLag
from agent.runtime.metrics import AgentMetrics
from agent.security.audit import AuditLog
from agent.security.authorizer import Authorizer
from agent.security.identity import Client
from agent.write.failed_producers import FailedProducers
from agent.write.pending_append import AppendResult, PendingAppend
from catalog.config.values import TopicConfig
from catalog.model import RunRefusal, Topic
from core.clock import ManualClock, SystemClock
from core.errors import NotFoundError
from object_format.codecs.codec import Codec, compress, decompress
from object_format.codecs.zstd_library import zstd
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    CRC,
    LENGTH_OVERHEAD,
)
from object_format.record_batch import decompression
from object_format.record_batch.records import NO_PRODUCER, encode_batch
from tests.agent.kafka.wire import read_response, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.kafka.services import KafkaServices
    from agent.security.rights import Right
    from agent.write.validation import ValidatedAppend
    from object_format.buffers import Bytes
    from object_format.kernels.runtime.signatures import IntArray

_NOW_MS = 1_000_000
_RESULTS = (
    AppendResult(base_offset=2**40, log_start_offset=3, high_watermark=2**41),
    AppendResult(base_offset=0, duplicate=True, log_start_offset=0, high_watermark=9),
    AppendResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE, detail="a gap"),
    AppendResult(error=AppendFailedError("the object store is down", retry_after_seconds=1.0)),
)


def _topic(number: int, name: str, **config: str) -> Topic:
    texts = {key.replace("_", "."): value for key, value in config.items()}
    return Topic(
        topic_id=UUID(int=number),
        name=name,
        partition_count=2,
        config=TopicConfig.of(texts),
        created_ms=1,
    )


_TOPICS = (
    _topic(1, "plain"),
    _topic(2, "other-topic" * 20),
    _topic(3, "keyed", cleanup_policy="compact"),
    _topic(4, "small", max_message_bytes="90"),
    _topic(5, "recent", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000"),
    _topic(6, "stamped", message_timestamp_type="LogAppendTime"),
)


class _Directory:
    def __init__(self) -> None:
        self._names = {topic.name: topic for topic in _TOPICS}
        self._ids = {topic.topic_id: topic for topic in _TOPICS}

    def cached(self, name: str) -> Topic | None:
        return self._names.get(name)

    def cached_by_id(self, topic_id: UUID) -> Topic | None:
        return self._ids.get(topic_id)

    async def get(self, name: str) -> Topic:
        return self._found(self.cached(name))

    async def get_by_id(self, topic_id: UUID) -> Topic:
        return self._found(self.cached_by_id(topic_id))

    async def get_many(self, names: Iterable[str]) -> dict[str, Topic]:
        return {name: self._names[name] for name in names if name in self._names}

    async def get_many_by_id(self, topic_ids: Iterable[UUID]) -> dict[UUID, Topic]:
        return {topic_id: self._ids[topic_id] for topic_id in topic_ids if topic_id in self._ids}

    def _found(self, topic: Topic | None) -> Topic:
        if topic is None:
            raise NotFoundError("there is no such topic")
        return topic


class _Appends:
    """A write path that completes each append with the given result; None leaves it pending."""

    def __init__(self, results: Sequence[AppendResult | None], *, is_full: bool) -> None:
        self._results = results
        self._is_full = is_full
        self.accepted: list[tuple[str, int, bytes, tuple[object, ...]]] = []
        self.was_together = False

    def _append(self, appends: Sequence[ValidatedAppend]) -> list[AppendResult | None]:
        if self._is_full:
            raise BusyError("the write buffer is full", retry_after_seconds=1.0)
        for each in appends:
            self.accepted.append((each.topic.name, each.partition, bytes(each.data), each.batches))
        return [self._results[number % len(self._results)] for number in range(len(appends))]

    def enqueue(self, appends: Sequence[ValidatedAppend]) -> list[PendingAppend]:
        waiting = []
        for result in self._append(appends):
            pending = PendingAppend(1)
            if result is not None:
                pending.complete(0, [result])
            waiting.append(pending)
        return waiting

    def enqueue_together(self, appends: Sequence[ValidatedAppend]) -> PendingAppend:
        results = self._append(appends)
        self.was_together = True
        pending = PendingAppend(len(appends))
        for number, result in enumerate(results):
            if result is not None:
                pending.complete(number, [result])
        return pending


class _Pool:
    """Counts its calls. A pool that `is_full` rejects them."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.calls = 0
        self._is_full = is_full

    async def run(self, call: Any) -> object:  # noqa: ANN401  # the call's result
        self.calls += 1
        if self._is_full:
            raise BusyError("the kernel pool is full", retry_after_seconds=1.0)
        return call()


def _dispatcher(
    results: Sequence[AppendResult | None],
    *,
    is_full: bool = False,
    fast: bool = True,
    pool: _Pool | None = None,
    authorizer: Authorizer | None = None,
) -> tuple[RequestDispatcher, _Appends]:
    """Return a dispatcher of Produce alone, with or without its fast path, and its write path."""
    appends = _Appends(results, is_full=is_full)
    services = SimpleNamespace(
        directory=_Directory(),
        appends=appends,
        failed_producers=FailedProducers(SystemClock()),
        clock=(clock := ManualClock(_NOW_MS)),
        loop_lag=LoopLag(clock),
        catalog=SimpleNamespace(producers=SimpleNamespace(accept_any_sequence=lambda _: None)),
        pools=SimpleNamespace(kernels=pool or _Pool(), parsing=_Pool(), rendering=_Pool(), catalog=_Pool()),
        parsing_budget=ByteBudget("parsed requests", 2**30),
        quotas=SimpleNamespace(active=None),
        metrics=AgentMetrics(),
        authorizer=authorizer,
    )
    api = produce.API if fast else replace(produce.API, fast_path=None)
    return RequestDispatcher((api,), cast("KafkaServices", services)), appends


def _outcome(
    frame: bytes,
    results: Sequence[AppendResult | None],
    *,
    is_full: bool,
    fast: bool,
    pool: _Pool | None = None,
) -> tuple[object, _Appends]:
    """Return the response, or the type of the error that closes the connection; and the write path."""
    dispatcher, appends = _dispatcher(results, is_full=is_full, fast=fast, pool=pool)

    async def ask() -> object:
        try:
            response_bytes = await dispatcher.handle(
                memoryview(bytearray(frame)), Client("nowhere", "PLAINTEXT")
            )
            if not response_bytes:
                return None
            assert callable(response_bytes)
            return b"".join(await response_bytes())
        except MalformedMessageError as error:
            return type(error)

    return asyncio.run(ask()), appends


def _compare(
    frame: bytes, results: Sequence[AppendResult | None], *, is_full: bool = False, max_bytes: int = 2**18
) -> bool:
    """Check that both paths agree; return True if the fast path handled the request.

    Requests of up to `max_bytes` are validated on the event loop.
    """
    expected, ordinary = _outcome(frame, results, is_full=is_full, fast=False)
    with patch.object(fast_produce, "MAX_BYTES", max_bytes):
        actual, fast = _outcome(frame, results, is_full=is_full, fast=True)
    assert actual == expected
    assert fast.accepted == ordinary.accepted
    return fast.was_together


_batches = st.builds(
    lambda stamps, key, codec, producer, size: bytes(
        encode_batch(stamps, [key] * len(stamps), [bytes(size)] * len(stamps), codec=codec, producer=producer)
    ),
    stamps=st.lists(st.sampled_from([_NOW_MS, _NOW_MS - 5, 1, _NOW_MS * 9]), min_size=1, max_size=4),
    key=st.sampled_from([None, b"key"]),
    codec=st.sampled_from([*[Codec.NONE] * 4, *Codec]),
    producer=st.sampled_from([(-1, -1, -1), (7, 0, 5), (7, 0, -1)]),
    size=st.integers(0, 40),
)


@st.composite
def _records(draw: st.DrawFn) -> bytes | None:
    """Usually one valid batch; sometimes none, two, or a damaged one."""
    batch = draw(_batches)
    kind = draw(st.sampled_from(["one"] * 9 + ["none", "nothing", "two", "changed", "cut"]))
    if kind == "changed":
        position = draw(st.integers(0, len(batch) - 1))
        return (
            batch[:position]
            + bytes([batch[position] ^ (1 << draw(st.integers(0, 7)))])
            + batch[position + 1 :]
        )
    return {"none": None, "nothing": b"", "two": batch * 2, "cut": batch[:-1]}.get(kind, batch)


@st.composite
def _requests(draw: st.DrawFn) -> tuple[int, Struct]:
    version = draw(st.integers(3, 13))
    topics = draw(
        st.lists(
            st.tuples(
                st.sampled_from([*_TOPICS, *_TOPICS[:2] * 3, _topic(99, "unknown")]),
                st.lists(st.tuples(st.sampled_from([0, 1] * 5 + [2, -1]), _records()), max_size=3),
            ),
            max_size=3,
        )
    )
    return version, Struct(
        transactional_id=draw(st.sampled_from([None] * 9 + ["mine"])),
        acks=draw(st.sampled_from([-1, -1, -1, 1, 1, 0, 0, 3])),
        timeout=0,
        topic_data=[
            Struct(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_data=[Struct(index=index, records=records) for index, records in parts],
            )
            for topic, parts in topics
        ],
    )


@settings(max_examples=250, deadline=None)
@given(
    request=_requests(),
    results=st.lists(st.sampled_from([*_RESULTS[:1] * 4, *_RESULTS, None]), min_size=1, max_size=4),
    is_full=st.sampled_from([False] * 7 + [True]),
    max_bytes=st.sampled_from([2**18, 2**18, 250]),
)
def test_both_paths_make_the_same_appends_and_responses(
    request: tuple[int, Struct], results: list[AppendResult | None], *, is_full: bool, max_bytes: int
) -> None:
    """For any request and any result of its appends."""
    version, body = request
    if body.acks == 1:  # without a timeout, the request would wait forever
        results = [_RESULTS[0] if result is None else result for result in results]
    frame = request_frame("produce", version, 5, body, client_id="test")[4:]
    _compare(frame, results, is_full=is_full, max_bytes=max_bytes)


def _common(
    version: int, partitions: int = 2, codecs: Sequence[Codec] = (Codec.NONE,), acks: int = -1
) -> bytes:
    batches = [bytes(encode_batch([_NOW_MS], [b"key"], [bytes(60)], codec=codec)) for codec in codecs]
    parts = [Struct(index=index, records=batches[index % len(batches)]) for index in range(partitions)]
    topics = [Struct(name=topic.name, topic_id=topic.topic_id, partition_data=parts) for topic in _TOPICS[:3]]
    body = Struct(acks=acks, timeout=0, topic_data=topics)
    return request_frame("produce", version, 5, body, client_id="test")[4:]


def test_common_requests_take_the_fast_path_in_every_version() -> None:
    """Several topics and partitions with uncompressed batches, for every result of their appends."""
    for version in range(3, 14):
        for results in ([_RESULTS[0]], list(_RESULTS), [None]):
            assert _compare(_common(version), results)


@pytest.mark.parametrize("max_bytes", [2**18, 500, 300])
@pytest.mark.parametrize("codec", Codec)
def test_compressed_and_large_requests_take_the_fast_path(codec: Codec, max_bytes: int) -> None:
    """Every codec, alone or with others, validated on the event loop or in a thread."""
    for codecs in ([codec], [codec, Codec.NONE], [codec, Codec.LZ4]):
        for version in (7, 9, 13):
            assert _compare(_common(version, codecs=codecs), [_RESULTS[0]], max_bytes=max_bytes)
    assert _compare(_common(6, codecs=[codec]), [_RESULTS[0]], max_bytes=max_bytes) == (
        codec is not Codec.ZSTD
    )


def test_batches_of_any_decompressed_size_take_the_fast_path() -> None:
    """Including batches that exceed the scratch buffer when decompressed."""
    for codec in Codec:
        batch = bytes(encode_batch([_NOW_MS], [b"key"], [bytes(3 * 2**20)], codec=codec))
        topics = [Struct(name="plain", partition_data=[Struct(index=0, records=batch)])]
        body = Struct(acks=-1, timeout=0, topic_data=topics)
        is_fast = _compare(request_frame("produce", 9, 5, body)[4:], [_RESULTS[0]])
        assert is_fast == (len(batch) <= TopicConfig().max_message_bytes)


def _request_of(*batches: bytes, acks: int = -1, partition: int = 0) -> bytes:
    """Return a request with these batches, all for one partition."""
    parts = [Struct(index=partition, records=batch) for batch in batches]
    body = Struct(acks=acks, timeout=0, topic_data=[Struct(name="plain", partition_data=parts)])
    return request_frame("produce", 9, 5, body)[4:]


def _packed(codec: Codec, pack: Callable[[bytes], bytes], value: bytes = b"value") -> bytes:
    """Return a batch of one record, compressed by `pack`."""
    plain = bytes(encode_batch([_NOW_MS], [b"key"], [value]))
    batch = bytearray(plain[:BATCH_OVERHEAD] + pack(plain[BATCH_OVERHEAD:]))
    batch[BATCH_LENGTH : BATCH_LENGTH + 4] = (len(batch) - LENGTH_OVERHEAD).to_bytes(4, "big")
    batch[ATTRIBUTES + 1] |= codec
    batch[CRC : CRC + 4] = crc32c.crc32c(batch[ATTRIBUTES:]).to_bytes(4, "big")
    return bytes(batch)


def _snappy_blocks(records: bytes) -> bytes:
    whole = bytes(compress(Codec.SNAPPY, records))
    return whole[:16] + b"\0\0\0\1\0" * 2000 + whole[16:]


def _zstd_blocks(records: bytes) -> bytes:
    # A frame of many empty blocks and one raw block.
    last = (len(records) << 3 | 1).to_bytes(3, "little")
    return bytes.fromhex("28b52ffd0050") + bytes(3) * 2000 + last + records


def _lz4_blocks(records: bytes) -> bytes:
    whole = bytes(compress(Codec.LZ4, records))
    return whole[:7] + (b"\1\0\0\0" + b"\0") * 2000 + whole[7:]


_EXPENSIVE = {
    "empty gzip members": (
        _packed(Codec.GZIP, lambda data: compress(Codec.GZIP, b"") * 2000 + compress(Codec.GZIP, data)),
    ),
    "empty snappy blocks": (_packed(Codec.SNAPPY, _snappy_blocks),),
    "empty zstd blocks": (_packed(Codec.ZSTD, _zstd_blocks),),
    "empty lz4 blocks": (_packed(Codec.LZ4, _lz4_blocks),),
    "many small batches": (_packed(Codec.ZSTD, lambda data: bytes(compress(Codec.ZSTD, data))),) * 100,
    "high compression ratio": (bytes(encode_batch([_NOW_MS], [b"k"], [bytes(2**19)], codec=Codec.LZ4)),),
    "high compression ratio, many batches": (
        bytes(encode_batch([_NOW_MS], [b"k"], [bytes(2**18)], codec=Codec.LZ4)),
    )
    * 30,
    "one gzip member": (_packed(Codec.GZIP, lambda data: bytes(compress(Codec.GZIP, data))),),
}


@pytest.mark.parametrize("kind", _EXPENSIVE)
def test_expensive_decompression_never_runs_on_the_event_loop(kind: str) -> None:
    """A thread decompresses the request once, however small it is."""
    pool = _Pool()
    frame = _request_of(*_EXPENSIVE[kind])
    assert len(frame) < fast_produce.MAX_BYTES
    assert _compare(frame, [_RESULTS[0]])
    _, appends = _outcome(frame, [_RESULTS[0]], is_full=False, fast=True, pool=pool)
    assert appends.was_together
    assert pool.calls == 1


def test_cheap_decompression_runs_on_the_event_loop() -> None:
    """Common batches of LZ4 and zstd need no thread, whether they are valid or not."""
    pool = _Pool()
    common = bytes(encode_batch([_NOW_MS], [b"k"], [random.Random(3).randbytes(2000) * 2], codec=Codec.LZ4))
    assert _outcome(_request_of(*[common] * 20), [_RESULTS[0]], is_full=False, fast=True, pool=pool)[
        1
    ].was_together
    assert pool.calls == 0
    for codec in (Codec.LZ4, Codec.ZSTD):
        pool = _Pool()
        assert _outcome(_common(9, codecs=(codec,)), [_RESULTS[0]], is_full=False, fast=True, pool=pool)[
            1
        ].was_together
        assert pool.calls == 0
        bad = _packed(codec, lambda data, codec=codec: bytes(compress(codec, data[:-1])))  # type: ignore[misc]
        _outcome(_request_of(bad), [_RESULTS[0]], is_full=False, fast=True, pool=pool)
        assert pool.calls == 1  # on the ordinary path, which reports the error


def _words(count: int, kinds: int) -> bytes:
    """Return text that compresses to a half for many kinds of words, and to less for few."""
    rng = random.Random(kinds)
    words = [rng.randbytes(rng.randrange(2, 9)) for _ in range(kinds)]
    return b" ".join(rng.choices(words, k=count // 6))


def _streamed_zstd(records: bytes) -> bytes:
    stream = zstd.ZstdCompressor()
    return stream.compress(records) + stream.flush()


_WITHOUT_SIZE: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.LZ4: lambda records: bytes(compress(Codec.LZ4, records)),
    Codec.ZSTD: _streamed_zstd,  # as Java's producer does
}


@pytest.mark.parametrize("codec", _WITHOUT_SIZE)
def test_the_first_batch_predicts_the_size_of_the_others(codec: Codec) -> None:
    """Frames without a size: all are decompressed on the loop, or only one if the rest is too large."""
    decompressed: list[int] = []
    decompress_few = produce_parser.decompress_few

    def watched(data: Bytes, rows: IntArray, scratch: Bytes, calls: IntArray) -> int:
        found = decompress_few(data, rows, scratch, calls)
        decompressed.append(int(np.count_nonzero(rows[:, -1])))
        return int(found)

    for kinds, count, is_little in ((500, 12, True), (500, 20, False), (5, 12, True), (5, 20, False)):
        pool = _Pool()
        batch = _packed(codec, _WITHOUT_SIZE[codec], _words(16_000, kinds))
        frame = _request_of(*[batch] * count)
        assert len(frame) < fast_produce.MAX_BYTES
        with patch.object(produce_parser, "decompress_few", watched):
            _, appends = _outcome(frame, [_RESULTS[0]], is_full=False, fast=True, pool=pool)
        assert appends.was_together
        assert pool.calls == (not is_little)
        assert decompressed.pop() == (count if is_little else 1)


def test_each_expensive_request_is_decompressed_in_a_thread() -> None:
    """Even if several arrive before the first is handled: none of them counts as invalid."""
    frames = [memoryview(bytearray(_request_of(*_EXPENSIVE[kind]))) for kind in _EXPENSIVE]
    pool = _Pool()
    dispatcher, appends = _dispatcher([_RESULTS[0]], pool=pool)

    async def ask() -> None:
        for frame in frames:
            await dispatcher.handle(
                frame, Client("nowhere", "PLAINTEXT")
            )  # the first request loads the message's schema
        pool.calls = 0
        for frame in frames:
            assert dispatcher.try_fast_path(frame, Client("nowhere", "PLAINTEXT")) is None
        for frame in frames:
            appends.was_together = False
            assert await dispatcher.handle(frame, Client("nowhere", "PLAINTEXT"), was_tried=True)
            assert appends.was_together

    asyncio.run(ask())
    assert pool.calls == len(frames)


class _CountingAuthorizer(Authorizer):
    """Counts the decisions that are not one lookup in the dictionary of cached decisions."""

    def __init__(self) -> None:
        metrics = AgentMetrics()
        audit = AuditLog(
            SystemClock(),
            lines_per_second=0,
            denied=metrics.authorizations_denied,
            suppressed=metrics.audit_lines_suppressed,
            logs_allowed=False,
        )
        super().__init__(super_users="", allow_everyone=True, audit=audit)
        self.calls = Counter[str]()

    @override
    def cached(self, client: Client, right: Right) -> dict[str, bool]:
        self.calls["cached"] += 1
        return super().cached(client, right)

    @override
    def allows(self, client: Client, right: Right, name: str = "", *, log_denied: bool = True) -> bool:
        self.calls["allows"] += 1
        return super().allows(client, right, name, log_denied=log_denied)


def test_authorization_costs_one_lookup_for_each_topic_that_was_decided_before() -> None:
    authorizer = _CountingAuthorizer()
    dispatcher, _ = _dispatcher([_RESULTS[0]], authorizer=authorizer)
    client = Client("nowhere", "PLAINTEXT")
    parts = [Struct(index=0, records=bytes(encode_batch([_NOW_MS], [b"k"], [bytes(1000)])))]
    topics = [Struct(name=topic.name, partition_data=parts) for topic in _TOPICS[:2]] * 5
    request = Struct(transactional_id=None, acks=-1, timeout=1000, topic_data=topics)

    def frame() -> memoryview:
        return memoryview(bytearray(request_frame("produce", 9, 1, request)[4:]))

    async def ask() -> None:
        for _ in range(2):  # the first request loads the message's schema
            await dispatcher.handle(frame(), client)
        authorizer.calls.clear()
        assert dispatcher.try_fast_path(frame(), client)

    asyncio.run(ask())
    assert authorizer.calls == {"cached": 1}


def test_a_full_pool_is_a_retriable_error() -> None:
    """Both paths report it for each partition. With acks 0 the connection is closed."""
    for batch in (
        bytes(encode_batch([_NOW_MS], [b"k"], [random.Random(1).randbytes(2**18)])),
        _EXPENSIVE["one gzip member"][0],
    ):
        actual = [
            _outcome(_request_of(batch), [_RESULTS[0]], is_full=False, fast=fast, pool=_Pool(is_full=True))
            for fast in (False, True)
        ]
        assert actual[0][0] == actual[1][0]
        response_bytes = actual[0][0]
        assert isinstance(response_bytes, bytes)
        response = read_response("produce", 9, memoryview(response_bytes)[8:])
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.not_enough_replicas
        assert not actual[1][1].accepted
        without_response = _request_of(batch, acks=0)
        pool = _Pool(is_full=True)
        assert _outcome(without_response, [], is_full=False, fast=True, pool=pool)[0] is MalformedMessageError


def test_a_batch_rejected_by_a_full_write_buffer_is_decompressed_once() -> None:
    """A batch for an unknown partition is not decompressed at all."""
    for codec in (Codec.GZIP, Codec.SNAPPY):
        batch = bytes(encode_batch([_NOW_MS], [b"k"], [bytes(100)], codec=codec))
        for frame, is_full, times in (
            (_request_of(batch), True, 1),
            (_request_of(batch), False, 1),
            (_request_of(batch, partition=7), False, 0),
        ):
            expected, _ = _outcome(frame, [_RESULTS[0]], is_full=is_full, fast=False)
            with (
                patch.object(produce_parser, "decompress", wraps=decompress) as on_fast_path,
                patch.object(decompression, "decompress", wraps=decompress) as on_ordinary_path,
            ):
                assert _outcome(frame, [_RESULTS[0]], is_full=is_full, fast=True)[0] == expected
            assert on_fast_path.call_count + on_ordinary_path.call_count == times
    for acks in (-1, 0):
        full, appends = _outcome(_common(9, acks=acks), [], is_full=True, fast=True)
        assert full == _outcome(_common(9, acks=acks), [], is_full=True, fast=False)[0]
        assert not appends.accepted


@pytest.mark.parametrize("producer", [NO_PRODUCER, (7, 0, 5)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_attributes_of_a_broker_are_rejected_on_both_paths(
    codec: Codec, producer: tuple[int, int, int]
) -> None:
    """A delete horizon, a control batch, and each bit without a meaning."""
    for bit in (0x20, 0x40, 0x80, 0x100, 0x4000, 0x8000):
        batch = bytearray(encode_batch([_NOW_MS], [b"key"], [bytes(60)], codec=codec, producer=producer))
        attributes = int.from_bytes(batch[ATTRIBUTES : ATTRIBUTES + 2], "big") | bit
        batch[ATTRIBUTES : ATTRIBUTES + 2] = attributes.to_bytes(2, "big")
        batch[CRC : CRC + 4] = crc32c.crc32c(batch[ATTRIBUTES:]).to_bytes(4, "big")
        frame = _request_of(bytes(batch))
        assert not _compare(frame, [_RESULTS[0]])
        response_bytes, appends = _outcome(frame, [_RESULTS[0]], is_full=False, fast=True)
        assert isinstance(response_bytes, bytes)
        response = read_response("produce", 9, memoryview(response_bytes)[8:])
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.invalid_record
        assert appends.accepted == []


def test_bytes_after_the_tagged_fields_are_ignored() -> None:
    """A request without its tagged fields, or with an unknown one, takes the ordinary path."""
    for version in (9, 13):
        common = _common(version)
        assert not _compare(common[:-1], [_RESULTS[0]])
        assert not _compare(common[:-1] + b"\x01\x07\x02hi", [_RESULTS[0]])
        assert _compare(common + b"more", [_RESULTS[0]])


def test_requests_with_acks_0_take_the_fast_path_without_a_response() -> None:
    for max_bytes in (2**18, 300):
        assert _compare(_common(9, acks=0), [_RESULTS[0]], max_bytes=max_bytes)
    assert not _compare(_common(9, partitions=3, acks=0), [_RESULTS[0]])


@settings(max_examples=200, deadline=None)
@given(version=st.integers(3, 13), seed=st.integers(0, 2**32), codec=st.sampled_from(Codec))
@example(version=9, seed=0, codec=Codec.NONE)
def test_both_paths_agree_on_damaged_requests(version: int, seed: int, codec: Codec) -> None:
    """A truncated or changed frame is never read beyond its end."""
    rng = random.Random(seed)
    frame = bytearray(_common(version, codecs=(codec,)))
    for _ in range(rng.randint(1, 3)):
        frame[rng.randrange(14, len(frame))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if rng.random() < 0.3:
        del frame[rng.randrange(14, len(frame)) :]
    _compare(bytes(frame), [_RESULTS[0]], max_bytes=rng.choice((2**18, 300)))


@settings(max_examples=150, deadline=None)
@given(codec=st.sampled_from(Codec), seed=st.integers(0, 2**32))
def test_both_paths_agree_on_damaged_records_with_a_valid_checksum(codec: Codec, seed: int) -> None:
    """The error messages are equal, too."""
    rng = random.Random(seed)
    batch = bytearray(
        encode_batch([_NOW_MS, _NOW_MS + 1], [b"k", None], [rng.randbytes(40), bytes(300)], codec=codec)
    )
    for _ in range(rng.randint(1, 2)):
        batch[rng.randrange(ATTRIBUTES, len(batch))] = rng.randrange(256)
    batch[CRC : CRC + 4] = crc32c.crc32c(batch[ATTRIBUTES:]).to_bytes(4, "big")
    topics = [Struct(name="plain", partition_data=[Struct(index=0, records=bytes(batch))])]
    body = Struct(acks=-1, timeout=0, topic_data=topics)
    _compare(request_frame("produce", 9, 5, body)[4:], [_RESULTS[0]], max_bytes=rng.choice((2**18, 100)))
