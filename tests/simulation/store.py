"""An object store in memory behind a simulated network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from object_store.accounting import RequestCounts
from object_store.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectsNotDeletedError,
    ObjectTooShortError,
    StoreUnavailableError,
)
from object_store.interface import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from object_store.accounting import Purpose
    from object_store.interface import Buffer
    from tests.simulation.faults import Network

T = TypeVar("T")


@dataclass
class Bucket:
    """The stored objects with their modification times, and unfinished uploads."""

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    unfinished: dict[int, tuple[str, int]] = field(default_factory=dict)
    uploads: int = 0


class SimulatedStore:
    """Connection of one process to the bucket; an `object_store.interface.ObjectStore`."""

    url = "memory:"

    def __init__(self, bucket: Bucket, network: Network, now_ms: Callable[[], int]) -> None:
        self.bucket = bucket
        self.counts = RequestCounts()
        self.network = network
        self.now_ms = now_ms

    def put(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        del purpose
        data = b"".join(bytes(part) for part in body)

        def write() -> int:
            self.bucket.objects[name] = (data, self.now_ms())
            return len(data)

        return self._request("put", write)

    def create(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        if name in self.bucket.objects:
            raise ObjectExistsError(f"{name} exists")
        return self.put(name, body, purpose=purpose)

    def read_range(self, name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        del purpose
        return self._request("get", lambda: bytearray(self._part(name, position, length)))

    def read_tail(self, name: str, length: int, *, purpose: Purpose) -> tuple[bytearray, int]:
        del purpose

        def read() -> tuple[bytearray, int]:
            data = self._get(name)
            return bytearray(data[max(0, len(data) - length) :]), len(data)

        return self._request("get", read)

    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> SimulatedStream:
        del purpose
        return SimulatedStream(self, name, position, end)

    def start_upload(self, name: str, *, purpose: Purpose) -> SimulatedUpload:
        del purpose
        return SimulatedUpload(self, name)

    def list(self, prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        del purpose
        found = sorted(name for name in self.bucket.objects if name.startswith(prefix))
        listed_until_ms = self.now_ms() - self.network.list_lag_ms()
        page = [
            ObjectInfo(name, len(self.bucket.objects[name][0]), self.bucket.objects[name][1])
            for name in self._request("list", lambda: found)
            if name in self.bucket.objects
        ]
        yield from (info for info in page if info.modified_ms <= listed_until_ms)

    def delete(self, names: Sequence[str], *, purpose: Purpose) -> None:
        del purpose

        def remove() -> None:
            for name in names:
                self.bucket.objects.pop(name, None)

        try:
            self._request("delete", remove)
        except StoreUnavailableError as error:
            raise ObjectsNotDeletedError("memory", dict.fromkeys(names, str(error))) from error

    def sweep_unfinished(
        self, before_ms: int, *, purpose: Purpose, may_abort: Callable[[str, int], bool] | None = None
    ) -> int:
        del purpose
        old = [
            number
            for number, (name, started_ms) in tuple(self.bucket.unfinished.items())
            if (may_abort(name, started_ms) if may_abort is not None else started_ms < before_ms)
        ]
        for number in old:
            self.bucket.unfinished.pop(number, None)
        return len(old)

    def check(self) -> None:
        """The store is always available."""

    def close(self) -> None:
        """Nothing to close."""

    def read_on(self, name: str, position: int, length: int) -> bytes:
        """Return the next bytes of a stream, at most `length`. The connection may break here, too."""
        return self._request("read", lambda: self._get(name)[position : position + length])

    def begin_upload(self, name: str) -> int:
        """Return the number of a new upload."""
        self.bucket.uploads += 1
        self.bucket.unfinished[self.bucket.uploads] = (name, self.now_ms())
        return self.bucket.uploads

    def finish_upload(self, number: int, name: str, body: bytes) -> int:
        """Create the object of an upload; a retry has no further effect."""

        def finish() -> int:
            if self.bucket.unfinished.pop(number, None) is not None:
                self.bucket.objects[name] = (body, self.now_ms())
            elif name not in self.bucket.objects:
                raise StoreUnavailableError(f"the upload of {name} is gone")
            return len(body)

        return self._request("complete", finish)

    def _request(self, kind: str, action: Callable[[], T]) -> T:
        return self.network.call(f"store.{kind}", action, StoreUnavailableError)

    def _get(self, name: str) -> bytes:
        if name not in self.bucket.objects:
            raise ObjectNotFoundError(f"object {name} does not exist")
        return self.bucket.objects[name][0]

    def _part(self, name: str, position: int, length: int) -> bytes:
        data = self._get(name)
        if position + length > len(data):
            raise ObjectTooShortError(f"{name} has {len(data)} bytes")
        return data[position : position + length]


class SimulatedStream:
    """An `object_store.interface.ForwardStream`."""

    resumes = 0

    def __init__(self, store: SimulatedStore, name: str, position: int, end: int | None) -> None:
        self._store = store
        self._name = name
        self._position = position
        self._end = end

    def readinto(self, target: memoryview) -> int:
        length = len(target) if self._end is None else min(len(target), self._end - self._position)
        data = self._store.read_on(self._name, self._position, length)
        target[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Nothing to close."""


class SimulatedUpload:
    """An `object_store.interface.Upload`."""

    def __init__(self, store: SimulatedStore, name: str) -> None:
        self._store = store
        self._name = name
        self._parts = bytearray()
        self._number = store.begin_upload(name)

    def write(self, data: Buffer) -> None:
        self._parts += data

    def complete(self) -> int:
        return self._store.finish_upload(self._number, self._name, bytes(self._parts))

    def abort(self) -> None:
        self._store.bucket.unfinished.pop(self._number, None)
