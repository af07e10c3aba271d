"""Stores of each kind, so that one suite runs over all of them."""

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
    """A clock that advances only by waiting, so that pauses between attempts take no time."""
    return ManualClock()


@pytest.fixture(params=["local", "s3"])
def store_config(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    """The configuration of an empty store."""
    if request.param == "local":
        return StoreConfig(str(tmp_path / "created" / "on demand"))
    config: StoreConfig = request.getfixturevalue("s3_config")
    return config


@pytest.fixture
def store(store_config: StoreConfig, clock: ManualClock) -> Iterator[ObjectStore]:
    """An empty store of each kind."""
    store = open_store(store_config, clock, SystemIds(clock))
    yield store
    store.close()
