"""One agent with an authorizer for the tests of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.kafka.authorization.principals import authenticate_by_client_id
from tests.agent.kafka.brokers import BrokerThread
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import PostgresForTests


@pytest.fixture(scope="module")
def secured(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """Provide an agent whose super user is `admin`; client ids are principals."""
    clock = SystemClock()
    ids = SystemIds(clock)
    url = postgres.create()
    store = FaultyStore(LocalStore(tmp_path_factory.mktemp("objects"), ids))
    settings = {"authorizer_enable": True, "super_users": "User:admin", "acl_poll_ms": 200}
    with pytest.MonkeyPatch.context() as patch, open_catalog(url, clock, ids, limits=PATIENT) as catalog:
        authenticate_by_client_id(patch)
        broker = BrokerThread(catalog, store, clock, ids, settings)
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()
    postgres.drop(url)
