"""What the tests with real clients share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka.real_clients.agents import Agents, two_agents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import PostgresForTests


@pytest.fixture(scope="module")
def agents(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Two agents for all tests of a module."""
    with two_agents(postgres, tmp_path_factory.mktemp("store")) as running:
        yield running
