"""The short way of usual Produce requests against the long one: the same appends, and the same bytes back."""

from __future__ import annotations

import asyncio
import random
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

from agent.cluster.errors import AppendFailedError
from agent.kafka.apis.records import produce
from agent.kafka.codec import MalformedMessageError, Struct
from agent.kafka.dispatcher import RequestDispatcher
from agent.kafka.errors import ErrorCode
from agent.kafka.fast_path import produce as plain_produce
from agent.kafka.fast_path import produce_parser
from agent.runtime.errors import BusyError
from agent.runtime.metrics import AgentMetrics
from agent.write.pending_append import AppendResult, PendingAppend
from catalog.config.topic_config import TopicConfig
from catalog.model import RunRefusal, Topic
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
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.wire import read_answer, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.kafka.services import KafkaServices
    from agent.write.validation import ValidatedBatches
    from object_format.buffers import Bytes
    from object_format.kernels.runtime.signatures import IntArray

_NOW_MS = 1_000_000
_FATES = (
    AppendResult(base_offset=2**40, log_start_offset=3, high_watermark=2**41),
    AppendResult(base_offset=0, duplicate=True, log_start_offset=0, high_watermark=9),
    AppendResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE, detail="a gap"),
    AppendResult(error=AppendFailedError("the store is away", retry_after_seconds=1.0)),
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
    """Takes appends and settles each as the test has it; None leaves it open."""

    def __init__(self, fates: Sequence[AppendResult | None], *, is_full: bool) -> None:
        self._fates = fates
        self._is_full = is_full
        self.taken: list[tuple[str, int, bytes, tuple[object, ...]]] = []
        self.was_together = False

    def _fate(self, appends: Sequence[ValidatedBatches]) -> list[AppendResult | None]:
        if self._is_full:
            raise BusyError("the write buffer is full", retry_after_seconds=1.0)
        for each in appends:
            self.taken.append((each.topic.name, each.partition, bytes(each.data), each.batches))
        return [self._fates[number % len(self._fates)] for number in range(len(appends))]

    def enqueue(self, appends: Sequence[ValidatedBatches]) -> list[PendingAppend]:
        waiting = []
        for fate in self._fate(appends):
            pending = PendingAppend(1)
            if fate is not None:
                pending.complete(0, [fate])
            waiting.append(pending)
        return waiting

    def enqueue_together(self, appends: Sequence[ValidatedBatches]) -> PendingAppend:
        fates = self._fate(appends)
        self.was_together = True
        pending = PendingAppend(len(appends))
        for number, fate in enumerate(fates):
            if fate is not None:
                pending.complete(number, [fate])
        return pending


