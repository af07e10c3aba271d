"""One store of each kind, so that a suite runs over both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.clock import ManualClock
from core.ids import SystemIds
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from object_store.interface import ObjectStore


@pytest.fixture
def clock() -> ManualClock:
    """Time that passes only when somebody waits, so that pauses between tries cost nothing."""
    return ManualClock()


@pytest.fixture(params=["local", "s3"])
def store_config(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    """Where to open a store that is empty."""
    if request.param == "local":
        return StoreConfig(str(tmp_path / "made" / "on demand"))
    config: StoreConfig = request.getfixturevalue("s3_config")
    return config


@pytest.fixture
def store(store_config: StoreConfig, clock: ManualClock) -> Iterator[ObjectStore]:
    """An empty store of each kind."""
    store = open_store(store_config, clock, SystemIds(clock))
    yield store
    store.close()
