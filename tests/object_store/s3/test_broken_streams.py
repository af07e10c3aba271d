"""A stream over S3 resumes after a broken connection and never mixes two objects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from object_store.accounting import Purpose, RequestKind, Tally
from object_store.errors import (
    ObjectChangedError,
    ObjectNotFoundError,
    ObjectTooShortError,
    StoreAccessError,
    StoreUnavailableError,
)
from tests.fixtures.s3 import needs_moto
from tests.object_store.s3.fault_proxy import Fault
from tests.object_store.s3.limited_store import ATTEMPTS, DATA, LIMITS, read_all, slow_down

if TYPE_CHECKING:
    from core.clock import ManualClock
    from object_store.s3.store import S3Store
    from tests.object_store.s3.fault_proxy import FaultProxy

GET = RequestKind.GET


class TestResumedStreams:
    @pytest.mark.parametrize(
        "cut",
        [
            Fault(method="GET", keep_bytes=300_000),
            Fault(method="GET", keep_bytes=300_000, reset=True),
            Fault(method="GET", keep_bytes=0),
            Fault(method="GET", keep_bytes=len(DATA) - 1),
        ],
        ids=["ended", "reset", "at-once", "last-byte"],
    )
    def test_a_broken_stream_resumes_where_it_stopped(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, cut: Fault
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(cut)
        assert read_all(store) == (DATA, 1)
        assert [request.range[:6] for request in proxy.log] == ["", "bytes="]
        tally = store.counts.snapshot().of(GET, Purpose.COMPACTION)
        assert (tally.requests, tally.errors, tally.retries, tally.resumes) == (2, 1, 0, 1)
        assert tally.bytes_in == len(DATA)

    def test_a_stream_resumes_as_often_as_it_breaks(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=400_000, times=4))
        assert read_all(store, 123) == (DATA[123:], 4)
        assert store.counts.snapshot().of(GET) == Tally(
            requests=5, bytes_in=len(DATA) - 123, errors=4, resumes=4
        )

    def test_a_resumed_stream_keeps_its_end(self, store: S3Store, direct: S3Store, proxy: FaultProxy) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=300_000, times=2))
        assert read_all(store, 123, 1_000_123) == (DATA[123:1_000_123], 2)
        assert {request.range.partition("-")[2] for request in proxy.log} == {"1000122"}

    @pytest.mark.parametrize("store", [replace(LIMITS, read_timeout_seconds=0.2, attempts=50)], indirect=True)
    def test_a_silent_connection_is_replaced(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=200_000, stall=True))
        data, resumes = read_all(store)
        assert data == DATA
        assert resumes >= 1  # a busy machine may cause more time-outs
        assert proxy.all_happened

    def test_a_resume_is_retried_while_the_server_is_busy(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=200_000), slow_down("GET", 2))
        assert read_all(store) == (DATA, 1)
        tally = store.counts.snapshot().of(GET)
        assert (tally.requests, tally.errors, tally.retries, tally.resumes) == (4, 3, 2, 1)

    def test_a_stream_without_progress_fails(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, clock: ManualClock
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=0, times=100))
        with pytest.raises(StoreUnavailableError, match="broke off at byte 0"):
            read_all(store)
        assert proxy.count("GET") == ATTEMPTS
        assert clock.monotonic() > 0

    def test_a_stream_with_too_little_progress_fails(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=1, times=100))
        with pytest.raises(StoreUnavailableError, match="after 5 resumes"):
            read_all(store)
        assert proxy.count("GET") == 1 + LIMITS.resumes

    @pytest.mark.parametrize("store", [replace(LIMITS, resumes=1, bytes_per_resume=100_000)], indirect=True)
    def test_progress_permits_more_resumes(self, store: S3Store, direct: S3Store, proxy: FaultProxy) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=150_000, times=13))
        assert read_all(store) == (DATA, 13)

    @pytest.mark.parametrize("data", [b"other" * 400_000, b"short", b""])
    def test_bytes_of_a_replaced_object_are_not_mixed(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, data: bytes
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(
            Fault(method="GET", keep_bytes=300_000),
            Fault(method="GET", before=lambda: direct.put("v1/x", [data], purpose=Purpose.INGEST)),
        )
        with pytest.raises(ObjectChangedError, match="v1/x"):
            read_all(store)

    def test_resuming_a_deleted_object_raises_not_found(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(
            Fault(method="GET", keep_bytes=300_000),
            Fault(method="GET", before=lambda: direct.delete(["v1/x"], purpose=Purpose.GC)),
        )
        with pytest.raises(ObjectNotFoundError, match="v1/x"):
            read_all(store)

    def test_reads_of_ranges_and_tails_are_resumed(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        cut = Fault(method="GET", keep_bytes=1000)
        proxy.plan(cut)
        assert store.read_range("v1/x", 5000, 9000, purpose=Purpose.FETCH) == DATA[5000:14000]
        proxy.plan(cut)
        assert store.read_tail("v1/x", 9000, purpose=Purpose.FETCH) == (bytearray(DATA[-9000:]), len(DATA))
        assert store.counts.snapshot().of(GET).resumes == 2

    @needs_moto  # other servers notice that the proxy removes a signed header
    def test_a_server_that_ignores_ranges_is_detected(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", without_range=True, times=3))
        with pytest.raises(StoreAccessError, match="Range header"):
            store.read_range("v1/x", 5000, 9000, purpose=Purpose.FETCH)
        with pytest.raises(StoreAccessError, match="Range header"):
            store.read_tail("v1/x", 9000, purpose=Purpose.FETCH)
        assert store.read_range("v1/x", 0, 9000, purpose=Purpose.FETCH) == DATA[:9000]

    def test_the_size_is_requested_if_an_error_response_lacks_it(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [b"12345"], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", status=416, code="InvalidRange"))
        with pytest.raises(ObjectTooShortError, match="has 5 bytes"):
            store.read_range("v1/x", 5, 1, purpose=Purpose.FETCH)
        assert store.counts.snapshot().of(RequestKind.HEAD).requests == 1
