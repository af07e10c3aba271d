"""Commits rebuilt from objects equal those of the agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from core.clock import ManualClock
from core.errors import CorruptDataError
from core.ids import SeededIds
from maintenance.readopt import read_file_commit
from object_store.accounting import Purpose
from object_store.errors import ObjectNotFoundError
from object_store.local.store import LocalStore
from tests.agent.write.test_ingestion_file import APPENDS, sealed_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """Return a store for all examples."""
    return LocalStore(tmp_path_factory.mktemp("objects"), SeededIds(1, ManualClock()))


@given(APPENDS)
def test_the_commit_follows_from_the_object(
    store: LocalStore, appends: list[tuple[int, int, int, list[tuple[int, int]]]]
) -> None:
    """Sections, positions, runs, producers, counts and timestamps are those that the agent sent."""
    sealed, _ = sealed_file(appends)
    store.put(sealed.object_name, sealed.body, purpose=Purpose.INGEST)
    assert read_file_commit(store, sealed.object_name) == sealed.commit


def test_a_damaged_or_missing_object_is_an_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, SeededIds(1, ManualClock()))
    sealed, _ = sealed_file([(1, 0, 5, [(3, 20)])])
    with pytest.raises(ObjectNotFoundError):
        read_file_commit(store, sealed.object_name)
    data = bytearray(b"".join(sealed.body))
    data[len(data) // 2] ^= 1
    store.put(sealed.object_name, [data], purpose=Purpose.INGEST)
    with pytest.raises(CorruptDataError):
        read_file_commit(store, sealed.object_name)
