"""Request counts are part of the product: they agree with the server's log."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from core.ids import SystemIds
from object_store.accounting import CountsSnapshot, Purpose, RequestCounts, RequestKind, Tally
from object_store.errors import ObjectNotFoundError
from object_store.open import StoreConfig, open_store
from tests.fixtures.s3 import bucket_of

if TYPE_CHECKING:
    from core.clock import ManualClock
    from tests.fixtures.s3 import LoggedRequest, S3Server

GET, PUT = RequestKind.GET, RequestKind.PUT
COMPACTION, FETCH, INGEST = Purpose.COMPACTION, Purpose.FETCH, Purpose.INGEST


def test_counts_are_summed_over_kinds_and_purposes() -> None:
    counts = RequestCounts()
    counts.record(GET, COMPACTION, requests=2, bytes_in=10)
    counts.record(GET, FETCH, requests=3, bytes_in=5, errors=1)
    counts.record(PUT, COMPACTION, requests=1, bytes_out=7)
    counts.record(GET, COMPACTION, resumes=1)
    snapshot = counts.snapshot()
    assert snapshot.of(GET, COMPACTION) == Tally(requests=2, bytes_in=10, resumes=1)
    assert snapshot.of(GET) == Tally(requests=5, bytes_in=15, errors=1, resumes=1)
    assert snapshot.of(purpose=COMPACTION) == Tally(requests=3, bytes_in=10, bytes_out=7, resumes=1)
    assert snapshot.of(PUT, FETCH) == Tally()
    assert snapshot.of().requests == 6


def test_the_difference_of_two_snapshots_has_the_counts_between_them() -> None:
    counts = RequestCounts()
    counts.record(GET, FETCH, requests=1)
    before = counts.snapshot()
    counts.record(GET, COMPACTION, requests=2)
    difference = counts.snapshot() - before
    assert difference == CountsSnapshot({(GET, COMPACTION): Tally(requests=2)})
    assert before + difference == counts.snapshot()
    assert counts.snapshot() - counts.snapshot() == CountsSnapshot({})


def test_a_snapshot_does_not_change() -> None:
    counts = RequestCounts()
    counts.record(GET, FETCH, requests=1)
    snapshot = counts.snapshot()
    counts.record(GET, FETCH, requests=1)
    assert snapshot.of().requests == 1


def test_a_report_has_a_name_for_each_count() -> None:
    counts = RequestCounts()
    counts.record(GET, COMPACTION, requests=2, bytes_in=10, resumes=1)
    report = counts.snapshot().as_dict()
    assert json.loads(json.dumps(report)) == report
    assert list(report) == ["compaction"]
    assert report["compaction"] == {
        "get_requests": 2,
        "put_requests": 0,
        "part_requests": 0,
        "post_requests": 0,
        "head_requests": 0,
        "list_requests": 0,
        "delete_requests": 0,
        "bytes_in": 10,
        "bytes_out": 0,
        "errors": 0,
        "retries": 0,
        "resumes": 1,
        "hedges": 0,
        "hedges_won": 0,
    }


def test_concurrent_threads_lose_no_counts() -> None:
    counts = RequestCounts()

    def add() -> None:
        for _ in range(5000):
            counts.record(GET, FETCH, requests=1, bytes_in=3)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.snapshot().of(GET, FETCH) == Tally(requests=20_000, bytes_in=60_000)


def kind_of(request: LoggedRequest) -> RequestKind:
    """Return the kind of a logged request, as a price list groups requests."""
    if request.method == "PUT":
        return RequestKind.PART if "partNumber" in request.query else RequestKind.PUT
    if request.method == "POST":
        return RequestKind.DELETE if "delete" in request.query else RequestKind.POST
    if request.method == "GET":
        return RequestKind.GET if request.is_object_get else RequestKind.LIST
    return RequestKind(request.method.lower())


def test_counts_match_the_requests_that_the_server_logged(
    s3_server: S3Server, s3_config: StoreConfig, clock: ManualClock
) -> None:
    bucket = bucket_of(s3_config)
    before = len(s3_server.requests(bucket))
    with closing(open_store(s3_config, clock, SystemIds(clock))) as store:
        for i in range(3):
            store.create(f"v1/{i}", [b"x" * 1000], purpose=INGEST)
        for i in range(3):
            for _ in range(2):
                with closing(store.open_stream(f"v1/{i}", purpose=COMPACTION)) as stream:
                    assert stream.readinto(memoryview(bytearray(2000))) == 1000
        with pytest.raises(ObjectNotFoundError):
            store.read_range("v1/none", 0, 1, purpose=FETCH)
        assert len(store.read_tail("v1/1", 10, purpose=FETCH)[0]) == 10
        upload = store.start_upload("v1/large", purpose=COMPACTION)
        upload.write(bytes(17 << 20))
        upload.complete()
        aborted = store.start_upload("v1/aborted", purpose=COMPACTION)
        aborted.write(bytes(9 << 20))
        aborted.abort()
        list(store.list("v1/", purpose=Purpose.GC))
        store.delete(["v1/0", "v1/none"], purpose=Purpose.GC)
        store.sweep_unfinished(0, purpose=Purpose.GC)
        store.check()
        counts = store.counts.snapshot()
    log = s3_server.requests(bucket)[before:]
    assert Counter(map(kind_of, log)) == {
        kind: counts.of(kind).requests for kind in RequestKind if counts.of(kind).requests
    }
    gets = s3_server.object_gets(bucket)
    assert [gets[f"/{bucket}/some/prefix/v1/{i}"] for i in range(3)] == [2, 3, 2]
    assert counts.of(GET, COMPACTION) == Tally(requests=6, bytes_in=6000)
    assert counts.of(GET, FETCH).errors == 1
    assert counts.of(PUT, INGEST) == Tally(requests=3, bytes_out=3000)
    assert counts.of(RequestKind.PART, COMPACTION) == Tally(requests=4, bytes_out=(17 << 20) + (8 << 20))
