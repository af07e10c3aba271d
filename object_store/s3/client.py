"""The S3 client: its configuration, its retries, and the counts of its requests."""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
)
from botocore.loaders import create_loader

from object_store.accounting import RequestKind
from object_store.errors import StoreAccessError, StoreClosedError
from object_store.s3.errors import REQUEST_FAULTS, Place, is_transient, translate
from object_store.s3.hedging import Hedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Final

    from mypy_boto3_s3 import S3Client

    from core.clock import Clock
    from core.ids import Ids
    from object_store.accounting import Purpose, RequestCounts
    from object_store.s3.limits import S3Limits

T = TypeVar("T")

_KINDS: Final[Mapping[str, RequestKind]] = {
    "GetObject": RequestKind.GET,
    "PutObject": RequestKind.PUT,
    "UploadPart": RequestKind.PART,
    "CreateMultipartUpload": RequestKind.POST,
    "CompleteMultipartUpload": RequestKind.POST,
    "AbortMultipartUpload": RequestKind.DELETE,
    "DeleteObjects": RequestKind.DELETE,
    "ListObjectsV2": RequestKind.LIST,
    "ListMultipartUploads": RequestKind.LIST,
    "HeadObject": RequestKind.HEAD,
    "HeadBucket": RequestKind.HEAD,  # sent by botocore if a bucket is in another region
}
# The service description, read once per process: opening a store then takes 20 ms instead of 200 ms.
_LOADER: Final = create_loader()
# Faults after which nothing was sent, because there was no connection.
_NEVER_SENT: Final = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)


class _Current(threading.local):
    """The request that the calling thread sends; botocore sends in the calling thread."""

    purpose: Purpose | None = None
    kind: RequestKind = RequestKind.GET
    bytes_out: int = 0
    pending: bool = False


class WireMeter:
    """Counts requests on the wire, by hooks that botocore calls for each send."""

    def __init__(self, client: S3Client, counts: RequestCounts) -> None:
        self._counts = counts
        self._current = _Current()
        client.meta.events.register("before-send.s3", self._on_send)
        client.meta.events.register("response-received.s3", self._on_response)

    @contextmanager
    def purpose(self, purpose: Purpose) -> Iterator[None]:
        """Attribute all requests of this thread inside the block to `purpose`."""
        outer, self._current.purpose = self._current.purpose, purpose
        try:
            yield
        finally:
            self._flush()
            self._current.purpose = outer

    def retried(self) -> None:
        """Count that the last request of this thread will be sent again."""
        assert self._current.purpose is not None
        self._counts.record(self._current.kind, self._current.purpose, retries=1)

    def _on_send(self, request: object, event_name: str, **_: object) -> None:
        self._flush()
        self._current.kind = _KINDS.get(event_name.rpartition(".")[2], RequestKind.POST)
        headers: Mapping[str, str | bytes] = getattr(request, "headers", {})
        self._current.bytes_out = int(headers.get("Content-Length", 0))
        self._current.pending = True

    def _on_response(
        self,
        response_dict: Mapping[str, object] | None,
        parsed_response: Mapping[str, object] | None,
        exception: Exception | None,
        **_: object,
    ) -> None:
        if response_dict is None or parsed_response is None:
            self._record(errors=1, requests=int(not isinstance(exception, _NEVER_SENT)))
            return
        body = response_dict.get("body")
        self._record(
            bytes_in=len(body) if isinstance(body, bytes) else 0,  # streams count their own bytes
            # S3 also reports errors in responses with status 200, which the client finds while parsing.
            errors=int("Error" in parsed_response),
        )

    def _flush(self) -> None:
        """Count a request whose response botocore could not parse."""
        if self._current.pending:
            self._record(errors=1)

    def _record(self, *, errors: int, requests: int = 1, bytes_in: int = 0) -> None:
        current = self._current
        current.pending = False
        assert current.purpose is not None, "a request without a purpose"
        self._counts.record(
            current.kind,
            current.purpose,
            requests=requests,
            bytes_in=bytes_in,
            bytes_out=current.bytes_out if requests else 0,
            errors=errors,
        )


