"""Garbage collection deletes only what the primary confirms in a transaction that writes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from catalog.database.limits import DatabaseLimits
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import ManualClock
from core.ids import SeededIds
from maintenance.garbage_collection import collect_garbage
from maintenance.settings import MaintenanceSettings
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.local.store import LocalStore
from object_store.names import HASHED_PREFIX, ingestion_name
from tests.fixtures.postgres import PATIENT
from tests.planner.system import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from tests.fixtures.postgres_pair import PostgresPair

pytestmark = pytest.mark.integration
_SETTINGS = MaintenanceSettings(grace_ms=1000, session_silence_ms=3_600_000)
_DAYS = 10 * 86_400


@pytest.fixture
def start_system(tmp_path: Path) -> Iterator[Callable[..., System]]:
    """Start a system whose catalog is at an address of the pair."""
    opened: list[Catalog] = []

    def start(url: str, limits: DatabaseLimits = PATIENT) -> System:
        clock = ManualClock()
        ids = SeededIds(len(opened), clock)
        catalog = open_catalog(url, clock, ids, limits=limits)
        opened.append(catalog)
        store = LocalStore(tmp_path / "store", ids)
        verify_binding(store, catalog.store_binding, ids)
        return System.start(catalog, store, clock, ids)

    yield start
    for each in opened:
        each.close()


def _leave_garbage(system: System) -> tuple[str, str, str]:
    """Return the names of a live file, of a dead file and of an orphan, all of a session that ended."""
    keys = [PartitionId(system.topic(name).topic_id, 0) for name in ("kept", "deleted")]
    live, dead = (system.produce({key: [(b"k", b"v")]}).object_name for key in keys)
    orphan = ingestion_name(system.session_id, system.ids.new_uuid())
    system.put(orphan, [b"never committed"])
    system.catalog.topics.delete("deleted")
    while system.catalog.garbage.remove_deleted():
        pass
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(_DAYS)
    return live, dead, orphan


def _objects(system: System) -> set[str]:
    return {each.name for each in system.store.list(HASHED_PREFIX, purpose=Purpose.GC)}


def _collect(system: System) -> None:
    collect_garbage(system.catalog, system.store, system.clock, _SETTINGS)


def test_a_lagging_standby_that_is_listed_first_does_not_decide(
    postgres_pair: PostgresPair, start_system: Callable[..., System]
) -> None:
    """On the standby, the session has ended and its last file is not committed."""
    pair = postgres_pair
    system = start_system(pair.primary.url)
    key = PartitionId(system.topic("t").topic_id, 0)
    pair.wait_for_standby()
    pair.pause_replay()
    live = system.produce({key: [(b"k", b"v")]}).object_name
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(_DAYS)
    with closing(open_catalog(pair.url_with_standby_first, system.clock, system.ids)) as catalog:
        collect_garbage(catalog, system.store, system.clock, _SETTINGS)
    assert _objects(system) == {live}


def test_a_server_that_became_read_only_confirms_nothing(
    postgres_pair: PostgresPair, start_system: Callable[..., System]
) -> None:
    """Its connections stay open, and are discarded: they do not even serve the reads."""
    system = start_system(postgres_pair.primary.url)
    live, dead, orphan = _leave_garbage(system)
    postgres_pair.primary.set("default_transaction_read_only", "on")
    with pytest.raises(CatalogUnavailableError):
        _collect(system)
    assert _objects(system) == {live, dead, orphan}
    postgres_pair.primary.set("default_transaction_read_only", "off")
    _collect(system)
    assert _objects(system) == {live}


def test_an_old_primary_without_its_synchronous_standby_confirms_nothing(
    postgres_pair: PostgresPair, start_system: Callable[..., System]
) -> None:
    """The standby was promoted, and the old primary is isolated but runs: it cannot commit a confirmation."""
    pair = postgres_pair
    pair.set_synchronous()
    limits = DatabaseLimits(response_seconds=1, lock_seconds=2, retry_seconds=0)
    system = start_system(pair.primary.url, limits)
    names = _leave_garbage(system)
    pair.standby.promote()
    for _ in range(2):
        with pytest.raises(CatalogUnavailableError):
            _collect(system)
        assert _objects(system) == set(names)
