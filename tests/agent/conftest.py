"""Fixtures of the agent's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent.process import new_loop
from core.clock import SystemClock
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.running_agents import Agents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Tests use the event loop of an agent's process."""
    return "asyncio", {"loop_factory": new_loop}


@pytest.fixture
def clock() -> Clock:
    """Agents use real time. No test depends on how much of it passes."""
    return SystemClock()


@pytest.fixture
def store(tmp_path: Path, ids: Ids) -> Iterator[FaultyStore]:
    """A local store with faults on demand. It holds open directories until it is closed."""
    opened = FaultyStore(LocalStore(tmp_path / "objects", ids))
    yield opened
    opened.close()


@pytest.fixture
def agents(catalog: Catalog, store: FaultyStore, clock: Clock, ids: Ids) -> Agents:
    """A factory of agents."""
    return Agents(catalog, store, clock, ids)
