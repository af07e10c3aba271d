"""Fixtures of the catalog's tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.catalog.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.open import Catalog
    from core.ids import Ids


@pytest.fixture
def scene(catalog: Catalog, ids: Ids) -> Scene:
    """Return an empty catalog with a session."""
    return Scene.set_up(catalog, ids)


@pytest.fixture
def breaking_connections(catalog: Catalog, catalog_url: str) -> Iterator[Callable[[], None]]:
    """Terminate a random connection to the catalog every 20 ms; return a function that ends this."""
    del catalog
    stop = threading.Event()

    def break_some() -> None:
        with psycopg.connect(catalog_url, autocommit=True) as connection:
            while not stop.wait(0.02):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    " ORDER BY random() LIMIT 1"
                )

    thread = threading.Thread(target=break_some)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    yield end
    end()
