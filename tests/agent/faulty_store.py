"""An object store with faults on demand: it waits, fails, or succeeds and then reports a failure."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from object_store.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from object_store.accounting import Purpose, RequestCounts
    from object_store.interface import Buffer, ForwardStream, ObjectInfo, ObjectStore, Upload


class FaultyStore:
    """Wrapper of a real store. Faults apply to PUTs in the order of their calls.

    `fail_puts` fails that many PUTs without effect. `lose_responses` executes that many and then fails. PUTs
    wait while `gate` is clear, and `puts_begun` counts them. `before_read` runs once, before a range is read.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.gate = threading.Event()
        self.gate.set()
        self.fail_puts = 0
        self.lose_responses = 0
        self.puts_begun = 0
        self.put_names: list[str] = []
        self.before_read: Callable[[], None] | None = None

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def counts(self) -> RequestCounts:
        return self._inner.counts

    def put(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        self.puts_begun += 1
        self.gate.wait()
        if self.fail_puts > 0:
            self.fail_puts -= 1
            raise StoreUnavailableError("the store is away")
        size = self._inner.put(name, body, purpose=purpose)
        self.put_names.append(name)
        if self.lose_responses > 0:
            self.lose_responses -= 1
            raise StoreUnavailableError("the response was lost")
        return size

    def create(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        return self._inner.create(name, body, purpose=purpose)

    def read_range(self, name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        hook, self.before_read = self.before_read, None
        if hook is not None:
            hook()
        return self._inner.read_range(name, position, length, purpose=purpose)

    def read_tail(self, name: str, length: int, *, purpose: Purpose) -> tuple[bytearray, int]:
        return self._inner.read_tail(name, length, purpose=purpose)

    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> ForwardStream:
        return self._inner.open_stream(name, position, end, purpose=purpose)

    def start_upload(self, name: str, *, purpose: Purpose) -> Upload:
        return self._inner.start_upload(name, purpose=purpose)

    def list(self, prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, purpose=purpose)

    def delete(self, names: Sequence[str], *, purpose: Purpose) -> None:
        self._inner.delete(names, purpose=purpose)

    def sweep_unfinished(
        self, before_ms: int, *, purpose: Purpose, may_abort: Callable[[str, int], bool] | None = None
    ) -> int:
        return self._inner.sweep_unfinished(before_ms, purpose=purpose, may_abort=may_abort)

    def check(self) -> None:
        self._inner.check()

    def close(self) -> None:
        self._inner.close()
