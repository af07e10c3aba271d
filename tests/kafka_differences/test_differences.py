"""The same requests to a real Kafka broker and to agents: each difference is a documented one.

Each family of steps runs on Kafka, on an agent with topics in the object store, and some run on an agent
with local topics. A difference that `differences.py` does not list fails the test, and a listed one that
no longer occurs fails it, too.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.local_tier_settings import LocalTierSettings
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
from tests.kafka_differences.differences import DIFFERENCES, DIFFERENCES_OF_LOCAL_TOPICS
from tests.kafka_differences.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.fixtures.postgres import PostgresForTests
    from tests.kafka_differences.differences import Difference

    Family = Callable[[Session], None]
    Run = Callable[[Family], dict[str, object]]

pytestmark = pytest.mark.integration

_DOCS = Path(__file__).parents[2] / "docs"
_KAFKA_SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,  # an agent knows no other value
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
_GROUPS = GroupSettings(group_initial_rebalance_delay_ms=0, topics_refresh_ms=1)
_FAMILIES_OF_RECORDS = [
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
]
"""The families whose responses may depend on where the records of a topic are stored."""
_FAMILIES = [
    *_FAMILIES_OF_RECORDS,
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


def _name(family: Family) -> str:
    return f"{family.__module__.rpartition('.')[2]}.{family.__name__}"


@pytest.fixture(scope="module")
def in_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run a Kafka broker, and return a function that runs a family on it, once."""
    directory = tmp_path_factory.mktemp("kafka") / "logs"
    directory.mkdir()
    with kafka_broker(directory, settings=_KAFKA_SETTINGS) as broker:
        host, _, port = broker.address.rpartition(":")
        yield cache(partial(_run, (host, int(port))))


@pytest.fixture(scope="module")
def in_agent(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run an agent with topics in the object store, and return a function that runs a family on it."""
    with _agent(postgres, tmp_path_factory.mktemp("agent")) as address:
        yield partial(_run, address)


@pytest.fixture(scope="module")
def in_local_topics(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run an agent with local topics, and return a function that runs a family on it."""
    directory = tmp_path_factory.mktemp("agent")
    local = LocalTierSettings(local_topics=".*")
    with _agent(postgres, directory, local_directories=(directory / "disk",), local_tier=local) as address:
        yield partial(_run, address)


@contextmanager
def _agent(postgres: PostgresForTests, directory: Path, **settings: object) -> Iterator[tuple[str, int]]:
    clock = SystemClock()
    ids = SystemIds(clock)
    url = postgres.create()
    with open_catalog(url, clock, ids, limits=PATIENT) as catalog:
        store = FaultyStore(LocalStore(directory / "objects", ids))
        agent = BrokerThread(catalog, store, clock, ids, {"groups": _GROUPS, **settings})
        agent.start()
        yield agent.host_and_port
        agent.stop()
        store.close()
    postgres.drop(url)


@pytest.mark.parametrize("family", _FAMILIES, ids=_name)
def test_each_difference_from_kafka_is_documented(family: Family, in_kafka: Run, in_agent: Run) -> None:
    """An agent responds as Kafka does, except where the documentation says otherwise."""
    assert _different(in_kafka(family), in_agent(family)) == _listed(DIFFERENCES, family)


@pytest.mark.parametrize("family", _FAMILIES_OF_RECORDS, ids=_name)
def test_each_difference_of_local_topics_is_documented(
    family: Family, in_kafka: Run, in_local_topics: Run
) -> None:
    """The same holds for topics on the disks of the agent."""
    listed = _listed(DIFFERENCES_OF_LOCAL_TOPICS, family)
    assert _different(in_kafka(family), in_local_topics(family)) == listed


def test_the_documentation_states_the_reason_of_each_difference() -> None:
    """Each reason is a sentence, or a row of a table, of its page."""
    for differences in (DIFFERENCES, DIFFERENCES_OF_LOCAL_TOPICS):
        assert differences.keys() <= {*_FAMILIES}
        for each in chain.from_iterable(differences.values()):
            assert each.reason in " ".join((_DOCS / each.page).read_text().split()), each


def _run(address: tuple[str, int], family: Family) -> dict[str, object]:
    with Wire(address) as wire, Wire(address) as second:
        session = Session(wire, second)
        session.find_coordinators()
        family(session)
        return session.seen


def _different(kafka: dict[str, object], agent: dict[str, object]) -> dict[str, tuple[object, object]]:
    """Return the responses to each step for which they differ."""
    assert kafka.keys() == agent.keys()
    return {step: (kafka[step], agent[step]) for step in kafka if kafka[step] != agent[step]}


def _listed(
    differences: Mapping[Family, Sequence[Difference]], family: Family
) -> dict[str, tuple[object, object]]:
    return {each.step: (each.kafka, each.agent) for each in differences.get(family, ())}
