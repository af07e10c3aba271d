"""Requests about thousands of topics: their catalog queries, and the result of each item."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from agent.kafka.apis.groups import offset_fetch
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.runtime.cooperative_yield import STEPS_PER_YIELD
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.wire import Wire
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.fixtures.postgres import PostgresForTests

_MANY = 2_000
_NAMES = [f"granite-{number:04}" for number in range(_MANY)]


@pytest.fixture(scope="module")
def broker(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """One agent for all tests, with pools that queue four calls."""
    clock = SystemClock()
    ids = SystemIds(clock)
    address = postgres.create(empty=False)
    with open_catalog(address, clock, ids, limits=PATIENT) as catalog:
        store = FaultyStore(LocalStore(tmp_path_factory.mktemp("objects"), ids))
        broker = BrokerThread(catalog, store, clock, ids, {"max_waiting_calls": 4})
        broker.start()
        yield broker
        broker.stop()
    postgres.drop(address)


@pytest.fixture(scope="module")
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


def created(wire: Wire, names: Sequence[str], *, timeout: int = 0, dry: bool = False) -> list[Struct]:
    """Create topics, and return their responses."""
    wanted = [
        Struct(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    found: list[Struct] = wire.ask(
        "create_topics", 7, Struct(topics=wanted, timeout=timeout, validate_only=dry)
    ).topics
    assert [each.name for each in found] == list(names)
    return found


def grown(wire: Wire, names: Sequence[str], *, timeout: int = 0, dry: bool = False) -> list[int]:
    """Request two partitions for each topic, and return the error codes."""
    wanted = [Struct(name=name, count=2, assignments=None) for name in names]
    request = Struct(topics=wanted, timeout=timeout, validate_only=dry)
    return [each.error_code for each in wire.ask("create_partitions", 3, request).results]


def deleted(wire: Wire, names: Sequence[str], *, timeout: int = 0) -> dict[str, int]:
    """Delete topics, and return their error codes by name."""
    request = Struct(topics=[Struct(name=name, topic_id=None) for name in names], timeout=timeout)
    return {each.name: each.error_code for each in wire.ask("delete_topics", 6, request).responses}


@pytest.fixture(scope="module")
def topics(wire: Wire, broker: BrokerThread) -> dict[str, UUID]:
    """The ids of two thousand topics by name. One request creates them, a hundred per transaction."""
    before = broker.catalog_calls()
    made = created(wire, _NAMES)
    assert (broker.catalog_calls() - before)["topics.create"] == _MANY // 100
    assert [each.error_code for each in made] == [ErrorCode.none] * _MANY
    return {each.name: each.topic_id for each in made}


def committed(wire: Wire, version: int, wanted: Sequence[Struct], **fields: Any) -> list[Struct]:  # noqa: ANN401
    """Commit offsets, and return the response of each topic. `fields` can name a member."""
    stamp = {"group_id": "masons", "generation_id_or_member_epoch": -1, "member_id": ""}
    found: list[Struct] = wire.ask("offset_commit", version, Struct(**stamp | fields, topics=wanted)).topics
    return found


def to_commit(offset: int, partition: int = 0, **named: object) -> Struct:
    """Return the entry of a request. `named` is the topic's name or id."""
    part = Struct(partition_index=partition, committed_offset=offset, committed_metadata="")
    return Struct(**named, partitions=[part])


@pytest.fixture(scope="module")
def others(wire: Wire, topics: dict[str, UUID]) -> list[int]:
    """Error codes of a group that commits an offset in every topic except the first."""
    return codes(committed(wire, 9, [to_commit(5, name=name) for name in [*topics][1:]], group_id="others"))


def codes(response: Sequence[Struct]) -> list[int]:
    """Return the error codes of all partitions of all topics."""
    return [each.error_code for topic in response for each in topic.partitions]


@pytest.mark.parametrize("version", [2, 9, 10])
def test_offsets_in_thousands_of_topics_are_committed_with_one_query(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID], version: int
) -> None:
    """At most one query looks up the topics. Each missing topic has its own error."""
    named = [{"topic_id": topics[name]} if version >= 10 else {"name": name} for name in _NAMES]
    missing = {"topic_id": UUID(int=7)} if version >= 10 else {"name": "marble"}
    wanted = [to_commit(version, **each) for each in named]
    before = broker.catalog_calls()
    response = committed(
        wire, version, [*wanted, to_commit(1, **missing), to_commit(1, partition=1, **named[0])]
    )
    calls = broker.catalog_calls() - before
    unknown = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert codes(response) == [ErrorCode.none] * _MANY + [unknown, ErrorCode.unknown_topic_or_partition]
    assert calls["group_offsets.commit"] == 1
    assert calls["topics.by_names"] + calls["topics.by_ids"] == 1
    assert calls["topics.get"] + calls["topics.by_id"] == 0
    refused = committed(wire, version, wanted, generation_id_or_member_epoch=3, member_id="nobody")
    assert codes(refused) == [ErrorCode.unknown_member_id] * _MANY
    everything = wire.ask("offset_fetch", 2, Struct(group_id="masons", topics=None)).topics
    assert [(each.name, each.partitions[0].committed_offset) for each in everything] == [
        (name, version) for name in _NAMES
    ]


