"""Objects in a bucket of S3, or of any compatible server, through boto3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import InvalidInputError
from object_store.accounting import Purpose, RequestCounts, RequestKind
from object_store.errors import ObjectsNotDeletedError, StoreAccessError, StoreUnavailableError
from object_store.interface import ObjectInfo, check_range
from object_store.names import COMMON_PREFIX, check_name, parse
from object_store.s3 import upload as s3_upload
from object_store.s3.client import S3Calls
from object_store.s3.errors import is_lost_upload, partial_fault
from object_store.s3.limits import S3Limits
from object_store.s3.stream import RequestedRange, S3Stream
from object_store.s3.upload import S3Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Final

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListMultipartUploadsRequestTypeDef, ListObjectsV2RequestTypeDef

    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import Buffer

_DELETED_AT_ONCE: Final = 1000  # S3's limit for one DeleteObjects
_DEFAULT_LIMITS: Final = S3Limits()


class S3Store:
    """Objects below `prefix` in an existing `bucket`. Thread-safe.

    Credentials come from boto3's sources (environment, profile, instance) and are never logged.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        endpoint: str | None,
        region: str | None,
        ca_bundle: str | None = None,
        clock: Clock,
        ids: Ids,
        limits: S3Limits = _DEFAULT_LIMITS,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._counts = RequestCounts()
        self._calls = S3Calls(
            bucket,
            endpoint=endpoint,
            region=region,
            ca_bundle=ca_bundle,
            limits=limits,
            counts=self._counts,
            clock=clock,
            ids=ids,
        )

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def counts(self) -> RequestCounts:
        """Counts of every request on the wire, retries included."""
        return self._counts

    def put(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write an object with one PUT, replacing an existing one."""
        key = self._key(name)
        data = s3_upload.joined(body)

        def request() -> int:
            self._calls.send(
                f"writing {name!r}",
                purpose,
                lambda client: client.put_object(Bucket=self._bucket, Key=key, Body=data),
            )
            return len(data)

        return self._calls.hedger.send(RequestKind.PUT, purpose, request)

    def create(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write an object with one conditional PUT unless one of that name exists."""
        return s3_upload.create(self._calls, self._key(name), name, body, purpose)

    def read_range(self, name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        """Return exactly `length` bytes from `position`; a broken connection costs another GET."""
        if position < 0 or length < 0:
            raise InvalidInputError(f"range {position}+{length} of {name!r} is negative")
        key = self._key(name)
        if length == 0:
            return bytearray()

        def request() -> bytearray:
            stream = S3Stream(self._calls, key, name, RequestedRange(position, position + length), purpose)
            return _read_all(stream, length)

        return self._calls.hedger.send(RequestKind.GET, purpose, request)

    def read_tail(self, name: str, length: int, *, purpose: Purpose) -> tuple[bytearray, int]:
        """Return the last min(length, size) bytes, and the size."""
        if length < 1:
            raise InvalidInputError(f"a tail of {length} bytes of {name!r} is empty")
        stream = S3Stream(self._calls, self._key(name), name, RequestedRange(suffix=length), purpose)
        size = stream.start().size
        return _read_all(stream, min(length, size)), size

    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> S3Stream:
        """Return a stream from `position` up to `end`; the GET is sent at the first read."""
        check_range(name, position, end)
        return S3Stream(self._calls, self._key(name), name, RequestedRange(position, end), purpose)

    def start_upload(self, name: str, *, purpose: Purpose) -> S3Upload:
        """Start a large object; the first request is sent when a part is full."""
        return S3Upload(self._calls, self._key(name), name, purpose)

    def list(self, prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        """Yield objects whose name starts with `prefix`, at most 1,000 per page."""
        self._calls.require_open()
        return self._list(prefix, purpose)

    def _list(self, prefix: str, purpose: Purpose) -> Iterator[ObjectInfo]:
        request: ListObjectsV2RequestTypeDef = {
            "Bucket": self._bucket,
            "Prefix": f"{self._prefix}{prefix}",
        }
        while True:
            page = self._calls.send(
                f"listing {prefix!r}", purpose, lambda client: client.list_objects_v2(**request)
            )
            for entry in page.get("Contents", []):
                name = entry["Key"].removeprefix(self._prefix)
                yield ObjectInfo(name, entry["Size"], _milliseconds(entry["LastModified"]))
            if not page["IsTruncated"]:
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, names: Sequence[str], *, purpose: Purpose) -> None:
        """Delete objects, up to 1,000 per request."""
        keys = {self._key(name): name for name in names}
        failures: dict[str, str] = {}
        all_keys = list(keys)
        for start in range(0, len(all_keys), _DELETED_AT_ONCE):
            failed = self._delete(all_keys[start : start + _DELETED_AT_ONCE], purpose)
            failures.update((keys[key], reason) for key, reason in failed.items())
        if failures:
            raise ObjectsNotDeletedError(str(self._calls.place), failures)

    def _delete(self, keys: Sequence[str], purpose: Purpose) -> Mapping[str, str]:
        """Delete one batch; return the keys that still exist, with the server's reasons.

        A server that is busy may reject some keys of a request; these are sent again after a pause.
        """
        left = list(keys)
        failures: dict[str, str] = {}
        rejected: dict[str, str] = {}

        def request(client: S3Client) -> bool:
            rejected.clear()
            response = client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in left], "Quiet": True}
            )
            fault = None
            for error in response.get("Errors", []):
                key, code, message = error.get("Key", ""), error.get("Code", ""), error.get("Message", "")
                transient = partial_fault(code, message)
                if code != "NoSuchKey":
                    (failures if transient is None else rejected)[key] = f"{code} {message}".strip()
                fault = transient or fault
            left[:] = rejected
            if fault is not None:
                raise fault
            return True

        try:
            self._calls.send(f"deleting {len(keys)} objects", purpose, request)
        except StoreUnavailableError:
            if not rejected:
                raise
        return failures | rejected

    def sweep_unfinished(
        self, before_ms: int, *, purpose: Purpose, may_abort: Callable[[str, int], bool] | None = None
    ) -> int:
        """Abort multipart uploads of Siltstone's objects that were started before `before_ms`.

        Other applications may have uploads in the same bucket and below the same prefix; these stay.
        """
        decide = may_abort or (lambda _, started_ms: started_ms < before_ms)
        swept = 0
        failures: dict[str, str] = {}
        for key, upload_id, started_ms in self._uploads(purpose):
            name = key.removeprefix(self._prefix)
            if parse(name) is None or not decide(name, started_ms):
                continue
            try:
                self._abort(key, upload_id, purpose)
                swept += 1
            except StoreAccessError as error:  # the other uploads can be aborted nevertheless
                failures[name] = str(error)
        if failures:
            raise ObjectsNotDeletedError(str(self._calls.place), failures)
        return swept

    def _uploads(self, purpose: Purpose) -> Iterator[tuple[str, str, int]]:
        """Yield key, id and start of each unfinished upload, page by page; some may not be Siltstone's."""
        request: ListMultipartUploadsRequestTypeDef = {
            "Bucket": self._bucket,
            "Prefix": f"{self._prefix}{COMMON_PREFIX}",
        }
        while True:
            page = self._calls.send(
                "listing unfinished uploads",
                purpose,
                lambda client: client.list_multipart_uploads(**request),
            )
            for upload in page.get("Uploads", []):
                yield upload["Key"], upload["UploadId"], _milliseconds(upload["Initiated"])
            if not page.get("IsTruncated"):
                return
            request["KeyMarker"] = page["NextKeyMarker"]
            request["UploadIdMarker"] = page["NextUploadIdMarker"]

    def _abort(self, key: str, upload_id: str, purpose: Purpose) -> None:
        def request(client: S3Client) -> bool:
            client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
            return True

        self._calls.send(
            f"sweeping the upload of {key!r}",
            purpose,
            request,
            # The upload may have ended after it was listed.
            on_fault=lambda error: True if is_lost_upload(error) else None,
        )

    def check(self) -> None:
        """Verify that the bucket exists and may be read: list at most one object."""
        self._calls.send(
            "a test listing",
            Purpose.CHECK,
            lambda client: client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1),
        )

    def close(self) -> None:
        """Close all idle connections, and reject further calls."""
        self._calls.close()

    def _key(self, name: str) -> str:
        self._calls.require_open()
        check_name(name)
        return f"{self._prefix}{name}"


def _read_all(stream: S3Stream, length: int) -> bytearray:
    data = bytearray(length)
    target = memoryview(data)
    try:
        while target:
            target = target[stream.readinto(target) :]
    finally:
        stream.close()
    return data


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
