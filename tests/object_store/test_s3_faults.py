"""What the S3 store does when the network or the server fails."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bedrock.ids import SystemIds
from object_store.accounting import RequestKind, Tally
from object_store.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectsNotDeletedError,
    ObjectTooShortError,
    StoreAccessError,
    StoreUnavailableError,
    UploadLostError,
)
from object_store.interface import Purpose
from object_store.s3 import S3Store
from object_store.s3_client import S3Limits
from tests.fixtures.s3 import bucket_of
from tests.object_store.fault_proxy import Fault, FaultProxy, running_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bedrock.clock import ManualClock
    from object_store.open import StoreConfig
    from tests.fixtures.s3 import S3Server

ATTEMPTS = 4
LIMITS = S3Limits(
    attempts=ATTEMPTS, resumes=5, bytes_per_resume=1 << 20, read_timeout_seconds=20, part_size=5 << 20
)
DATA = np.arange(500_000, dtype=">u4").tobytes()
GET, PUT, POST = RequestKind.GET, RequestKind.PUT, RequestKind.POST
SLOW_DOWN = {"status": 503, "code": "SlowDown"}


def slow_down(method: str, times: int, part: str = "") -> Fault:
    return Fault(method=method, part=part, times=times, status=503, code="SlowDown")


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with running_proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def direct(s3_config: StoreConfig, clock: ManualClock) -> Iterator[S3Store]:
    """The same objects, without the proxy."""
    with closing(store_at(s3_config, clock, LIMITS, s3_config.endpoint)) as store:
        yield store


@pytest.fixture
def store(
    s3_config: StoreConfig, clock: ManualClock, proxy: FaultProxy, request: pytest.FixtureRequest
) -> Iterator[S3Store]:
    """A store behind the proxy; its limits by `@pytest.mark.parametrize(..., indirect=True)`."""
    limits = getattr(request, "param", LIMITS)
    with closing(store_at(s3_config, clock, limits, proxy.endpoint)) as store:
        yield store


def store_at(config: StoreConfig, clock: ManualClock, limits: S3Limits, endpoint: str | None) -> S3Store:
    return S3Store(
        bucket_of(config),
        "some/prefix",
        endpoint=endpoint,
        region=config.region,
        clock=clock,
        ids=SystemIds(clock),
        limits=limits,
    )


def read_all(store: S3Store, position: int = 0) -> tuple[bytes, int]:
    """An object's bytes, and the resumes that it took."""
    data = bytearray()
    target = memoryview(bytearray(64_000))
    with closing(store.open_stream("v1/x", position, purpose=Purpose.COMPACTION)) as stream:
        while count := stream.readinto(target):
            data += target[:count]
        return bytes(data), stream.resumes


