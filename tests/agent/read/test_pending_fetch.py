"""Fetches within the memory budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from agent.read.fetch_memory import FetchMemory
from agent.read.pending_fetch import fetch_within_budget
from agent.runtime.errors import BusyError

if TYPE_CHECKING:
    from agent.read.read_path import ReadPath

pytestmark = pytest.mark.anyio


class _BusyReadPath:
    """A read path whose pool of threads is full. It would never return to the event loop."""

    def __init__(self) -> None:
        self.budget = FetchMemory(2**20)
        self.fetches = 0

    async def fetch(self, *_: object, **__: object) -> None:
        self.fetches += 1
        assert self.fetches < 100
        raise BusyError("1000 calls of kind lookups are under way or waiting", remedy="retry later")


async def test_a_fetch_fails_if_a_pool_is_full_and_memory_is_free() -> None:
    """No release of memory would help, so it must not wait for one."""
    path = _BusyReadPath()
    with pytest.raises(BusyError):
        await fetch_within_budget(cast("ReadPath", path), [], max_bytes=2**20, max_wait_ms=60_000)
    assert path.fetches == 1
