"""The same requests to a real Kafka broker and to an agent: each difference is a documented one.

Each family of steps runs once on both. A difference that `differences.py` does not list fails the test, and a
listed one that no longer occurs fails it, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.wire import Wire
from tests.fixtures.kafka_broker import kafka_broker
from tests.fixtures.postgres import PATIENT
from tests.kafka_differences import (
    administration,
    classic_groups,
    consumer_groups,
    fetch_sessions,
    offsets,
    records,
    transactions,
)
from tests.kafka_differences.differences import DIFFERENCES
from tests.kafka_differences.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.postgres import PostgresForTests

pytestmark = pytest.mark.integration

_DOCS = Path(__file__).parents[2] / "docs"
_KAFKA_SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,  # an agent knows no other value
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
_AGENT_SETTINGS = {"groups": GroupSettings(group_initial_rebalance_delay_ms=0, topics_refresh_ms=1)}
_FAMILIES = [
    transactions.before_a_transaction,
    transactions.without_kip_890,
    transactions.offsets_in_transactions,
    transactions.fenced_producers,
    transactions.with_kip_890,
    transactions.mixed_batches,
    transactions.producer_ids,
    records.validation,
    records.look_ups,
    records.deletions,
    fetch_sessions.fetch_sessions,
    offsets.offsets_of_groups,
    classic_groups.dynamic_members,
    classic_groups.static_members,
    classic_groups.two_members,
    consumer_groups.invalid_heartbeats,
    consumer_groups.dynamic_members,
    consumer_groups.static_members,
    consumer_groups.patterns,
    consumer_groups.migration,
    administration.topics,
    administration.settings,
    administration.quotas,
]


def _name(family: Callable[[Session], None]) -> str:
    return f"{family.__module__.rpartition('.')[2]}.{family.__name__}"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Run a Kafka broker, and return its address."""
    directory = tmp_path_factory.mktemp("kafka") / "logs"
    directory.mkdir()
    with kafka_broker(directory, settings=_KAFKA_SETTINGS) as broker:
        host, _, port = broker.address.rpartition(":")
        yield host, int(port)


@pytest.fixture(scope="module")
def agent(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Run an agent, and return its address."""
    clock = SystemClock()
    ids = SystemIds(clock)
    url = postgres.create()
    with open_catalog(url, clock, ids, limits=PATIENT) as catalog:
        store = FaultyStore(LocalStore(tmp_path_factory.mktemp("objects"), ids))
        thread = BrokerThread(catalog, store, clock, ids, _AGENT_SETTINGS)
        thread.start()
        yield thread.host_and_port
        thread.stop()
        store.close()
    postgres.drop(url)


@pytest.mark.parametrize("family", _FAMILIES, ids=_name)
def test_each_difference_from_kafka_is_documented(
    family: Callable[[Session], None], kafka: tuple[str, int], agent: tuple[str, int]
) -> None:
    """An agent responds as Kafka does, except where the documentation says otherwise."""
    in_kafka, in_agent = _run(family, kafka), _run(family, agent)
    found = {step: (in_kafka[step], in_agent[step]) for step in in_kafka if in_kafka[step] != in_agent[step]}
    assert found == {each.step: (each.kafka, each.agent) for each in DIFFERENCES.get(family, ())}


def _run(family: Callable[[Session], None], address: tuple[str, int]) -> dict[str, object]:
    with Wire(address) as wire, Wire(address) as second:
        session = Session(wire, second)
        session.find_coordinators()
        family(session)
        return session.seen


def test_the_documentation_states_the_reason_of_each_difference() -> None:
    """Each reason is a sentence, or a row of a table, of its page."""
    for each in (difference for listed in DIFFERENCES.values() for difference in listed):
        assert each.reason in " ".join((_DOCS / each.page).read_text().split()), each
