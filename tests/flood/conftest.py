"""One flooded agent for the tests of each module: it must survive all of them in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from object_store.open import StoreConfig
from tests.flood.flooded_agent import FloodedAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import PostgresForTests


@pytest.fixture(scope="module")
def flooded(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FloodedAgent]:
    """Run an agent with small budgets."""
    url = postgres.create()
    store = StoreConfig(url=str(tmp_path_factory.mktemp("objects")))
    with FloodedAgent(url, store) as agent:
        yield agent
    postgres.drop(url)