class S3Calls:
    """One client with retries and counts, shared by a store, its streams and its uploads."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None,
        region: str | None,
        ca_bundle: str | None,
        limits: S3Limits,
        counts: RequestCounts,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.bucket = bucket
        self.limits = limits
        self.counts = counts
        self.ids = ids
        self._clock = clock
        place = Place(bucket, endpoint or "Amazon S3")
        self._client = _make_client(place, endpoint, region, ca_bundle, limits)
        self.place = Place(bucket, self._client.meta.endpoint_url)
        self._meter = WireMeter(self._client, counts)
        self.hedger = Hedger(limits, counts, clock)
        self._closed = False

    def send(
        self,
        doing: str,
        purpose: Purpose,
        request: Callable[[S3Client], T],
        *,
        on_fault: Callable[[Exception], T | None] = lambda _: None,
    ) -> T:
        """Send a request, with retries after transient faults; raise the store's errors.

        `on_fault` sees each fault first. It may raise, or return a result that counts as the request's, or
        return None for the usual handling.
        """
        self.require_open()
        with self._meter.purpose(purpose):
            for attempt in range(1, self.limits.attempts + 1):
                try:
                    return request(self._client)
                except REQUEST_FAULTS as error:
                    result = on_fault(error)
                    if result is not None:
                        return result
                    if attempt == self.limits.attempts or not is_transient(error):
                        raise translate(error, doing, self.place) from error
                self.pause(attempt)
                self._meter.retried()
        raise AssertionError("a request is sent at least once")

    def pause(self, failures: int) -> None:
        """Sleep after that many consecutive failures."""
        max_pause = min(self.limits.max_pause_seconds, self.limits.first_pause_seconds * 2 ** (failures - 1))
        self._clock.sleep(self.ids.random() * max_pause)

    def require_open(self) -> None:
        """Raise StoreClosedError after `close`."""
        if self._closed:
            raise StoreClosedError(f"the store in {self.place} is closed")

    def close(self) -> None:
        """Close all idle connections."""
        self._closed = True
        self._client.close()


def new_session() -> boto3.session.Session:
    """Return a new session: boto3's default session is shared state that is not thread-safe."""
    session = botocore.session.Session()
    session.register_component("data_loader", _LOADER)
    return boto3.session.Session(botocore_session=session)


def _make_client(
    place: Place, endpoint: str | None, region: str | None, ca_bundle: str | None, limits: S3Limits
) -> S3Client:
    if ca_bundle is not None and not Path(ca_bundle).is_file():
        raise StoreAccessError(
            f"no client for {place}: there is no file {ca_bundle}",
            remedy="correct s3_ca_bundle; Spark's workers need the file, too",
        )
    config = Config(
        # S3Calls.send retries, with the injected clock and the knowledge which requests may be repeated.
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=limits.connect_timeout_seconds,
        read_timeout=limits.read_timeout_seconds,
        max_pool_connections=limits.connections,
        tcp_keepalive=True,
        # Many S3-compatible servers lack the newer checksums. Bodies stay protected: each block has its
        # CRC-32C, and the request's signature covers the SHA-256 of the body.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # Other servers rarely have a DNS name for each bucket.
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    try:
        client = new_session().client(
            "s3", endpoint_url=endpoint, region_name=region, config=config, verify=ca_bundle
        )
    except (BotoCoreError, ValueError) as error:
        raise StoreAccessError(
            f"no client for {place}: {error}", remedy="correct the region, the endpoint or the AWS_* settings"
        ) from error
    client.meta.events.register("before-call.s3.DeleteObjects", _use_content_md5)
    return client


def _use_content_md5(params: dict[str, Any], **_: object) -> None:
    """Give a request Content-MD5 instead of a newer checksum.

    S3 requires one of both for DeleteObjects. S3Proxy 3.1 knows Content-MD5 only.
    """
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = b64encode(digest).decode()
    checksum = params["context"].get("checksum", {})
    checksum.pop("request_algorithm", None)
    checksum.pop("request_algorithm_header", None)
