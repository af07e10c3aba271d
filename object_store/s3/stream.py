"""Reading an S3 object forward, over as many connections as it takes.

The first answer fixes what is read: its entity tag and its end. A connection that breaks, or that the server
cuts because it was idle, is replaced by a GET of the remaining range, whose answer must carry the same tag.
The tag is compared here and not sent as `If-Match`: an answer's body belongs to its tag, so both are equally
sound, and some servers (Ceph's gateway) refuse a quoted tag in the header while others require the quotes.
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
from object_store.s3.client import MIB
from object_store.s3.errors import BODY_FAULTS, error_code

if TYPE_CHECKING:
    from typing import Final

    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client

    from object_store.interface import Purpose
    from object_store.s3.client import S3Calls

# What one read of the socket loses when the connection breaks in it, and thus is fetched again
_READ_AT_ONCE: Final = MIB
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_UNSATISFIED_RANGE: Final = re.compile(r"bytes \*/(\d+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The bytes from `start` up to `end` (None: all), or the last `suffix` bytes."""

    start: int = 0
    end: int | None = None
    suffix: int = 0

    def header(self) -> str | None:
        """The value of `Range`; None when the whole object is wanted."""
        if self.suffix:
            return f"bytes=-{self.suffix}"
        if self.end is not None:
            return f"bytes={self.start}-{self.end - 1}"
        return f"bytes={self.start}-" if self.start else None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a GET promises to deliver."""

    body: StreamingBody | None  # None: nothing lies in that range
    start: int
    end: int
    size: int
    tag: str | None


class S3Stream:
    """A `ForwardStream` over one object or a range of it; for one thread at a time."""

    def __init__(self, calls: S3Calls, key: str, name: str, wanted: Wanted, purpose: Purpose) -> None:
        self._calls = calls
        self._key = key
        self._name = name
        self._wanted = wanted
        self._purpose = purpose
        self._first: _Answer | None = None
        self._body: StreamingBody | None = None
        self._position = wanted.start
        self._resumes = 0
        self._breaks_in_a_row = 0
        self._closed = False

    @property
    def resumes(self) -> int:
        """How often the stream broke and was taken up again."""
        return self._resumes

    def readinto(self, target: memoryview) -> int:
        """Fill up to len(target) bytes; 0 only at the end of what is wanted."""
        self._require_open()
        if not len(target):
            return 0
        first = self.start()
        while self._position < first.end:
            count = self._read(target[: min(len(target), _READ_AT_ONCE, first.end - self._position)])
            if count:
                return count
        return 0

    def start(self) -> _Answer:
        """Make the first GET unless it was made; tells where the bytes lie and how large the object is."""
        if self._first is None:
            self._first = self._get(self._wanted, None)
            self._body = self._first.body
            self._position = self._first.start
        return self._first

    def close(self) -> None:
        """Let go of the connection."""
        self._closed = True
        self._drop()

    def _read(self, target: memoryview) -> int:
        """One read of the socket; 0 when the connection broke."""
        if self._body is None:
            self._resume()
        assert self._body is not None
        try:
            # The stub asks for a file, by mistake: it is the buffer to fill.
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
        """Count a broken connection, and give up when there were too many."""
        self._drop()
        assert self._first is not None
        self._calls.counts.record(RequestKind.GET, self._purpose, errors=1)
        self._breaks_in_a_row += 1
        limits = self._calls.limits
        allowed = limits.resumes + (self._position - self._first.start) // limits.bytes_per_resume
        if self._resumes >= allowed or self._breaks_in_a_row >= limits.attempts:
            raise StoreUnavailableError(
                f"reading {self._name!r} broke off at byte {self._position} of {self._first.size} in "
                f"{self._calls.place}, and {self._resumes} resumes did not help: {fault or 'the body is cut'}"
            ) from fault

    def _resume(self) -> None:
        first = self._first
        assert first is not None
        self._calls.pause(self._breaks_in_a_row)
        self._resumes += 1
        self._calls.counts.record(RequestKind.GET, self._purpose, resumes=1)
        self._body = self._get(Wanted(self._position, first.end), first).body

    def _get(self, wanted: Wanted, first: _Answer | None) -> _Answer:
        header = wanted.header()

        def request(client: S3Client) -> _Answer:
            bucket = self._calls.bucket
            response = (
                client.get_object(Bucket=bucket, Key=self._key)
                if header is None
                else client.get_object(Bucket=bucket, Key=self._key, Range=header)
            )
            body, length, tag = response["Body"], response["ContentLength"], response.get("ETag")
            if match := _CONTENT_RANGE.fullmatch(response.get("ContentRange", "")):
                start, last, size = map(int, match.groups())
                return _Answer(body, start, last + 1, size, tag)
            return _Answer(body, 0, length, length, tag)

        def on_fault(error: Exception) -> _Answer | None:
            if isinstance(error, ClientError) and error_code(error) in {"InvalidRange", "416"}:
                size = _size_of_unsatisfied(error)
                size = self._ask_size() if size is None else size
                return _Answer(None, size, size, size, None)
            return None

        answer = self._calls.send(f"reading {self._name!r}", self._purpose, request, on_fault=on_fault)
        try:
            return self._checked(answer, wanted, first)
        except BaseException:
            if answer.body is not None:
                answer.body.close()
            raise

    def _ask_size(self) -> int:
        """The object's size, from a server that does not tell it when it refuses a range."""
        response = self._calls.send(
            f"asking for the size of {self._name!r}",
            self._purpose,
            lambda client: client.head_object(Bucket=self._calls.bucket, Key=self._key),
        )
        return response["ContentLength"]

    def _checked(self, answer: _Answer, wanted: Wanted, first: _Answer | None) -> _Answer:
        """Hold an answer against what was asked for, and against the first answer."""
        if first is not None and (answer.tag, answer.size) != (first.tag, first.size):
            raise ObjectChangedError(f"{self._name!r} was replaced while it was read, in {self._calls.place}")
        if (wanted.end if wanted.end is not None else wanted.start) > answer.size:
            raise ObjectTooShortError(
                f"{self._name!r} in {self._calls.place} has {answer.size} bytes, but was to be read "
                f"from {wanted.start}" + (f" to {wanted.end}" if wanted.end is not None else "")
            )
        start = max(0, answer.size - wanted.suffix) if wanted.suffix else wanted.start
        end = wanted.end if wanted.end is not None else answer.size
        if answer.start != start or answer.end < end:
            raise StoreAccessError(
                f"asked for bytes {start} to {end} of {self._name!r}, {self._calls.place} "
                f"answered with {answer.start} to {answer.end}",
                remedy="use a server, and proxies before it, that know the Range header",
            )
        return _Answer(answer.body, start, end, answer.size, answer.tag)

    def _drop(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            with suppress(*BODY_FAULTS):
                body.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the stream over {self._name!r} is closed")


def _size_of_unsatisfied(error: ClientError) -> int | None:
    """The object's size, as the refusal of a range tells it; None when it does not."""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if match := _UNSATISFIED_RANGE.fullmatch(headers.get("content-range", "")):
        return int(match[1])
    size = error.response.get("Error", {}).get("ActualObjectSize")
    return int(size) if isinstance(size, str) and size.isdecimal() else None
