"""The one small interface behind which objects live: S3, or a local directory.

Every call names its purpose, and is counted by kind and purpose: the counts are part of the product.
All calls block; the agent makes them in a bounded pool. Names are relative to the store's root and come
from `object_store.names` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from object_store.accounting import RequestCounts

Buffer = bytes | bytearray | memoryview


class Purpose(StrEnum):
    """What a request is for, in metrics and reports."""

    INGEST = "ingest"
    FETCH = "fetch"
    COMPACTION = "compaction"
    GC = "gc"
    FSCK = "fsck"
    CHECK = "check"  # may this store be used as it is configured?


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object; `modified_ms` is the store's own clock."""

    name: str
    size: int
    modified_ms: int


def check_stretch(name: str, position: int, end: int | None) -> None:
    """Raise InvalidInputError unless one can read `name` from byte `position` up to byte `end`."""
    if position < 0:
        raise InvalidInputError(f"position {position} of {name!r} is negative")
    if end is not None and end <= position:
        raise InvalidInputError(f"nothing of {name!r} lies between byte {position} and byte {end}")


class ForwardStream(Protocol):
    """An object read once from some position to another one, or to its end.

    It costs one GET, made at the first read. A stream that breaks is resumed with a ranged GET from where
    it stopped, a bounded number of times; `resumes` counts those apart.
    """

    @property
    def resumes(self) -> int:
        """How often the stream broke and was taken up again."""
        ...

    def readinto(self, target: memoryview) -> int:
        """Fill up to len(target) bytes; 0 only at the end of what is wanted (or for an empty target)."""
        ...

    def close(self) -> None:
        """Let go of the connection; reading afterwards is an error."""
        ...


class Upload(Protocol):
    """A large object written in order. Nothing is visible before `complete`."""

    def write(self, data: Buffer) -> None:
        """Take bytes; may send a part. The caller may reuse `data` afterwards."""
        ...

    def complete(self) -> int:
        """Make the object visible and durable; returns its size."""
        ...

    def abort(self) -> None:
        """Drop what was sent; safe to call at any time, also twice and after `complete` (then nothing)."""
        ...


class ObjectStore(Protocol):
    """Objects by name. Implementations are safe to use from many threads.

    Every call may raise `StoreUnavailableError` (wait and call again), `StoreAccessError` (credentials,
    bucket or permissions are wrong) and `InvalidInputError` (the name is none, see `names.check_name`).
    """

    @property
    def url(self) -> str:
        """Where the objects live, without secrets."""
        ...

    @property
    def counts(self) -> RequestCounts:
        """Every request that this store object made, by kind and purpose."""
        ...

    def put(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write the concatenation of `body` in one PUT; durable on return. Returns the size.

        Replaces what is there; readers see the old or the new object, never a mixture.
        """
        ...

    def create(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """As `put`, but raises `ObjectExistsError` when the name is taken; one of several racers wins.

        After `StoreUnavailableError` it is unknown whether the name was taken by this call.
        """
        ...

    def read_range(self, name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        """Exactly `length` bytes from `position` in one GET.

        Raises `ObjectTooShortError` when the object ends before, `ObjectNotFoundError` when there is none.
        """
        ...

    def read_tail(self, name: str, length: int, *, purpose: Purpose) -> tuple[bytearray, int]:
        """The last min(length, size) bytes in one GET, and the object's size."""
        ...

    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> ForwardStream:
        """Read forward from `position` up to byte `end` (None: all).

        No request is made before the first read. That raises `ObjectNotFoundError`, or `ObjectTooShortError`
        when the object ends before `position` or `end`.
        """
        ...

    def start_upload(self, name: str, *, purpose: Purpose) -> Upload:
        """Begin a large object."""
        ...

    def list(self, prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        """Objects whose name starts with `prefix`, in name order, page by page."""
        ...

    def delete(self, names: Sequence[str], *, purpose: Purpose) -> None:
        """Remove objects in batches; names that do not exist are no error.

        Goes through all of them before it raises `ObjectsNotDeletedError` for those that are still there.
        """
        ...

    def sweep_unfinished(
        self, before_ms: int, *, purpose: Purpose, may_go: Callable[[str, int], bool] | None = None
    ) -> int:
        """Drop what crashed writers left invisible: begun before `before_ms` and never completed.

        Where the store knows what an upload is to become, `may_go(name, begun_ms)` decides instead, if given.
        Returns how many. An upload that is still alive and that old is lost (`UploadLostError` tells it), so
        leave more time than any upload takes.
        """
        ...

    def check(self) -> None:
        """Make sure that the store can be reached and used; raises `StoreAccessError` with a remedy if not.

        A local directory is made when it is missing; a bucket is not.
        """
        ...

    def close(self) -> None:
        """Let go of connections; calls afterwards are errors."""
        ...