@pytest.mark.parametrize("version", range(offset_fetch.API.min_version, offset_fetch.API.max_version + 1))
def test_offsets_in_thousands_of_topics_are_fetched_with_one_query(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID], others: list[int], version: int
) -> None:
    """The groups of one request share the query. A group without a list of topics returns all its offsets."""
    assert others
    wanted = [
        Struct(**({"topic_id": topics[name]} if version >= 10 else {"name": name}), partition_indexes=[0])
        for name in _NAMES
    ]
    request = Struct(group_id="others", topics=wanted)
    if version >= 8:
        groups = [
            Struct(group_id=group_id, topics=some, member_id=None, member_epoch=-1)
            for group_id, some in [("others", wanted), ("nobody", wanted[:1]), ("others", None), ("\0", [])]
        ]
        request = Struct(groups=groups)
    before = broker.catalog_calls()
    response = wire.ask("offset_fetch", version, request)
    calls = broker.catalog_calls() - before
    assert calls["group_offsets.fetch"] == 1
    assert calls["topics.by_names"] + calls["topics.by_ids"] <= 1
    assert calls["topics.get"] + calls["topics.by_id"] == 0
    found = response
    if version >= 8:
        found, nobody, everything, nameless = response.groups
        assert [each.partitions[0].committed_offset for each in nobody.topics] == [-1]
        assert [each.partitions[0].committed_offset for each in everything.topics] == [5] * (_MANY - 1)
        assert (calls["group_offsets.fetch_all"], nameless.error_code) == (1, ErrorCode.invalid_group_id)
        assert [each.error_code for each in (found, nobody, everything)] == [ErrorCode.none] * 3
    assert [each.partitions[0].committed_offset for each in found.topics] == [-1] + [5] * (_MANY - 1)
    assert codes(found.topics) == [ErrorCode.none] * _MANY


def test_a_thousand_groups_are_looked_up_together(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID]
) -> None:
    """For all offsets of a group, one query covers a bounded number of groups."""
    assert topics
    groups = [f"masons-{number}" for number in range(1_000)]
    committed(wire, 9, [to_commit(8, name=_NAMES[0])], group_id=groups[-1])
    for some, operation, calls in (
        ([_NAMES[0]], "group_offsets.fetch", 1),
        (None, "group_offsets.fetch_all", 10),
    ):
        wanted = None if some is None else [Struct(name=name, partition_indexes=[0]) for name in some]
        request = Struct(groups=[Struct(group_id=each, topics=wanted) for each in groups])
        before = broker.catalog_calls()
        response = wire.ask("offset_fetch", 9, request)
        assert (broker.catalog_calls() - before)[operation] == calls
        assert [each.group_id for each in response.groups] == groups
        assert response.groups[-1].topics[0].partitions[0].committed_offset == 8


def test_offsets_in_thousands_of_topics_are_deleted_with_one_query(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID]
) -> None:
    assert topics
    committed(wire, 9, [to_commit(5, name=name) for name in _NAMES], group_id="leavers")
    wanted = [Struct(name=name, partitions=[Struct(partition_index=0)]) for name in [*_NAMES, "marble"]]
    before = broker.catalog_calls()
    response = wire.ask("offset_delete", 0, Struct(group_id="leavers", topics=wanted)).topics
    calls = broker.catalog_calls() - before
    assert codes(response) == [ErrorCode.none] * _MANY + [ErrorCode.unknown_topic_or_partition]
    assert (calls["group_offsets.delete"], calls["topics.by_names"], calls["topics.get"]) == (1, 1, 0)
    assert wire.ask("offset_fetch", 2, Struct(group_id="leavers", topics=None)).topics == []