class TestBrokenStreams:
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
    def test_a_broken_stream_goes_on_where_it_stopped(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, cut: Fault
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(cut)
        assert read_all(store) == (DATA, 1)
        assert [asked.range[:6] for asked in proxy.log] == ["", "bytes="]
        tally = store.counts.snapshot().of(GET, Purpose.COMPACTION)
        assert (tally.requests, tally.errors, tally.retries, tally.resumes) == (2, 1, 0, 1)
        assert tally.bytes_in == len(DATA)

    def test_a_stream_that_breaks_again_and_again(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=400_000, times=4))
        assert read_all(store, 123) == (DATA[123:], 4)
        assert store.counts.snapshot().of(GET) == Tally(
            requests=5, bytes_in=len(DATA) - 123, errors=4, resumes=4
        )

    @pytest.mark.parametrize("store", [replace(LIMITS, read_timeout_seconds=0.2)], indirect=True)
    def test_a_silent_server_is_left(self, store: S3Store, direct: S3Store, proxy: FaultProxy) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=200_000, stall=True))
        assert read_all(store) == (DATA, 1)

    def test_a_resume_that_is_refused_for_a_while(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=200_000), slow_down("GET", 2))
        assert read_all(store) == (DATA, 1)
        tally = store.counts.snapshot().of(GET)
        assert (tally.requests, tally.errors, tally.retries, tally.resumes) == (4, 3, 2, 1)

    def test_without_progress_it_is_given_up(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, clock: ManualClock
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=0, times=100))
        with pytest.raises(StoreUnavailableError, match="broke off at byte 0"):
            read_all(store)
        assert proxy.count("GET") == ATTEMPTS
        assert clock.monotonic() > 0

    def test_with_too_little_progress_it_is_given_up(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=1, times=100))
        with pytest.raises(StoreUnavailableError, match="5 resumes did not help"):
            read_all(store)
        assert proxy.count("GET") == 1 + LIMITS.resumes

    @pytest.mark.parametrize("store", [replace(LIMITS, resumes=1, bytes_per_resume=100_000)], indirect=True)
    def test_progress_earns_more_resumes(self, store: S3Store, direct: S3Store, proxy: FaultProxy) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", keep_bytes=150_000, times=13))
        assert read_all(store) == (DATA, 13)

    @pytest.mark.parametrize("data", [b"other" * 400_000, b"short", b""])
    def test_an_object_that_was_replaced_is_not_mixed(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, data: bytes
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(
            Fault(method="GET", keep_bytes=300_000),
            Fault(method="GET", before=lambda: direct.put("v1/x", [data], purpose=Purpose.INGEST)),
        )
        with pytest.raises(ObjectChangedError, match="v1/x"):
            read_all(store)

    def test_an_object_that_was_deleted_is_not_found(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(
            Fault(method="GET", keep_bytes=300_000),
            Fault(method="GET", before=lambda: direct.delete(["v1/x"], purpose=Purpose.GC)),
        )
        with pytest.raises(ObjectNotFoundError, match="v1/x"):
            read_all(store)

    def test_ranges_and_tails_are_resumed_too(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        cut = Fault(method="GET", keep_bytes=1000)
        proxy.plan(cut)
        assert store.read_range("v1/x", 5000, 9000, purpose=Purpose.FETCH) == DATA[5000:14000]
        proxy.plan(cut)
        assert store.read_tail("v1/x", 9000, purpose=Purpose.FETCH) == (bytearray(DATA[-9000:]), len(DATA))
        assert store.counts.snapshot().of(GET).resumes == 2

    def test_a_server_that_ignores_ranges_is_found_out(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", without_range=True, times=3))
        with pytest.raises(StoreAccessError, match="Range header"):
            store.read_range("v1/x", 5000, 9000, purpose=Purpose.FETCH)
        with pytest.raises(StoreAccessError, match="Range header"):
            store.read_tail("v1/x", 9000, purpose=Purpose.FETCH)
        assert store.read_range("v1/x", 0, 9000, purpose=Purpose.FETCH) == DATA[:9000]

    def test_a_server_that_does_not_tell_the_size_is_asked(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.put("v1/x", [b"12345"], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="GET", status=416, code="InvalidRange"))
        with pytest.raises(ObjectTooShortError, match="has 5 bytes"):
            store.read_range("v1/x", 5, 1, purpose=Purpose.FETCH)
        assert store.counts.snapshot().of(RequestKind.HEAD).requests == 1


CALLS: dict[str, tuple[str, RequestKind, Callable[[S3Store], object]]] = {
    "put": ("PUT", PUT, lambda store: store.put("v1/y", [b"1"], purpose=Purpose.FSCK)),
    "create": ("PUT", PUT, lambda store: store.create("v1/y", [b"1"], purpose=Purpose.FSCK)),
    "range": ("GET", GET, lambda store: store.read_range("v1/x", 1, 2, purpose=Purpose.FSCK)),
    "tail": ("GET", GET, lambda store: store.read_tail("v1/x", 2, purpose=Purpose.FSCK)),
    "list": ("GET", RequestKind.LIST, lambda store: list(store.list("v1/", purpose=Purpose.FSCK))),
    "delete": ("POST", RequestKind.DELETE, lambda store: store.delete(["v1/x"], purpose=Purpose.FSCK)),
    "sweep": ("GET", RequestKind.LIST, lambda store: store.sweep_unfinished(9, purpose=Purpose.FSCK)),
}


@pytest.mark.parametrize("call", CALLS)
class TestTroubledServers:
    @pytest.mark.parametrize(
        "fault",
        [
            {"status": 503, "code": "SlowDown"},
            {"status": 500, "code": "InternalError"},
            {"status": 400, "code": "RequestTimeout"},
            {"status": 429, "code": "TooManyRequests"},
        ],
        ids=lambda fault: fault["code"],
    )
    def test_what_passes_is_waited_for(
        self,
        store: S3Store,
        direct: S3Store,
        proxy: FaultProxy,
        clock: ManualClock,
        call: str,
        fault: dict[str, int | str],
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        method, kind, act = CALLS[call]
        status, code = int(fault["status"]), str(fault["code"])
        proxy.plan(Fault(method=method, times=ATTEMPTS - 1, status=status, code=code))
        act(store)
        tally = store.counts.snapshot().of(kind, Purpose.FSCK)
        assert (tally.requests, tally.errors, tally.retries) == (ATTEMPTS, ATTEMPTS - 1, ATTEMPTS - 1)
        longest = sum(min(LIMITS.longest_pause_seconds, LIMITS.first_pause_seconds * 2**i) for i in range(3))
        assert 0 < clock.monotonic() <= longest

    def test_what_does_not_pass_is_given_up(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, call: str
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        method, kind, act = CALLS[call]
        proxy.plan(slow_down(method, 100))
        with pytest.raises(
            StoreUnavailableError, match=r"failed in bucket 'test-.*' at http://127.*SlowDown"
        ):
            act(store)
        tally = store.counts.snapshot().of(kind, Purpose.FSCK)
        assert (tally.requests, tally.errors, tally.retries) == (ATTEMPTS, ATTEMPTS, ATTEMPTS - 1)

    def test_a_connection_that_ends_without_an_answer(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, call: str
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        method, kind, act = CALLS[call]
        proxy.plan(Fault(method=method, lose_answer=True), Fault(method=method, lose_answer=True, reset=True))
        act(store)
        tally = store.counts.snapshot().of(kind, Purpose.FSCK)
        assert tally.errors >= 2
        assert tally.requests == len([asked for asked in proxy.log if asked.method == method])

    def test_a_refusal_is_not_repeated(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, call: str
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        method, kind, act = CALLS[call]
        proxy.plan(Fault(method=method, status=403, code="AccessDenied"))
        with pytest.raises(StoreAccessError, match=r"bucket 'test-.*' at http://127.*AccessDenied.*allow"):
            act(store)
        assert store.counts.snapshot().of(kind, Purpose.FSCK).requests == 1


class TestCreateInDoubt:
    def test_an_own_write_whose_answer_was_lost_is_recognised(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(Fault(method="PUT", lose_answer=True))
        assert store.create("v1/x", [b"mine"], purpose=Purpose.INGEST) == 4
        assert direct.read_range("v1/x", 0, 4, purpose=Purpose.FETCH) == b"mine"
        assert proxy.count("PUT") == 2
        assert proxy.count("HEAD") == 1

    def test_somebody_elses_write_of_the_same_bytes_is_not_taken_for_ours(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(
            slow_down("PUT", 1),
            Fault(method="PUT", before=lambda: direct.create("v1/x", [b"same"], purpose=Purpose.INGEST)),
        )
        with pytest.raises(ObjectExistsError):
            store.create("v1/x", [b"same"], purpose=Purpose.INGEST)

    def test_a_plain_refusal_costs_one_request(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.create("v1/x", [b"theirs"], purpose=Purpose.INGEST)
        with pytest.raises(ObjectExistsError):
            store.create("v1/x", [b"mine"], purpose=Purpose.INGEST)
        assert len(proxy.log) == 1

    def test_a_conflict_of_writers_is_tried_again(self, store: S3Store, proxy: FaultProxy) -> None:
        proxy.plan(Fault(method="PUT", status=409, code="ConditionalRequestConflict", times=2))
        assert store.create("v1/x", [b"mine"], purpose=Purpose.INGEST) == 4
        proxy.plan(Fault(method="PUT", status=409, code="ConditionalRequestConflict", times=100))
        with pytest.raises(StoreUnavailableError):
            store.create("v1/y", [b"mine"], purpose=Purpose.INGEST)

    def test_what_was_there_and_vanished_is_somebody_elses(self, store: S3Store, proxy: FaultProxy) -> None:
        proxy.plan(slow_down("PUT", 1), Fault(method="PUT", status=412, code="PreconditionFailed"))
        with pytest.raises(ObjectExistsError):
            store.create("v1/x", [b"mine"], purpose=Purpose.INGEST)


class TestMultipart:
    def test_parts_and_their_frame_are_tried_again(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(
            slow_down("POST", 1, "uploads"),
            slow_down("PUT", 1, "partNumber=2"),
            Fault(method="PUT", part="partNumber=3", lose_answer=True),
            slow_down("POST", 1, "uploadId"),
        )
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        for _ in range(6):
            upload.write(DATA)
        assert upload.complete() == 6 * len(DATA)
        assert read_all(direct)[0] == DATA * 6
        assert proxy.all_happened
        snapshot = store.counts.snapshot()
        assert snapshot.of(RequestKind.PART, Purpose.COMPACTION).retries == 2
        assert snapshot.of(RequestKind.PART, Purpose.COMPACTION).requests == proxy.count("PUT") == 5
        assert snapshot.of(POST, Purpose.COMPACTION).requests == proxy.count("POST") == 4

    def test_a_completion_whose_answer_was_lost_is_recognised(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(
            Fault(method="POST", part="uploadId", lose_answer=True),
            Fault(method="POST", part="uploadId", status=404, code="NoSuchUpload"),
        )
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        assert upload.complete() == 3 * len(DATA)
        assert read_all(direct)[0] == DATA * 3

    @pytest.mark.parametrize("in_doubt", [False, True])
    def test_an_upload_that_was_swept_is_lost(
        self, store: S3Store, proxy: FaultProxy, *, in_doubt: bool
    ) -> None:
        if in_doubt:
            proxy.plan(slow_down("POST", 1, "uploadId"))
        proxy.plan(Fault(method="POST", part="uploadId", status=404, code="NoSuchUpload"))
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        with pytest.raises(UploadLostError, match="v1/x"):
            upload.complete()
        upload.abort()

    def test_an_error_inside_an_answer_that_looks_good(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        """S3 sends its status before it knows whether the completion will succeed."""
        error = b"<Error><Code>InternalError</Code><Message>planned</Message></Error>"
        proxy.plan(Fault(method="POST", part="uploadId", status=200, body=error))
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        upload.complete()
        assert proxy.count("POST", "uploadId") == 2
        assert read_all(direct)[0] == DATA * 3

    def test_a_failed_part_fails_the_upload_and_abort_leaves_nothing(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(slow_down("PUT", 100, "partNumber=1"))
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        with pytest.raises(StoreUnavailableError, match="part 1"):
            upload.complete()
        upload.abort()
        assert direct.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 0
        assert list(direct.list("", purpose=Purpose.GC)) == []

    def test_an_abort_that_fails_is_left_to_the_sweep(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(slow_down("DELETE", 100))
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        upload.abort()
        assert direct.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 1

    def test_an_upload_that_ended_meanwhile_is_no_trouble_for_the_sweep(
        self, store: S3Store, proxy: FaultProxy
    ) -> None:
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        proxy.plan(Fault(method="DELETE", status=404, code="NoSuchUpload"))
        store.sweep_unfinished(1 << 50, purpose=Purpose.GC)
        upload.abort()


class TestOtherAnswers:
    def test_names_that_stay_are_told_with_their_reasons(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        names = [f"v1/{i}" for i in range(1500)]
        answer = (
            "<DeleteResult><Error><Key>some/prefix/v1/7</Key><Code>InternalError</Code>"
            "<Message>planned</Message></Error><Error><Key>some/prefix/v1/8</Key><Code>NoSuchKey</Code>"
            "<Message>planned</Message></Error></DeleteResult>"
        )
        direct.put("v1/1400", [b"1"], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="POST", status=200, body=answer.encode()))
        with pytest.raises(ObjectsNotDeletedError, match="v1/7") as caught:
            store.delete(names, purpose=Purpose.GC)
        assert caught.value.failures == {"v1/7": "InternalError planned"}
        assert list(direct.list("", purpose=Purpose.GC)) == []

    def test_an_answer_that_is_no_xml_is_counted_and_tried_again(
        self, store: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(Fault(method="GET", status=200, body=b"<html>hello", times=2))
        assert list(store.list("", purpose=Purpose.GC)) == []
        tally = store.counts.snapshot().of(RequestKind.LIST, Purpose.GC)
        assert (tally.requests, tally.errors, tally.retries) == (3, 2, 2)