class _Pool:
    """Counts what it is given, and is full if it shall be."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.calls = 0
        self._is_full = is_full

    async def run(self, call: Any) -> object:  # noqa: ANN401  # whatever it gives
        self.calls += 1
        if self._is_full:
            raise BusyError("the kernel pool is full", retry_after_seconds=1.0)
        return call()


def _dispatch(
    fates: Sequence[AppendResult | None],
    *,
    is_full: bool = False,
    short: bool = True,
    pool: _Pool | None = None,
) -> tuple[RequestDispatcher, _Appends]:
    """Produce requests alone, by one way, and where their batches come."""
    appends = _Appends(fates, is_full=is_full)
    services = SimpleNamespace(
        directory=_Directory(),
        appends=appends,
        clock=SimpleNamespace(now_ms=lambda: _NOW_MS),
        catalog=SimpleNamespace(producers=SimpleNamespace(admit=lambda _: None)),
        pools=SimpleNamespace(kernels=pool or _Pool(), rendering=_Pool(), catalog=_Pool()),
        metrics=AgentMetrics(),
    )
    api = produce.API if short else replace(produce.API, fast_path=None)
    return RequestDispatcher((api,), cast("KafkaServices", services)), appends


def _outcome(
    frame: bytes,
    fates: Sequence[AppendResult | None],
    *,
    is_full: bool,
    short: bool,
    pool: _Pool | None = None,
) -> tuple[object, _Appends]:
    """What the client hears (the type of an error that closes its connection), and what was taken."""
    dispatch, appends = _dispatch(fates, is_full=is_full, short=short, pool=pool)

    async def ask() -> object:
        try:
            answer = await dispatch.handle(memoryview(bytearray(frame)), "nowhere")
            if not answer:
                return None
            assert callable(answer)
            return b"".join(await answer())
        except MalformedMessageError as error:
            return type(error)

    return asyncio.run(ask()), appends


def _compare(
    frame: bytes, fates: Sequence[AppendResult | None], *, is_full: bool = False, most: int = 2**18
) -> bool:
    """Both ways, with `most` bytes judged at once; whether the short one was taken."""
    expected, long_way = _outcome(frame, fates, is_full=is_full, short=False)
    with patch.object(plain_produce, "MAX_BYTES", most):
        heard, short_way = _outcome(frame, fates, is_full=is_full, short=True)
    assert heard == expected
    assert short_way.taken == long_way.taken
    return short_way.was_together


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
    """One batch for the most part; sometimes none, two, or one with a byte changed."""
    batch = draw(_batches)
    what = draw(st.sampled_from(["one"] * 9 + ["none", "nothing", "two", "changed", "cut"]))
    if what == "changed":
        place = draw(st.integers(0, len(batch) - 1))
        return batch[:place] + bytes([batch[place] ^ (1 << draw(st.integers(0, 7)))]) + batch[place + 1 :]
    return {"none": None, "nothing": b"", "two": batch * 2, "cut": batch[:-1]}.get(what, batch)


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
    fates=st.lists(st.sampled_from([*_FATES[:1] * 4, *_FATES, None]), min_size=1, max_size=4),
    is_full=st.sampled_from([False] * 7 + [True]),
    most=st.sampled_from([2**18, 2**18, 250]),
)
def test_both_ways_do_and_say_the_same(
    request: tuple[int, Struct], fates: list[AppendResult | None], *, is_full: bool, most: int
) -> None:
    """Whatever a request holds and whatever becomes of it, the client cannot tell which way it went."""
    version, body = request
    if body.acks == 1:  # who does not say how long would wait for ever
        fates = [_FATES[0] if fate is None else fate for fate in fates]
    frame = request_frame("produce", version, 5, body, client_id="test")[4:]
    _compare(frame, fates, is_full=is_full, most=most)


def _usual(
    version: int, partitions: int = 2, codecs: Sequence[Codec] = (Codec.NONE,), acks: int = -1
) -> bytes:
    batches = [bytes(encode_batch([_NOW_MS], [b"key"], [bytes(60)], codec=codec)) for codec in codecs]
    parts = [Struct(index=index, records=batches[index % len(batches)]) for index in range(partitions)]
    topics = [Struct(name=topic.name, topic_id=topic.topic_id, partition_data=parts) for topic in _TOPICS[:3]]
    body = Struct(acks=acks, timeout=0, topic_data=topics)
    return request_frame("produce", version, 5, body, client_id="test")[4:]


def test_usual_requests_go_the_short_way_in_every_version() -> None:
    """Several topics and partitions with plain batches are taken at once, whatever becomes of them."""
    for version in range(3, 14):
        for fates in ([_FATES[0]], list(_FATES), [None]):
            assert _compare(_usual(version), fates)


@pytest.mark.parametrize("most", [2**18, 500, 300])
@pytest.mark.parametrize("codec", Codec)
def test_compressed_and_large_requests_go_the_short_way(codec: Codec, most: int) -> None:
    """Every codec, alone or among others: at once, or in their turn where that takes a while."""
    for codecs in ([codec], [codec, Codec.NONE], [codec, Codec.LZ4]):
        for version in (7, 9, 13):
            assert _compare(_usual(version, codecs=codecs), [_FATES[0]], most=most)
    assert _compare(_usual(6, codecs=[codec]), [_FATES[0]], most=most) == (codec is not Codec.ZSTD)


def test_batches_of_any_size_go_the_short_way_once_they_are_decompressed() -> None:
    """Also those that no room is kept for: more than a MiB out of a few bytes, or out of many."""
    for codec in Codec:
        batch = bytes(encode_batch([_NOW_MS], [b"key"], [bytes(3 * 2**20)], codec=codec))
        topics = [Struct(name="plain", partition_data=[Struct(index=0, records=batch)])]
        body = Struct(acks=-1, timeout=0, topic_data=topics)
        is_taken = _compare(request_frame("produce", 9, 5, body)[4:], [_FATES[0]])
        assert is_taken == (len(batch) <= TopicConfig().max_message_bytes)


def _of(*batches: bytes, acks: int = -1, partition: int = 0) -> bytes:
    """A request for these batches, all of them for one partition."""
    parts = [Struct(index=partition, records=batch) for batch in batches]
    body = Struct(acks=acks, timeout=0, topic_data=[Struct(name="plain", partition_data=parts)])
    return request_frame("produce", 9, 5, body)[4:]


def _packed(codec: Codec, pack: Callable[[bytes], bytes], value: bytes = b"value") -> bytes:
    """A batch of one record, whose records are as `pack` leaves them."""
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
    # A frame of one raw block, behind many that are empty.
    last = (len(records) << 3 | 1).to_bytes(3, "little")
    return bytes.fromhex("28b52ffd0050") + bytes(3) * 2000 + last + records


def _lz4_blocks(records: bytes) -> bytes:
    whole = bytes(compress(Codec.LZ4, records))
    return whole[:7] + (b"\1\0\0\0" + b"\0") * 2000 + whole[7:]


_LABOUR = {
    "empty gzip members": (
        _packed(Codec.GZIP, lambda data: compress(Codec.GZIP, b"") * 2000 + compress(Codec.GZIP, data)),
    ),
    "empty snappy blocks": (_packed(Codec.SNAPPY, _snappy_blocks),),
    "empty zstd blocks": (_packed(Codec.ZSTD, _zstd_blocks),),
    "empty lz4 blocks": (_packed(Codec.LZ4, _lz4_blocks),),
    "many small batches": (_packed(Codec.ZSTD, lambda data: bytes(compress(Codec.ZSTD, data))),) * 100,
    "much out of little": (bytes(encode_batch([_NOW_MS], [b"k"], [bytes(2**19)], codec=Codec.LZ4)),),
    "much out of little, often": (bytes(encode_batch([_NOW_MS], [b"k"], [bytes(2**18)], codec=Codec.LZ4)),)
    * 30,
    "one gzip member": (_packed(Codec.GZIP, lambda data: bytes(compress(Codec.GZIP, data))),),
}


@pytest.mark.parametrize("what", _LABOUR)
def test_what_may_be_much_work_is_never_done_on_the_loop(what: str) -> None:
    """However few bytes it is, a thread of the pool opens it, once; the answer is that of the long way."""
    pool = _Pool()
    frame = _of(*_LABOUR[what])
    assert len(frame) < plain_produce.MAX_BYTES
    assert _compare(frame, [_FATES[0]])
    _, appends = _outcome(frame, [_FATES[0]], is_full=False, short=True, pool=pool)
    assert appends.was_together
    assert pool.calls == 1


def test_a_little_work_is_done_on_the_loop() -> None:
    """Usual batches of LZ4 and zstd need no thread, whether they are good or at fault."""
    pool = _Pool()
    usual = bytes(encode_batch([_NOW_MS], [b"k"], [random.Random(3).randbytes(2000) * 2], codec=Codec.LZ4))
    assert _outcome(_of(*[usual] * 20), [_FATES[0]], is_full=False, short=True, pool=pool)[1].was_together
    assert pool.calls == 0
    for codec in (Codec.LZ4, Codec.ZSTD):
        pool = _Pool()
        assert _outcome(_usual(9, codecs=(codec,)), [_FATES[0]], is_full=False, short=True, pool=pool)[
            1
        ].was_together
        assert pool.calls == 0
        bad = _packed(codec, lambda data, codec=codec: bytes(compress(codec, data[:-1])))  # type: ignore[misc]
        _outcome(_of(bad), [_FATES[0]], is_full=False, short=True, pool=pool)
        assert pool.calls == 1  # by the long way, which says what is wrong


def _words(count: int, kinds: int) -> bytes:
    """Text that compresses to a half where there are many kinds of words, and to less where there are few."""
    chance = random.Random(kinds)
    words = [chance.randbytes(chance.randrange(2, 9)) for _ in range(kinds)]
    return b" ".join(chance.choices(words, k=count // 6))


def _streamed_zstd(records: bytes) -> bytes:
    stream = zstd.ZstdCompressor()
    return stream.compress(records) + stream.flush()


_UNSIZED: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.LZ4: lambda records: bytes(compress(Codec.LZ4, records)),
    Codec.ZSTD: _streamed_zstd,  # as Java's producer does
}


@pytest.mark.parametrize("codec", _UNSIZED)
def test_the_first_batch_tells_what_to_expect_of_the_others(codec: Codec) -> None:
    """Batches that state no size are opened on the loop, or only the first where they would be too much."""
    opened: list[int] = []
    decompress_few = produce_parser.decompress_few

    def watched(data: Bytes, rows: IntArray, room: Bytes, calls: IntArray) -> int:
        found = decompress_few(data, rows, room, calls)
        opened.append(int(np.count_nonzero(rows[:, -1])))
        return int(found)

    for kinds, count, is_little in ((500, 12, True), (500, 20, False), (5, 12, True), (5, 20, False)):
        pool = _Pool()
        batch = _packed(codec, _UNSIZED[codec], _words(16_000, kinds))
        frame = _of(*[batch] * count)
        assert len(frame) < plain_produce.MAX_BYTES
        with patch.object(produce_parser, "decompress_few", watched):
            _, appends = _outcome(frame, [_FATES[0]], is_full=False, short=True, pool=pool)
        assert appends.was_together
        assert pool.calls == (not is_little)
        assert opened.pop() == (count if is_little else 1)


def test_every_request_that_is_too_much_is_opened_by_a_thread() -> None:
    """Also where several have come before the first one's turn: none of them is taken for a bad one."""
    frames = [memoryview(bytearray(_of(*_LABOUR[what]))) for what in _LABOUR]
    pool = _Pool()
    dispatch, appends = _dispatch([_FATES[0]], pool=pool)

    async def ask() -> None:
        for frame in frames:
            await dispatch.handle(frame, "nowhere")  # each version is learnt with its first request
        pool.calls = 0
        for frame in frames:
            assert dispatch.try_fast_path(frame, "nowhere") is None
        for frame in frames:
            appends.was_together = False
            assert await dispatch.handle(frame, "nowhere", was_tried=True)
            assert appends.was_together

    asyncio.run(ask())
    assert pool.calls == len(frames)


