"""An object store whose requests take longer: the latency of a remote store on a local directory."""

from __future__ import annotations

from time import sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_store.accounting import Purpose
    from object_store.interface import Buffer, ObjectStore


class SlowStore:
    """A store that waits before each PUT and ranged GET, in the thread of the caller.

    Everything else is the store's own.
    """

    def __init__(self, store: ObjectStore, *, put_delay_ms: int, get_delay_ms: int) -> None:
        self._store = store
        self._put_seconds = put_delay_ms / 1000
        self._get_seconds = get_delay_ms / 1000

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # any attribute of the store
        return getattr(self._store, name)

    def put(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write an object after the delay."""
        sleep(self._put_seconds)
        return self._store.put(name, body, purpose=purpose)

    def create(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write a new object after the delay."""
        sleep(self._put_seconds)
        return self._store.create(name, body, purpose=purpose)

    def read_range(self, name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        """Read a range after the delay."""
        sleep(self._get_seconds)
        return self._store.read_range(name, position, length, purpose=purpose)
