"""Fixtures of the tests with real clients."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.real_clients.agents import Agents, two_agents
from tests.real_clients.client_driver import CLIENTS, Driver
from tests.real_clients.sasl_agent import SaslAgent, running_sasl_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.postgres import PostgresForTests


@pytest.fixture(scope="package")
def agents(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Two agents for all tests of the package."""
    with two_agents(postgres, tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(scope="package")
def sasl_agent(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslAgent]:
    """Provide an agent whose sessions end after 1.5 s, so that clients log in again."""
    directory = tmp_path_factory.mktemp("sasl")
    with running_sasl_agent(postgres, directory, max_reauth_ms=1_500) as running:
        yield running


@pytest.fixture
def new_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Driver]]:
    """Starts drivers that are killed at the end of the test."""
    with ExitStack() as stack:
        yield lambda client: stack.enter_context(Driver(client, tmp_path_factory.mktemp("driver")))


@pytest.fixture(scope="package")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Driver]]:
    """One driver for each client, started at its first use, and again after a request without a response."""
    started: dict[str, Driver] = {}
    with ExitStack() as stack:

        def driver(client: str) -> Driver:
            if client not in started or not started[client].is_in_step:
                started[client] = stack.enter_context(Driver(client, tmp_path_factory.mktemp("driver")))
            return started[client]

        yield driver


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, drivers: Callable[[str], Driver]) -> Driver:
    """Driver of one client. The test runs for each client."""
    return drivers(request.param)
