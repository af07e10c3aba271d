"""Writes with a lost response, and uploads that fail before their end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from object_store.accounting import Purpose, RequestKind
from object_store.errors import (
    ObjectExistsError,
    StoreUnavailableError,
    UploadLostError,
)
from object_store.names import compacted_name
from tests.object_store.s3.fault_proxy import Fault
from tests.object_store.s3.limited_store import DATA, read_all, slow_down

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_store.s3.store import S3Store
    from tests.object_store.s3.fault_proxy import FaultProxy

POST = RequestKind.POST
OURS = compacted_name(*[UUID(int=1)] * 3)  # a sweep removes only uploads with names of this form
LOST_UPLOAD_CODES = pytest.mark.parametrize("code", ["NoSuchUpload", "NoSuchKey"])


def uploads_page(upload_ids: Sequence[str], next_upload_id: str) -> bytes:
    """Return a page of unfinished uploads of one key; another page follows if `next_upload_id` is set."""
    key = f"some/prefix/{OURS}"
    uploads = "".join(
        f"<Upload><Key>{key}</Key><UploadId>{each}</UploadId><Initiated>2020-01-01T00:00:00Z</Initiated></Upload>"
        for each in upload_ids
    )
    rest = f"<NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{next_upload_id}</NextUploadIdMarker>"
    is_truncated = "true" if next_upload_id else "false"
    return (
        '<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{is_truncated}</IsTruncated>{rest if next_upload_id else ''}{uploads}"
        "</ListMultipartUploadsResult>"
    ).encode()


def await_late(proxy: FaultProxy) -> None:
    """Wait until the server has received a delayed request."""
    deadline = time.monotonic() + 240
    while not proxy.late:
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestCreateWithUnknownOutcome:
    def test_create_recognises_its_own_object_after_a_lost_response(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(Fault(method="PUT", lose_response=True))
        assert store.create("v1/x", [b"mine"], purpose=Purpose.INGEST) == 4
        assert direct.read_range("v1/x", 0, 4, purpose=Purpose.FETCH) == b"mine"
        assert proxy.count("PUT") == 2
        assert proxy.count("HEAD") == 1

    def test_a_create_that_arrives_after_its_retry_changes_nothing(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        """A request may wait in a network longer than its client waits."""
        proxy.plan(Fault(method="PUT", lose_response=True, delay_seconds=0.2))
        assert store.create("v1/x", [b"mine"], purpose=Purpose.INGEST) == 4
        await_late(proxy)
        assert direct.read_range("v1/x", 0, 4, purpose=Purpose.FETCH) == b"mine"
        with pytest.raises(ObjectExistsError):
            store.create("v1/x", [b"mine"], purpose=Purpose.INGEST)

    def test_create_rejects_an_equal_object_of_another_writer(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(
            slow_down("PUT", 1),
            Fault(method="PUT", before=lambda: direct.create("v1/x", [b"same"], purpose=Purpose.INGEST)),
        )
        with pytest.raises(ObjectExistsError):
            store.create("v1/x", [b"same"], purpose=Purpose.INGEST)

    def test_create_of_an_existing_object_costs_one_request(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        direct.create("v1/x", [b"theirs"], purpose=Purpose.INGEST)
        with pytest.raises(ObjectExistsError):
            store.create("v1/x", [b"mine"], purpose=Purpose.INGEST)
        assert len(proxy.log) == 1

    def test_a_conflict_of_writers_is_retried(self, store: S3Store, proxy: FaultProxy) -> None:
        proxy.plan(Fault(method="PUT", status=409, code="ConditionalRequestConflict", times=2))
        assert store.create("v1/x", [b"mine"], purpose=Purpose.INGEST) == 4
        proxy.plan(Fault(method="PUT", status=409, code="ConditionalRequestConflict", times=100))
        with pytest.raises(StoreUnavailableError):
            store.create("v1/y", [b"mine"], purpose=Purpose.INGEST)

    def test_create_attributes_a_deleted_object_to_another_writer(
        self, store: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(slow_down("PUT", 1), Fault(method="PUT", status=412, code="PreconditionFailed"))
        with pytest.raises(ObjectExistsError):
            store.create("v1/x", [b"mine"], purpose=Purpose.INGEST)


class TestMultipartUpload:
    def test_each_request_of_an_upload_is_retried(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(
            slow_down("POST", 1, "uploads"),
            slow_down("PUT", 1, "partNumber=2"),
            Fault(method="PUT", part="partNumber=3", lose_response=True),
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

    @LOST_UPLOAD_CODES
    def test_an_upload_recognises_its_completion_after_a_lost_response(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, code: str
    ) -> None:
        proxy.plan(
            Fault(method="POST", part="uploadId", lose_response=True),
            Fault(method="POST", part="uploadId", status=404, code=code),
        )
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        assert upload.complete() == 3 * len(DATA)
        assert read_all(direct)[0] == DATA * 3

    @pytest.mark.parametrize(("method", "part"), [("PUT", "partNumber=1"), ("POST", "uploadId")])
    def test_a_request_that_arrives_after_its_retry_leaves_one_whole_object(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy, method: str, part: str
    ) -> None:
        proxy.plan(Fault(method=method, part=part, lose_response=True, delay_seconds=0.2))
        upload = store.start_upload(OURS, purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        assert upload.complete() == 3 * len(DATA)
        await_late(proxy)
        assert direct.read_range(OURS, 0, 3 * len(DATA), purpose=Purpose.FETCH) == DATA * 3
        assert direct.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 0

    @LOST_UPLOAD_CODES
    @pytest.mark.parametrize("is_retried", [False, True])
    def test_a_swept_upload_is_lost(
        self, store: S3Store, proxy: FaultProxy, code: str, *, is_retried: bool
    ) -> None:
        if is_retried:
            proxy.plan(slow_down("POST", 1, "uploadId"))
        proxy.plan(Fault(method="POST", part="uploadId", status=404, code=code))
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        with pytest.raises(UploadLostError, match="v1/x"):
            upload.complete()
        upload.abort()

    def test_an_error_inside_a_successful_response_is_retried(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        """S3 sends the status before it knows whether the completion succeeds."""
        error = b"<Error><Code>InternalError</Code><Message>planned</Message></Error>"
        proxy.plan(Fault(method="POST", part="uploadId", status=200, body=error))
        upload = store.start_upload("v1/x", purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        upload.complete()
        assert proxy.count("POST", "uploadId") == 2
        assert read_all(direct)[0] == DATA * 3

    def test_a_failed_part_fails_the_upload_and_abort_removes_all_parts(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(slow_down("PUT", 100, "partNumber=1"))
        upload = store.start_upload(OURS, purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        with pytest.raises(StoreUnavailableError, match="part 1"):
            upload.complete()
        upload.abort()
        assert direct.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 0
        assert list(direct.list("", purpose=Purpose.GC)) == []

    def test_an_abort_waits_for_the_part_that_is_on_its_way(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        """A part that the server receives after the abort would stay, and would be paid for."""
        arrived, may_go_on, order = threading.Event(), threading.Event(), list[str]()

        def hold_part() -> None:
            arrived.set()
            may_go_on.wait(240)
            order.append("part")

        proxy.plan(Fault(method="PUT", part="partNumber=1", before=hold_part))
        proxy.plan(Fault(method="DELETE", before=lambda: order.append("abort")))
        upload = store.start_upload(OURS, purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        assert arrived.wait(240)
        aborting = threading.Thread(target=upload.abort)
        aborting.start()
        aborting.join(0.2)  # long enough for an abort that does not wait
        may_go_on.set()
        aborting.join(240)
        assert order == ["part", "abort"]
        assert direct.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 0

    def test_the_sweep_continues_within_the_uploads_of_one_key(
        self, store: S3Store, proxy: FaultProxy
    ) -> None:
        """A page may end between two uploads of the same object: a task that is retried starts another."""
        for upload_ids, marker in ((("1", "2"), "2"), (("3",), "")):
            proxy.plan(Fault(method="GET", part="uploads", status=200, body=uploads_page(upload_ids, marker)))
        assert store.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 3
        listings = [parse_qs(urlsplit(each.path).query) for each in proxy.log if "uploads" in each.path]
        assert "upload-id-marker" not in listings[0]
        assert listings[1]["upload-id-marker"] == ["2"]
        assert listings[1]["key-marker"] == [f"some/prefix/{OURS}"]
        assert [proxy.count("DELETE", f"uploadId={number}") for number in (1, 2, 3)] == [1, 1, 1]

    def test_the_sweep_removes_an_upload_whose_abort_failed(
        self, store: S3Store, direct: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.plan(slow_down("DELETE", 100))
        upload = store.start_upload(OURS, purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        upload.abort()
        assert direct.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 1

    @LOST_UPLOAD_CODES
    def test_the_sweep_ignores_an_upload_that_ended_concurrently(
        self, store: S3Store, proxy: FaultProxy, code: str
    ) -> None:
        upload = store.start_upload(OURS, purpose=Purpose.COMPACTION)
        upload.write(DATA * 3)
        proxy.plan(Fault(method="DELETE", status=404, code=code))
        assert store.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 1
        assert proxy.all_happened
        upload.abort()
