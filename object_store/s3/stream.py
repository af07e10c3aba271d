"""Forward reading of an S3 object, over as many connections as necessary.

The first response fixes what is read: the entity tag and the end. If the connection breaks, or the server
closes it because it was idle, a GET of the remaining range replaces it, and its response must have the same
tag. The tag is compared here and not sent as `If-Match`: a response's body belongs to its tag, so both ways
are equally safe. Some servers (Ceph's gateway) reject a quoted tag in the header, while others require the
quotes.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from object_store.accounting import RequestKind
from object_store.errors import (
    ObjectChangedError,
    ObjectTooShortError,
    StoreAccessError,
    StoreClosedError,
    StoreUnavailableError,
)
from object_store.s3.errors import BODY_FAULTS, error_code
from object_store.s3.limits import MIB

if TYPE_CHECKING:
    from typing import Final

    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client

    from object_store.accounting import Purpose
    from object_store.s3.client import S3Calls

# Size of one read; a read is lost if the connection breaks in it, and is then fetched again
_READ_AT_ONCE: Final = MIB
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_UNSATISFIED_RANGE: Final = re.compile(r"bytes \*/(\d+)")


@dataclass(frozen=True, slots=True)
class RequestedRange:
    """The bytes from `start` up to `end` (None: all), or the last `suffix` bytes."""

    start: int = 0
    end: int | None = None
    suffix: int = 0

    def header(self) -> str | None:
        """Return the value of the `Range` header; None for the whole object."""
        if self.suffix:
            return f"bytes=-{self.suffix}"
        if self.end is not None:
            return f"bytes={self.start}-{self.end - 1}"
        return f"bytes={self.start}-" if self.start else None


@dataclass(frozen=True, slots=True)
class _Response:
    """The range that a GET's response delivers."""

    body: StreamingBody | None  # None: the range is empty
    start: int
    end: int
    size: int
    tag: str | None