def test_thousands_of_topics_are_described_page_by_page(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID]
) -> None:
    """Each page needs one catalog query. All topics are listed at most once, because they do not change."""
    lists = 0
    for named in ([*_NAMES, "marble", "no such name"], []):
        cursor: Struct | None = None
        found: list[tuple[str, int, UUID | None]] = []
        for _ in range(3):
            before = broker.catalog_calls()
            request = Struct(
                topics=[Struct(name=name) for name in named], response_partition_limit=900, cursor=cursor
            )
            response = wire.ask("describe_topic_partitions", 0, request)
            calls = broker.catalog_calls() - before
            assert calls["topics.by_names"] + calls["topics.changes"] == 1
            assert calls["topics.get"] == 0
            lists += calls["topics.list"]
            found += [(each.name, each.error_code, each.topic_id) for each in response.topics]
            cursor = response.next_cursor
        assert cursor is None
        assert found[:_MANY] == [(name, ErrorCode.none, topics[name]) for name in _NAMES]
        assert [each[:2] for each in found[_MANY:]] == [
            ("marble", ErrorCode.unknown_topic_or_partition),
            ("no such name", ErrorCode.invalid_topic_exception),
        ][: len(named)]
    assert lists <= 1


@pytest.mark.parametrize("version", [1, 5])
def test_sizes_of_thousands_of_topics_are_looked_up_together(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID], version: int
) -> None:
    """One query covers a bounded number of topics. A missing topic has no size."""
    assert topics
    named = [Struct(topic=name, partitions=[0, 1]) for name in [*_NAMES, "marble"]]
    for wanted in (named, None):
        before = broker.catalog_calls()
        (directory,) = wire.ask("describe_log_dirs", version, Struct(topics=wanted)).results
        calls = broker.catalog_calls() - before
        assert [(each.name, len(each.partitions)) for each in directory.topics] == [
            (name, 1) for name in _NAMES
        ]
        assert calls["topics.sizes"] == 2
        assert calls["topics.by_names"] + calls["topics.changes"] == 1
        assert calls["topics.list"] <= 1
        assert calls["topics.get"] == 0


@pytest.mark.parametrize("version", [0, 2])
def test_records_of_thousands_of_topics_are_deleted_with_few_queries(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID], version: int
) -> None:
    """An error of one partition does not affect the others."""
    assert topics
    parts = [Struct(partition_index=0, offset=-1)]
    wanted = [Struct(name=name, partitions=parts) for name in [*_NAMES, "marble"]]
    wanted[7] = Struct(name=_NAMES[7], partitions=[Struct(partition_index=0, offset=1)])
    wanted[8] = Struct(name=_NAMES[8], partitions=[Struct(partition_index=1, offset=0)])
    before = broker.catalog_calls()
    response = wire.ask("delete_records", version, Struct(topics=wanted, timeout=1_000)).topics
    calls = broker.catalog_calls() - before
    expected = [ErrorCode.none] * _MANY + [ErrorCode.unknown_topic_or_partition]
    expected[7], expected[8] = ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_or_partition
    assert codes(response) == expected
    assert (calls["topics.states"], calls["retention.advance_log_starts"]) == (2, 2)
    assert (calls["topics.by_names"], calls["topics.get"]) == (1, 0)


