"""Fixtures of the sharded catalog's tests: two databases of the test server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.prototypes.sharded_catalog.cluster import Cluster, empty

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.postgres import PostgresForTests


@pytest.fixture(scope="package")
def databases(postgres: PostgresForTests) -> Iterator[list[str]]:
    """Provide the addresses of two catalogs, which all tests here use one by one."""
    made = [postgres.create() for _ in range(2)]
    yield made
    for url in made:
        postgres.drop(url)


@pytest.fixture
def urls(databases: list[str]) -> list[str]:
    """Provide the addresses of two empty catalogs."""
    for url in databases:
        empty(url)
    return databases


@pytest.fixture
def cluster(urls: list[str], tmp_path: Path) -> Iterator[Cluster]:
    """Provide two shards with a topic each."""
    opened = Cluster(urls, tmp_path / "objects")
    yield opened
    opened.close()
