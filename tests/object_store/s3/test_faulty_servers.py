"""Every call retries transient errors, gives up in time, and counts each attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from core.clock import ManualClock
from core.ids import SystemIds
from object_store.accounting import Purpose, RequestKind
from object_store.errors import (
    ObjectsNotDeletedError,
    StoreAccessError,
    StoreUnavailableError,
    UploadLostError,
)
from object_store.names import ingestion_name
from object_store.trial import try_store
from tests.fixtures.s3 import bucket_of
from tests.object_store.s3.fault_proxy import Fault
from tests.object_store.s3.limited_store import ATTEMPTS, DATA, LIMITS, slow_down

if TYPE_CHECKING:
    from collections.abc import Callable

    from object_store.open import StoreConfig
    from object_store.s3.store import S3Store
    from tests.fixtures.s3 import S3Server
    from tests.object_store.s3.fault_proxy import FaultProxy

GET, PUT = RequestKind.GET, RequestKind.PUT


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
class TestRetries:
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
    def test_transient_errors_are_retried_with_pauses(
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
        longest = sum(min(LIMITS.max_pause_seconds, LIMITS.first_pause_seconds * 2**i) for i in range(3))
        assert 0 < clock.monotonic() <= longest

    def test_a_persistent_error_fails_after_the_last_attempt(
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

    def test_a_request_without_a_response_is_retried(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, call: str
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        method, kind, act = CALLS[call]
        proxy.plan(
            Fault(method=method, lose_response=True), Fault(method=method, lose_response=True, reset=True)
        )
        act(store)
        tally = store.counts.snapshot().of(kind, Purpose.FSCK)
        assert tally.errors >= 2
        assert tally.requests == len([request for request in proxy.log if request.method == method])

    def test_a_denied_request_is_not_retried(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, call: str
    ) -> None:
        direct.put("v1/x", [DATA], purpose=Purpose.INGEST)
        method, kind, act = CALLS[call]
        proxy.plan(Fault(method=method, status=403, code="AccessDenied"))
        with pytest.raises(StoreAccessError, match=r"bucket 'test-.*' at http://127.*AccessDenied.*allow"):
            act(store)
        assert store.counts.snapshot().of(kind, Purpose.FSCK).requests == 1


class TestUnusualResponses:
    def test_a_partial_delete_reports_the_remaining_names_and_reasons(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        names = [f"v1/{i}" for i in range(1500)]
        response = (
            "<DeleteResult><Error><Key>some/prefix/v1/7</Key><Code>AccessDenied</Code>"
            "<Message>planned</Message></Error><Error><Key>some/prefix/v1/8</Key><Code>NoSuchKey</Code>"
            "<Message>planned</Message></Error></DeleteResult>"
        )
        direct.put("v1/1400", [b"1"], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="POST", status=200, body=response.encode()))
        with pytest.raises(ObjectsNotDeletedError, match="v1/7") as caught:
            store.delete(names, purpose=Purpose.GC)
        assert caught.value.failures == {"v1/7": "AccessDenied planned"}
        assert str(caught.value).startswith("1 object could not be deleted from ")
        assert str(caught.value).endswith("; the first is 'v1/7': AccessDenied planned")
        assert list(direct.list("", purpose=Purpose.GC)) == []

    @pytest.mark.parametrize("code", ["SlowDown", "InternalError"])
    def test_a_key_that_a_busy_server_rejects_is_deleted_after_a_pause(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, clock: ManualClock, code: str
    ) -> None:
        rejected = (
            f"<DeleteResult><Error><Key>some/prefix/v1/b</Key><Code>{code}</Code><Message>busy</Message></Error>"
            "<Error><Key>some/prefix/v1/c</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
            "</DeleteResult>"
        )
        for name in "abc":
            direct.put(f"v1/{name}", [b"1"], purpose=Purpose.INGEST)
        proxy.plan(Fault(method="POST", status=200, body=rejected.encode()))
        with pytest.raises(ObjectsNotDeletedError) as caught:
            store.delete(["v1/a", "v1/b", "v1/c"], purpose=Purpose.GC)
        assert caught.value.failures == {"v1/c": "AccessDenied no"}
        # The proxy deleted nothing at the first request; the second one had only the rejected key.
        assert [info.name for info in direct.list("", purpose=Purpose.GC)] == ["v1/a", "v1/c"]
        tally = store.counts.snapshot().of(RequestKind.DELETE, Purpose.GC)
        assert (tally.requests, tally.retries) == (2, 1)
        assert clock.monotonic() > 0

    def test_keys_that_stay_rejected_are_reported_after_the_last_attempt(
        self, store: S3Store, proxy: FaultProxy
    ) -> None:
        rejected = (
            "<DeleteResult><Error><Key>some/prefix/v1/b</Key><Code>SlowDown</Code><Message>busy</Message>"
            "</Error></DeleteResult>"
        )
        proxy.plan(Fault(method="POST", status=200, body=rejected.encode(), times=ATTEMPTS))
        with pytest.raises(ObjectsNotDeletedError) as caught:
            store.delete(["v1/a", "v1/b"], purpose=Purpose.GC)
        assert caught.value.failures == {"v1/b": "SlowDown busy"}
        assert proxy.all_happened

    def test_an_upload_that_cannot_be_aborted_does_not_hold_up_the_others(
        self, store: S3Store, s3_server: S3Server, s3_config: StoreConfig, proxy: FaultProxy
    ) -> None:
        client, bucket = s3_server.client(), bucket_of(s3_config)
        uploads = [ingestion_name(UUID(int=number), UUID(int=number)) for number in range(3)]
        for name in uploads:
            client.create_multipart_upload(Bucket=bucket, Key=f"some/prefix/{name}")
        proxy.plan(Fault(method="DELETE", part=uploads[1], status=403, code="AccessDenied"))
        with pytest.raises(ObjectsNotDeletedError) as caught:
            store.sweep_unfinished(1 << 50, purpose=Purpose.GC)
        assert list(caught.value.failures) == [uploads[1]]
        assert store.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 1

    def test_a_response_without_xml_is_counted_and_retried(self, store: S3Store, proxy: FaultProxy) -> None:
        proxy.plan(Fault(method="GET", status=200, body=b"<html>hello", times=2))
        assert list(store.list("", purpose=Purpose.GC)) == []
        tally = store.counts.snapshot().of(RequestKind.LIST, Purpose.GC)
        assert (tally.requests, tally.errors, tally.retries) == (3, 2, 2)


def test_an_old_server_without_the_newer_checksums_does_everything(store: S3Store, proxy: FaultProxy) -> None:
    """S3 requires a checksum of requests that delete several objects; S3Proxy knows only Content-MD5."""
    proxy.lacks_new_checksums = True

    results = try_store(store, SystemIds(ManualClock()), is_s3=True)

    assert [each.problem or each.limitation for each in results] == [None] * len(results)


@pytest.mark.parametrize("code", ["NoSuchUpload", "NoSuchKey"])
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_lost_upload_is_named_whatever_the_server_calls_it(
    store: S3Store, proxy: FaultProxy, method: str, code: str
) -> None:
    proxy.plan(Fault(method=method, part="uploadId=", status=404, code=code))
    upload = store.start_upload("v1/y", purpose=Purpose.COMPACTION)
    with pytest.raises(UploadLostError):  # noqa: PT012 -- the part is sent by either call
        upload.write(bytes(6 << 20))
        upload.complete()
    upload.abort()
    assert proxy.all_happened