@pytest.mark.parametrize("timestamp", [-1, -2])
def test_bounds_of_thousands_of_topics_are_looked_up_together(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID], timestamp: int
) -> None:
    assert topics
    part = Struct(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    wanted = [Struct(name=name, partitions=[part]) for name in [*_NAMES, "marble"]]
    before = broker.catalog_calls()
    response = wire.ask("list_offsets", 11, Struct(replica_id=-1, topics=wanted)).topics
    calls = broker.catalog_calls() - before
    assert codes(response) == [ErrorCode.none] * _MANY + [ErrorCode.unknown_topic_or_partition]
    assert (calls["topics.states"], calls["topics.by_names"], calls["topics.get"]) == (1, 1, 0)


def test_items_after_the_timeout_are_not_processed(broker: BrokerThread, wire: Wire) -> None:
    """The first items are always processed. A timeout of 0 is the default timeout."""
    names = [f"basalt-{number:03}" for number in range(200)]
    timed_out = ErrorCode.request_timed_out
    made = [each.error_code for each in created(wire, names, timeout=1)]
    assert made == [ErrorCode.none] * 100 + [timed_out] * 100
    assert [each.name for each in broker.catalog.topics.by_names(names)] == names[:100]
    assert grown(wire, names[:3], timeout=1) == [ErrorCode.none, timed_out, timed_out]
    assert [broker.catalog.topics.get(name).partition_count for name in names[:3]] == [2, 1, 1]
    assert grown(wire, names[:3]) == [ErrorCode.invalid_partitions, ErrorCode.none, ErrorCode.none]
    gone = deleted(wire, names[:3], timeout=1)
    assert sorted(gone.values()) == [ErrorCode.none, timed_out, timed_out]
    assert {each.name for each in broker.catalog.topics.by_names(names[:3])} == {
        name for name, code in gone.items() if code == timed_out
    }
    missing = [f"marble-{number}" for number in range(_MANY)]
    before = broker.catalog_calls()
    gone |= deleted(wire, [*(name for name in names[:100] if gone.get(name)), *names[3:100], *missing])
    calls = broker.catalog_calls() - before
    assert gone == dict.fromkeys(names[:100], ErrorCode.none) | dict.fromkeys(
        missing, ErrorCode.unknown_topic_or_partition
    )
    assert calls["topics.by_names"] == 1
    assert broker.catalog.topics.by_names(names) == []


def test_validating_thousands_of_topics_needs_one_query(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID]
) -> None:
    """This holds for creating topics, adding partitions, and deleting by unknown ids."""
    assert topics
    before = broker.catalog_calls()
    tried = created(wire, [*_NAMES[1:], "marble"], dry=True)
    assert [each.error_code for each in tried] == [ErrorCode.topic_already_exists] * (_MANY - 1) + [0]
    assert grown(wire, [*_NAMES, "marble"], dry=True) == [ErrorCode.none] * _MANY + [
        ErrorCode.unknown_topic_or_partition
    ]
    unknown = [Struct(name=None, topic_id=UUID(int=number + 1)) for number in range(_MANY)]
    gone = wire.ask("delete_topics", 6, Struct(topics=unknown, timeout=0)).responses
    assert [each.error_code for each in gone] == [ErrorCode.unknown_topic_id] * _MANY
    calls = broker.catalog_calls() - before
    calls = Counter({name: calls[name] for name in calls if name.startswith("topics.")})
    assert calls == {"topics.name_conflicts": 1, "topics.by_names": 1, "topics.by_ids": 1}


def test_settings_of_thousands_of_topics_and_groups_are_looked_up_together(
    broker: BrokerThread, wire: Wire, topics: dict[str, UUID]
) -> None:
    assert topics
    broker.catalog.group_configs.alter("g-7", lambda _: {"consumer.session.timeout.ms": "45001"})
    resources = [(2, name) for name in [*_NAMES, "marble"]] + [(32, f"g-{number}") for number in range(100)]
    keys = ["retention.ms", "consumer.session.timeout.ms"]
    request = Struct(
        resources=[
            Struct(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ]
    )
    before = broker.catalog_calls()
    found = wire.ask("describe_configs", 4, request).results
    calls = broker.catalog_calls() - before
    assert [(each.resource_type, each.resource_name) for each in found] == resources
    assert [each.error_code for each in found] == [ErrorCode.none] * _MANY + [
        ErrorCode.unknown_topic_or_partition
    ] + [ErrorCode.none] * 100
    values = [[setting.value for setting in each.configs] for each in found]
    assert values == [["604800000"]] * _MANY + [[]] + [["45000"]] * 7 + [["45001"]] + [["45000"]] * 92
    assert (calls["topics.by_names"], calls["topics.list"], calls["topics.get"]) == (1, 0, 0)
    assert calls["group_configs.get"] == 0


def test_requests_with_thousands_of_offsets_yield_to_the_event_loop(
    wire: Wire, topics: dict[str, UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They yield while they validate items and while they build the response."""
    assert topics
    committed(wire, 9, [to_commit(5, name=_NAMES[0])], group_id="turns")
    yields: list[float] = []

    async def sleep(seconds: float) -> None:
        yields.append(seconds)
        await asyncio.sleep(seconds)

    monkeypatch.setattr(
        "agent.runtime.cooperative_yield.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    )
    parts = [Struct(name=name, partitions=[Struct(partition_index=0)]) for name in _NAMES]
    named = [Struct(name=name, partition_indexes=[0]) for name in _NAMES]
    requests: list[Callable[[], object]] = [
        lambda: committed(wire, 9, [to_commit(5, name=name) for name in _NAMES], group_id="turns"),
        lambda: wire.ask("offset_fetch", 7, Struct(group_id="turns", topics=named)),
        lambda: wire.ask("offset_delete", 0, Struct(group_id="turns", topics=parts)),
    ]
    for send in requests:
        yields.clear()
        send()
        assert len(yields) >= 2 * _MANY // STEPS_PER_YIELD
