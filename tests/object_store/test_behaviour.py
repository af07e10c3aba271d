"""Behaviour that all object stores share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import pytest

from core.clock import ManualClock, SystemClock
from core.errors import InvalidInputError
from core.ids import SystemIds
from object_store.accounting import Purpose, RequestKind, Tally
from object_store.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooShortError,
    StoreClosedError,
    StoreUnavailableError,
    UploadLostError,
)
from object_store.names import compacted_name
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from object_store.interface import Buffer, ForwardStream, ObjectStore

UNUSUAL_NAMES = [
    "v1/a b+c%20d",
    "v1/ünïcode/日本/🪨",
    "v1/quote'\"&<>?#;=,@!$*()[]{}|^~`\\",
    "v1/...",
    "v1/.hidden",
    "v1/%2e%2e/%2F",
    "v1/-dash/=",
    "v1/" + "x" * 255,
]

INVALID_NAMES = [
    "",
    "/v1",
    "v1/",
    "v1//x",
    "../x",
    "v1/../../x",
    "v1/./x",
    "v1/\0",
    "v1/\n",
    "v1/\ud800",
    ".unfinished/x",
    "x" * 256,
    "/".join(["x" * 200] * 6),
]


def pattern(size: int) -> bytes:
    """Return bytes that differ at every position where a part or a range could start."""
    return np.arange(-(-size // 4), dtype=">u4").tobytes()[:size]


def read_stream(stream: ForwardStream, chunk: int = 100_000) -> bytes:
    data = bytearray()
    target = memoryview(bytearray(chunk))
    with closing(stream):
        while count := stream.readinto(target):
            data += target[:count]
    return bytes(data)


def content(store: ObjectStore, name: str) -> bytes:
    return read_stream(store.open_stream(name, purpose=Purpose.FETCH))


def names(store: ObjectStore, prefix: str) -> list[str]:
    return [info.name for info in store.list(prefix, purpose=Purpose.GC)]


class TestPutAndRead:
    def test_put_writes_the_concatenation_of_its_buffers(self, store: ObjectStore) -> None:
        body: list[Buffer] = [b"ab", bytearray(b"cd"), memoryview(b"efgh")[1:], b""]
        assert store.put("v1/x", body, purpose=Purpose.INGEST) == 7
        assert content(store, "v1/x") == b"abcdfgh"

    def test_put_accepts_more_buffers_than_one_system_call(self, store: ObjectStore) -> None:
        body = [bytes([i % 256]) * (i % 7) for i in range(3000)]
        store.put("v1/x", body, purpose=Purpose.INGEST)
        assert content(store, "v1/x") == b"".join(body)

    def test_put_replaces_an_object(self, store: ObjectStore) -> None:
        store.put("v1/x", [b"long before"], purpose=Purpose.INGEST)
        store.put("v1/x", [b"after"], purpose=Purpose.INGEST)
        assert content(store, "v1/x") == b"after"

    def test_an_object_may_be_empty(self, store: ObjectStore) -> None:
        assert store.put("v1/empty", [], purpose=Purpose.INGEST) == 0
        assert content(store, "v1/empty") == b""
        assert store.read_tail("v1/empty", 10, purpose=Purpose.FETCH) == (bytearray(), 0)
        assert store.read_range("v1/empty", 0, 0, purpose=Purpose.FETCH) == b""
        with pytest.raises(ObjectTooShortError):
            store.read_range("v1/empty", 0, 1, purpose=Purpose.FETCH)

    @pytest.mark.parametrize(("position", "length"), [(0, 10), (0, 1), (9, 1), (3, 4), (10, 0)])
    def test_read_range_returns_exactly_the_range(
        self, store: ObjectStore, position: int, length: int
    ) -> None:
        store.put("v1/x", [b"0123456789"], purpose=Purpose.INGEST)
        expected = b"0123456789"[position : position + length]
        assert store.read_range("v1/x", position, length, purpose=Purpose.FETCH) == expected

    @pytest.mark.parametrize(("position", "length"), [(0, 11), (9, 2), (10, 1), (500, 1)])
    def test_read_range_rejects_a_range_past_the_end(
        self, store: ObjectStore, position: int, length: int
    ) -> None:
        store.put("v1/x", [b"0123456789"], purpose=Purpose.INGEST)
        with pytest.raises(ObjectTooShortError, match=r"v1/x.*has 10 bytes"):
            store.read_range("v1/x", position, length, purpose=Purpose.FETCH)

    @pytest.mark.parametrize("length", [1, 4, 10, 11, 1000])
    def test_read_tail_returns_the_size_of_the_object(self, store: ObjectStore, length: int) -> None:
        store.put("v1/x", [b"0123456789"], purpose=Purpose.INGEST)
        expected = bytearray(b"0123456789"[-length:])
        assert store.read_tail("v1/x", length, purpose=Purpose.FETCH) == (expected, 10)

    def test_reads_of_a_missing_object_raise_not_found(self, store: ObjectStore) -> None:
        store.put("v1/there/x", [b"1"], purpose=Purpose.INGEST)
        for name in ("v1/nothing", "v1/there", "v1/there/x/below"):
            with pytest.raises(ObjectNotFoundError, match=name):
                store.read_range(name, 0, 1, purpose=Purpose.FETCH)
            with pytest.raises(ObjectNotFoundError, match=name):
                store.read_tail(name, 1, purpose=Purpose.FETCH)
            with pytest.raises(ObjectNotFoundError, match=name):
                content(store, name)

    @pytest.mark.parametrize(
        "name",
        INVALID_NAMES,
    )
    def test_an_invalid_name_is_rejected_before_a_request(self, store: ObjectStore, name: str) -> None:
        with pytest.raises(InvalidInputError, match="not an object name"):
            store.put(name, [b"1"], purpose=Purpose.INGEST)
        with pytest.raises(InvalidInputError, match="not an object name"):
            store.open_stream(name, purpose=Purpose.FETCH)
        with pytest.raises(InvalidInputError, match="not an object name"):
            store.start_upload(name, purpose=Purpose.COMPACTION)
        with pytest.raises(InvalidInputError, match="not an object name"):
            store.delete([name], purpose=Purpose.GC)
        assert store.counts.snapshot().of() == Tally()

    @pytest.mark.parametrize("name", UNUSUAL_NAMES)
    def test_unusual_names_are_supported(self, store: ObjectStore, name: str) -> None:
        store.create(name, [name.encode()], purpose=Purpose.INGEST)
        assert content(store, name) == name.encode()
        assert names(store, "") == [name]
        assert names(store, name[:-1]) == [name]
        store.delete([name], purpose=Purpose.GC)
        assert names(store, "") == []


class TestStream:
    def test_a_stream_sends_no_request_before_its_first_read(self, store: ObjectStore) -> None:
        with closing(store.open_stream("v1/nothing", purpose=Purpose.FETCH)) as stream:
            assert stream.readinto(memoryview(bytearray())) == 0
            assert store.counts.snapshot().of() == Tally()

    def test_a_stream_reads_the_whole_object_with_one_get(self, store: ObjectStore) -> None:
        data = pattern(3_000_001)
        store.put("v1/x", [data], purpose=Purpose.INGEST)
        stream = store.open_stream("v1/x", purpose=Purpose.COMPACTION)
        assert read_stream(stream) == data
        assert stream.resumes == 0
        tally = store.counts.snapshot().of(RequestKind.GET, Purpose.COMPACTION)
        assert tally == Tally(requests=1, bytes_in=len(data))

    @pytest.mark.parametrize("position", [1, 999, 1000])
    def test_a_stream_starts_at_a_position(self, store: ObjectStore, position: int) -> None:
        data = pattern(1000)
        store.put("v1/x", [data], purpose=Purpose.INGEST)
        assert read_stream(store.open_stream("v1/x", position, purpose=Purpose.FETCH)) == data[position:]

    def test_a_stream_rejects_a_position_past_the_end(self, store: ObjectStore) -> None:
        store.put("v1/x", [b"0123456789"], purpose=Purpose.INGEST)
        with pytest.raises(ObjectTooShortError, match="has 10 bytes"):
            read_stream(store.open_stream("v1/x", 11, purpose=Purpose.FETCH))

    @pytest.mark.parametrize(("position", "end"), [(0, 1), (0, 1000), (10, 700), (999, 1000)])
    def test_a_stream_stops_at_its_end(self, store: ObjectStore, position: int, end: int) -> None:
        """The store transfers no byte after the end."""
        data = pattern(1000)
        store.put("v1/x", [data], purpose=Purpose.INGEST)
        assert (
            read_stream(store.open_stream("v1/x", position, end, purpose=Purpose.FETCH)) == data[position:end]
        )
        tally = store.counts.snapshot().of(RequestKind.GET, Purpose.FETCH)
        assert tally == Tally(requests=1, bytes_in=end - position)

    def test_a_stream_rejects_an_end_past_the_end_of_the_object(self, store: ObjectStore) -> None:
        store.put("v1/x", [b"0123456789"], purpose=Purpose.INGEST)
        with pytest.raises(ObjectTooShortError, match=r"has 10 bytes.* and ends at 11"):
            read_stream(store.open_stream("v1/x", 3, 11, purpose=Purpose.FETCH))

    @pytest.mark.parametrize(("position", "end"), [(-1, None), (4, 4), (4, 3)])
    def test_a_stream_rejects_an_invalid_byte_range(
        self, store: ObjectStore, position: int, end: int | None
    ) -> None:
        with pytest.raises(InvalidInputError):
            store.open_stream("v1/x", position, end, purpose=Purpose.FETCH)

    def test_a_closed_stream_rejects_reads(self, store: ObjectStore) -> None:
        store.put("v1/x", [pattern(5_000_000)], purpose=Purpose.INGEST)
        stream = store.open_stream("v1/x", purpose=Purpose.COMPACTION)
        target = bytearray(1000)
        assert stream.readinto(memoryview(target)) > 0
        stream.close()
        stream.close()
        with pytest.raises(StoreClosedError, match="v1/x"):
            stream.readinto(memoryview(target))

    def test_two_streams_over_one_object_are_independent(self, store: ObjectStore) -> None:
        data = pattern(10_000)
        store.put("v1/x", [data], purpose=Purpose.INGEST)
        first = store.open_stream("v1/x", purpose=Purpose.COMPACTION)
        second = store.open_stream("v1/x", purpose=Purpose.COMPACTION)
        target = bytearray(5000)
        with closing(first):
            count = first.readinto(memoryview(target))
            assert read_stream(second) == data
            assert target[:count] == data[:count]
        assert store.counts.snapshot().of(RequestKind.GET).requests == 2


class TestCreate:
    def test_create_rejects_a_name_that_exists(self, store: ObjectStore) -> None:
        assert store.create("v1/x", [b"first"], purpose=Purpose.INGEST) == 5
        with pytest.raises(ObjectExistsError, match="v1/x"):
            store.create("v1/x", [b"second"], purpose=Purpose.INGEST)
        assert content(store, "v1/x") == b"first"

    def test_a_deleted_name_can_be_created_again(self, store: ObjectStore) -> None:
        store.create("v1/x", [b"first"], purpose=Purpose.INGEST)
        store.delete(["v1/x"], purpose=Purpose.GC)
        store.create("v1/x", [b"second"], purpose=Purpose.INGEST)
        assert content(store, "v1/x") == b"second"

    def test_one_of_several_concurrent_creates_succeeds(self, store: ObjectStore) -> None:
        writers = 8
        barrier = threading.Barrier(writers)

        def create(writer: int) -> int | None:
            barrier.wait()
            try:
                store.create("v1/deep/er/x", [str(writer).encode()], purpose=Purpose.INGEST)
            except ObjectExistsError:
                return None
            return writer

        with ThreadPoolExecutor(writers) as pool:
            winners = [writer for writer in pool.map(create, range(writers)) if writer is not None]
        assert [str(writer).encode() for writer in winners] == [content(store, "v1/deep/er/x")]


class TestUpload:
    @pytest.mark.parametrize("size", [0, 1, 1_000_000, 8 << 20, (8 << 20) + 1, 20_000_000])
    def test_an_upload_stores_the_written_bytes(self, store: ObjectStore, size: int) -> None:
        data = memoryview(pattern(size))
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        step = 1_234_567
        for start in range(0, size, step):
            piece = bytearray(data[start : start + step])
            upload.write(piece)
            piece[:] = bytes(len(piece))  # the caller may reuse its buffer
        assert names(store, "") == []
        assert upload.complete() == size
        assert content(store, "v1/x") == data
        assert store.counts.snapshot().of(purpose=Purpose.COMPACTION).bytes_out >= size

    def test_an_aborted_upload_leaves_no_object(self, store: ObjectStore) -> None:
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(pattern(9_000_000))
        upload.abort()
        upload.abort()
        with pytest.raises(ObjectNotFoundError):
            content(store, "v1/x")
        with pytest.raises(StoreClosedError):
            upload.write(b"x")
        with pytest.raises(StoreClosedError):
            upload.complete()

    def test_abort_after_completion_does_nothing(self, store: ObjectStore) -> None:
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(b"data")
        upload.complete()
        upload.abort()
        assert content(store, "v1/x") == b"data"

    def test_uploads_of_crashed_writers_are_swept(self, store: ObjectStore) -> None:
        store.put("v1/kept", [b"1"], purpose=Purpose.INGEST)
        abandoned = store.start_upload(compacted_name(*[UUID(int=1)] * 3), purpose=Purpose.COMPACTION)
        abandoned.write(pattern(17 << 20))
        now_ms = SystemClock().now_ms()
        # moto reports 2010 as the start of every upload.
        assert store.sweep_unfinished(1_000, purpose=Purpose.GC) == 0
        assert store.sweep_unfinished(now_ms + 60_000, purpose=Purpose.GC) == 1
        assert store.sweep_unfinished(now_ms + 60_000, purpose=Purpose.GC) == 0
        # moto responds to a part of a deleted upload with status 500 instead of NoSuchUpload.
        with pytest.raises((UploadLostError, StoreUnavailableError)):
            abandoned.complete()
        abandoned.abort()
        assert names(store, "") == ["v1/kept"]


class TestListAndDelete:
    def test_names_are_listed_in_byte_order(self, store: ObjectStore) -> None:
        expected = sorted(["v1/a", "v1/a-b", "v1/a.b/x", "v1/b/x", "v1/b!/x", "v1/b0", "v1/é", "v1/z/y/x"])
        for name in reversed(expected):
            store.put(name, [name.encode()], purpose=Purpose.INGEST)
        assert names(store, "") == expected
        assert names(store, "v1/") == expected
        assert names(store, "v1/a") == ["v1/a", "v1/a-b", "v1/a.b/x"]
        assert names(store, "v1/b/") == ["v1/b/x"]
        assert names(store, "v1/z/y/x") == ["v1/z/y/x"]
        assert names(store, "nothing") == []

    def test_a_listing_has_sizes_and_modification_times(self, store: ObjectStore) -> None:
        before_ms = SystemClock().now_ms() - 2000  # S3 rounds to seconds
        store.put("v1/x", [b"abc"], purpose=Purpose.INGEST)
        [info] = store.list("v1/", purpose=Purpose.GC)
        assert info.size == 3
        assert before_ms <= info.modified_ms <= SystemClock().now_ms() + 2000

    def test_lists_and_deletes_span_pages(self, store: ObjectStore) -> None:
        expected = [f"v1/{i:05}" for i in range(1003)]
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(store.put, name, [], purpose=Purpose.INGEST) for name in expected]:
                done.result()
        assert names(store, "v1/") == expected
        assert store.counts.snapshot().of(RequestKind.LIST, Purpose.GC).requests == 2
        store.delete(expected, purpose=Purpose.GC)
        assert store.counts.snapshot().of(RequestKind.DELETE, Purpose.GC).requests == 2
        assert names(store, "") == []

    def test_deleting_a_missing_object_succeeds(self, store: ObjectStore) -> None:
        store.put("v1/x", [b"1"], purpose=Purpose.INGEST)
        store.delete(["v1/nothing", "v1/x", "v1/x", "v1/no/such/name"], purpose=Purpose.GC)
        store.delete(["v1/x"], purpose=Purpose.GC)
        store.delete([], purpose=Purpose.GC)
        assert names(store, "") == []

    def test_concurrent_writes_and_deletes_in_one_directory_succeed(self, store: ObjectStore) -> None:
        """A delete may find a directory empty that a writer is about to use."""

        def create_and_delete(worker: int) -> None:
            for i in range(20):
                name = f"v1/shared/directory/{worker}-{i}"
                store.create(name, [b"1"], purpose=Purpose.INGEST)
                assert content(store, name) == b"1"
                store.delete([name], purpose=Purpose.GC)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(create_and_delete, worker) for worker in range(4)]:
                done.result()
        assert names(store, "") == []


class TestLifecycle:
    def test_check_accepts_a_usable_store(self, store: ObjectStore) -> None:
        store.check()
        assert names(store, "") == []

    def test_a_closed_store_rejects_every_call(self, store_config: StoreConfig) -> None:
        clock = ManualClock()
        store = open_store(store_config, clock, SystemIds(clock))
        store.close()
        with pytest.raises(StoreClosedError):
            store.put("v1/x", [b"1"], purpose=Purpose.INGEST)
        with pytest.raises(StoreClosedError):
            store.read_range("v1/x", 0, 1, purpose=Purpose.FETCH)
        with pytest.raises(StoreClosedError):
            store.list("", purpose=Purpose.GC)
        with pytest.raises(StoreClosedError):
            store.check()

    def test_a_store_can_be_reopened_by_its_url(self, store: ObjectStore, store_config: StoreConfig) -> None:
        store.put("v1/x", [b"1"], purpose=Purpose.INGEST)
        clock = ManualClock()
        config = StoreConfig(store.url, store_config.endpoint, store_config.region)
        with closing(open_store(config, clock, SystemIds(clock))) as again:
            assert content(again, "v1/x") == b"1"