def test_a_full_pool_is_an_error_that_clients_repeat() -> None:
    """Both ways say so for each partition; who wants no answer has its connection closed."""
    for batch in (
        bytes(encode_batch([_NOW_MS], [b"k"], [random.Random(1).randbytes(2**18)])),
        _LABOUR["one gzip member"][0],
    ):
        heard = [
            _outcome(_of(batch), [_FATES[0]], is_full=False, short=short, pool=_Pool(is_full=True))
            for short in (False, True)
        ]
        assert heard[0][0] == heard[1][0]
        answer = heard[0][0]
        assert isinstance(answer, bytes)
        told = read_answer("produce", 9, memoryview(answer)[8:])
        assert told.responses[0].partition_responses[0].error_code == ErrorCode.not_enough_replicas
        assert not heard[1][1].taken
        unheard = _of(batch, acks=0)
        pool = _Pool(is_full=True)
        assert _outcome(unheard, [], is_full=False, short=True, pool=pool)[0] is MalformedMessageError


def test_what_is_refused_for_want_of_room_is_opened_once() -> None:
    """Nor is anything opened that is for no partition."""
    for codec in (Codec.GZIP, Codec.SNAPPY):
        batch = bytes(encode_batch([_NOW_MS], [b"k"], [bytes(100)], codec=codec))
        for frame, is_full, times in (
            (_of(batch), True, 1),
            (_of(batch), False, 1),
            (_of(batch, partition=7), False, 0),
        ):
            expected, _ = _outcome(frame, [_FATES[0]], is_full=is_full, short=False)
            with (
                patch.object(produce_parser, "decompress", wraps=decompress) as one_way,
                patch.object(decompression, "decompress", wraps=decompress) as other_way,
            ):
                assert _outcome(frame, [_FATES[0]], is_full=is_full, short=True)[0] == expected
            assert one_way.call_count + other_way.call_count == times
    for acks in (-1, 0):
        full, appends = _outcome(_usual(9, acks=acks), [], is_full=True, short=True)
        assert full == _outcome(_usual(9, acks=acks), [], is_full=True, short=False)[0]
        assert not appends.taken