class S3Stream:
    """A `ForwardStream` over one object or a range of it; for one thread at a time."""

    def __init__(
        self, calls: S3Calls, key: str, name: str, requested: RequestedRange, purpose: Purpose
    ) -> None:
        self._calls = calls
        self._key = key
        self._name = name
        self._wanted = requested
        self._purpose = purpose
        self._first: _Response | None = None
        self._body: StreamingBody | None = None
        self._position = requested.start
        self._resumes = 0
        self._breaks_in_a_row = 0
        self._closed = False

    @property
    def resumes(self) -> int:
        """Number of times that the stream was resumed."""
        return self._resumes

    def readinto(self, target: memoryview) -> int:
        """Fill up to len(target) bytes; return 0 only at the end of the range."""
        self._require_open()
        if not len(target):
            return 0
        first = self.start()
        while self._position < first.end:
            count = self._read(target[: min(len(target), _READ_AT_ONCE, first.end - self._position)])
            if count:
                return count
        return 0

    def start(self) -> _Response:
        """Send the first GET unless it was sent; return the delivered range and the object's size."""
        if self._first is None:
            self._first = self._get(self._wanted, None)
            self._body = self._first.body
            self._position = self._first.start
        return self._first

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._drop()

    def _read(self, target: memoryview) -> int:
        """Read from the socket once; return 0 if the connection broke."""
        if self._body is None:
            self._resume()
        assert self._body is not None
        try:
            # The stub's type is wrong: the argument is the buffer to fill.
            count = self._body.readinto(target)  # type: ignore[arg-type]
        except BODY_FAULTS as fault:
            self._broke(fault)
            return 0
        if count == 0:
            self._broke(None)
            return 0
        self._calls.counts.record(RequestKind.GET, self._purpose, bytes_in=count)
        self._position += count
        self._breaks_in_a_row = 0
        assert self._first is not None
        if self._position == self._first.end:
            self._drop()
        return count

    def _broke(self, fault: BaseException | None) -> None:
        """Count a broken connection, and raise StoreUnavailableError after too many."""
        self._drop()
        assert self._first is not None
        self._calls.counts.record(RequestKind.GET, self._purpose, errors=1)
        self._breaks_in_a_row += 1
        limits = self._calls.limits
        allowed = limits.resumes + (self._position - self._first.start) // limits.bytes_per_resume
        if self._resumes >= allowed or self._breaks_in_a_row >= limits.attempts:
            raise StoreUnavailableError(
                f"reading {self._name!r} broke off at byte {self._position} of {self._first.size} in "
                f"{self._calls.place}, after {self._resumes} resumes: {fault or 'the body ended early'}"
            ) from fault

    def _resume(self) -> None:
        first = self._first
        assert first is not None
        self._calls.pause(self._breaks_in_a_row)
        self._resumes += 1
        self._calls.counts.record(RequestKind.GET, self._purpose, resumes=1)
        self._body = self._get(RequestedRange(self._position, first.end), first).body

    def _get(self, requested: RequestedRange, first: _Response | None) -> _Response:
        header = requested.header()

        def request(client: S3Client) -> _Response:
            bucket = self._calls.bucket
            response = (
                client.get_object(Bucket=bucket, Key=self._key)
                if header is None
                else client.get_object(Bucket=bucket, Key=self._key, Range=header)
            )
            body, length, tag = response["Body"], response["ContentLength"], response.get("ETag")
            if match := _CONTENT_RANGE.fullmatch(response.get("ContentRange", "")):
                start, last, size = map(int, match.groups())
                return _Response(body, start, last + 1, size, tag)
            return _Response(body, 0, length, length, tag)

        def on_fault(error: Exception) -> _Response | None:
            if isinstance(error, ClientError) and error_code(error) in {"InvalidRange", "416"}:
                size = _size_of_unsatisfied(error)
                size = self._ask_size() if size is None else size
                return _Response(None, size, size, size, None)
            return None

        response = self._calls.send(f"reading {self._name!r}", self._purpose, request, on_fault=on_fault)
        try:
            return self._checked(response, requested, first)
        except BaseException:
            if response.body is not None:
                response.body.close()
            raise

    def _ask_size(self) -> int:
        """Return the object's size, for servers that omit it when they reject a range."""
        response = self._calls.send(
            f"asking for the size of {self._name!r}",
            self._purpose,
            lambda client: client.head_object(Bucket=self._calls.bucket, Key=self._key),
        )
        return response["ContentLength"]

    def _checked(self, response: _Response, requested: RequestedRange, first: _Response | None) -> _Response:
        """Compare a response with the request and with the first response."""
        if first is not None and (response.tag, response.size) != (first.tag, first.size):
            raise ObjectChangedError(f"{self._name!r} was replaced while it was read, in {self._calls.place}")
        if (requested.end if requested.end is not None else requested.start) > response.size:
            raise ObjectTooShortError(
                f"{self._name!r} in {self._calls.place} has {response.size} bytes, but the range starts "
                f"at {requested.start}"
                + (f" and ends at {requested.end}" if requested.end is not None else "")
            )
        start = max(0, response.size - requested.suffix) if requested.suffix else requested.start
        end = requested.end if requested.end is not None else response.size
        if response.start != start or response.end < end:
            raise StoreAccessError(
                f"requested bytes {start} to {end} of {self._name!r}, but {self._calls.place} "
                f"responded with {response.start} to {response.end}",
                remedy="use a server and proxies that support the Range header",
            )
        return _Response(response.body, start, end, response.size, response.tag)

    def _drop(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            with suppress(*BODY_FAULTS):
                body.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the stream over {self._name!r} is closed")


def _size_of_unsatisfied(error: ClientError) -> int | None:
    """Return the object's size from the response that rejects a range; None if it has no size."""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if match := _UNSATISFIED_RANGE.fullmatch(headers.get("content-range", "")):
        return int(match[1])
    size = error.response.get("Error", {}).get("ActualObjectSize")
    return int(size) if isinstance(size, str) and size.isdecimal() else None
