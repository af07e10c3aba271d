"""The interface of object stores: S3, or a local directory.

Every call names its purpose and is counted by kind and purpose. All calls block; the agent makes them in a
bounded pool. Names are relative to the store's root and come from `object_store.names` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from object_store.accounting import Purpose, RequestCounts

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A listed object; `modified_ms` is by the store's clock."""

    name: str
    size: int
    modified_ms: int


def check_range(name: str, position: int, end: int | None) -> None:
    """Raise InvalidInputError unless [position, end) is a range that can be read from `name`."""
    if position < 0:
        raise InvalidInputError(f"position {position} of {name!r} is negative")
    if end is not None and end <= position:
        raise InvalidInputError(f"{name!r} has no bytes between byte {position} and byte {end}")


class ForwardStream(Protocol):
    """Stream that reads an object once, from a position to another position or to its end.

    It costs one GET, sent at the first read. A stream that breaks is resumed with a ranged GET, a bounded
    number of times; `resumes` counts them.
    """

    @property
    def resumes(self) -> int:
        """Number of times that the stream was resumed."""
        ...

    def readinto(self, target: memoryview) -> int:
        """Fill up to len(target) bytes; return 0 only at the end of the range, or for an empty target."""
        ...

    def close(self) -> None:
        """Close the connection; reading afterwards is an error."""
        ...


class Upload(Protocol):
    """A large object written in order; invisible before `complete`."""

    def write(self, data: Buffer) -> None:
        """Take bytes, and perhaps send a part. The caller may reuse `data` afterwards."""
        ...

    def complete(self) -> int:
        """Make the object visible and durable; return its size."""
        ...

    def abort(self) -> None:
        """Drop what was sent. May be called at any time and repeatedly; does nothing after `complete`."""
        ...


class ObjectStore(Protocol):
    """Objects by name. Implementations are thread-safe.

    Every call may raise StoreUnavailableError (wait and repeat), StoreAccessError (credentials, bucket or
    permissions are wrong) and InvalidInputError (not a name, see `names.check_name`).
    """

    @property
    def url(self) -> str:
        """Location of the objects, without secrets."""
        ...

    @property
    def counts(self) -> RequestCounts:
        """Counts of every request that this store sent, by kind and purpose."""
        ...

    def put(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write the concatenation of `body` with one PUT and return its size; durable on return.

        Replaces an existing object; readers see the old or the new one, never a mixture.
        """
        ...

    def create(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write as `put` does, but raise ObjectExistsError if the name is taken; one of several racers wins.

        After StoreUnavailableError it is unknown whether this call took the name.
        """
        ...

    def read_range(self, name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        """Return exactly `length` bytes from `position`, with one GET.

        Raise ObjectTooShortError if the object ends before, ObjectNotFoundError if it does not exist.
        """
        ...

    def read_tail(self, name: str, length: int, *, purpose: Purpose) -> tuple[bytearray, int]:
        """Return the last min(length, size) bytes, with one GET, and the object's size."""
        ...

    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> ForwardStream:
        """Return a stream from `position` up to byte `end` (None: the object's end).

        No request is sent before the first read, which raises ObjectNotFoundError, or ObjectTooShortError if
        the object ends before `position` or `end`.
        """
        ...

    def start_upload(self, name: str, *, purpose: Purpose) -> Upload:
        """Start a large object."""
        ...

    def list(self, prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        """Yield objects whose name starts with `prefix`, in name order, page by page."""
        ...

    def delete(self, names: Sequence[str], *, purpose: Purpose) -> None:
        """Delete objects in batches; names that do not exist are not an error.

        Try all of them before raising ObjectsNotDeletedError for those that still exist.
        """
        ...

    def sweep_unfinished(
        self, before_ms: int, *, purpose: Purpose, may_abort: Callable[[str, int], bool] | None = None
    ) -> int:
        """Drop uploads that were started before `before_ms` and never completed; return their number.

        If the store knows the name of an upload's object, `may_abort(name, started_ms)` decides instead of
        the age. An upload that is still running is lost (UploadLostError), so allow more time than any upload
        takes. Try all of them before raising ObjectsNotDeletedError for uploads that the server refuses to
        abort.
        """
        ...

    def check(self) -> None:
        """Verify that the store can be reached and used; raise StoreAccessError with a remedy otherwise.

        A missing local directory is created; a missing bucket is not.
        """
        ...

    def close(self) -> None:
        """Close all connections; later calls are errors."""
        ...