def test_a_request_ends_with_its_tagged_fields() -> None:
    """Cut off before them, or with one that nobody knows, it is the same both ways; more may be behind."""
    for version in (9, 13):
        usual = _usual(version)
        assert not _compare(usual[:-1], [_FATES[0]])
        assert not _compare(usual[:-1] + b"\x01\x07\x02hi", [_FATES[0]])
        assert _compare(usual + b"more", [_FATES[0]])


def test_who_wants_no_answer_gets_none_and_goes_the_short_way() -> None:
    for most in (2**18, 300):
        assert _compare(_usual(9, acks=0), [_FATES[0]], most=most)
    assert not _compare(_usual(9, partitions=3, acks=0), [_FATES[0]])


@settings(max_examples=200, deadline=None)
@given(version=st.integers(3, 13), seed=st.integers(0, 2**32), codec=st.sampled_from(Codec))
@example(version=9, seed=0, codec=Codec.NONE)
def test_damaged_requests_are_the_same_both_ways(version: int, seed: int, codec: Codec) -> None:
    """A frame with bytes changed, or cut off, is read as far as it goes and never beyond its end."""
    chance = random.Random(seed)
    frame = bytearray(_usual(version, codecs=(codec,)))
    for _ in range(chance.randint(1, 3)):
        frame[chance.randrange(14, len(frame))] = chance.choice(
            (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
        )
    if chance.random() < 0.3:
        del frame[chance.randrange(14, len(frame)) :]
    _compare(bytes(frame), [_FATES[0]], most=chance.choice((2**18, 300)))


@settings(max_examples=150, deadline=None)
@given(codec=st.sampled_from(Codec), seed=st.integers(0, 2**32))
def test_damaged_records_with_a_good_checksum_are_the_same_both_ways(codec: Codec, seed: int) -> None:
    """Who computes a checksum over nonsense is refused in the same words, whoever opens the batch."""
    chance = random.Random(seed)
    batch = bytearray(
        encode_batch([_NOW_MS, _NOW_MS + 1], [b"k", None], [chance.randbytes(40), bytes(300)], codec=codec)
    )
    for _ in range(chance.randint(1, 2)):
        batch[chance.randrange(ATTRIBUTES, len(batch))] = chance.randrange(256)
    batch[CRC : CRC + 4] = crc32c.crc32c(batch[ATTRIBUTES:]).to_bytes(4, "big")
    topics = [Struct(name="plain", partition_data=[Struct(index=0, records=bytes(batch))])]
    body = Struct(acks=-1, timeout=0, topic_data=topics)
    _compare(request_frame("produce", 9, 5, body)[4:], [_FATES[0]], most=chance.choice((2**18, 100)))
