"""A small system on a real catalog and a local store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.clock import ManualClock
from object_store.local.store import LocalStore
from tests.planner.system import System

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


@pytest.fixture
def store(tmp_path: Path, ids: Ids) -> Iterator[LocalStore]:
    opened = LocalStore(tmp_path / "objects", ids)
    yield opened
    opened.close()


@pytest.fixture
def other_store(tmp_path: Path, ids: Ids) -> Iterator[LocalStore]:
    """An empty store that does not belong to the system."""
    opened = LocalStore(tmp_path / "other", ids)
    yield opened
    opened.close()


@pytest.fixture
def system(catalog: Catalog, store: LocalStore, clock: Clock, ids: Ids) -> System:
    assert isinstance(clock, ManualClock)
    return System.start(catalog, store, clock, ids)
