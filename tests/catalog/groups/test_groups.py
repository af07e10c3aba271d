"""Consumer groups and committed offsets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from typing_extensions import override

from catalog.database.pool import Transaction
from catalog.groups.offsets import (
    CommitOutcome,
    CommittedOffset,
    GroupOffset,
    OffsetCommit,
    OffsetCursor,
)
from catalog.groups.repository import GroupRecord
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import DAY_MS, ManualClock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from catalog.database.sql_files import Query
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.ids import Ids
    from tests.catalog.scene import Scene

OLD, NEW = UUID(int=1), UUID(int=2)
HOUR_MS = 3_600_000
_TIMEOUT_SECONDS = 120.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def offset(topic: Topic, value: int, partition: int = 0, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(
        topic_id=topic.topic_id, partition=partition, offset=value, leader_epoch=3, metadata=metadata
    )


def fetched(catalog: Catalog, topic: Topic, group_id: str = "g") -> list[int]:
    keys = [(group_id, PartitionId(topic.topic_id, number)) for number in range(9)]
    return [each.offset for _, each in catalog.group_offsets.fetch(keys)]


def test_the_first_claim_creates_a_group_only_on_request(catalog: Catalog) -> None:
    assert catalog.groups.claim("g", OLD, create=False) is None
    created = catalog.groups.claim("g", OLD, create=True)
    assert created == GroupRecord(group_id="g", state_ms=created.state_ms if created else 0)
    assert catalog.groups.claim("g", OLD, create=False) == created


def test_the_next_coordinator_gets_the_saved_state(catalog: Catalog) -> None:
    catalog.groups.claim("g", OLD, create=True)
    record = GroupRecord(
        group_id="g",
        generation=7,
        protocol_type="consumer",
        member_count=2,
        subscribed_topics=frozenset({"a", "b"}),
        state=b"\0anything",
        state_ms=5,
    )
    assert catalog.groups.save(OLD, record)
    assert catalog.groups.claim("g", NEW, create=False) == record


def test_a_superseded_claim_cannot_write(scene: Scene) -> None:
    catalog, topic = scene.catalog, scene.topic()
    catalog.groups.claim("g", OLD, create=True)
    catalog.groups.claim("g", NEW, create=True)
    assert not catalog.groups.save(OLD, GroupRecord(group_id="g", generation=9))
    assert (
        catalog.group_offsets.commit("g", OLD, None, [offset(topic, 1)]).outcome is CommitOutcome.CLAIM_LOST
    )
    assert not catalog.group_offsets.delete("g", OLD, [PartitionId(topic.topic_id, 0)])
    assert not catalog.groups.delete("g", OLD)
    assert catalog.group_offsets.commit("g", NEW, None, [offset(topic, 2)]).outcome is CommitOutcome.COMMITTED
    assert fetched(catalog, topic) == [2]


def test_commits_of_an_earlier_generation_are_rejected(scene: Scene) -> None:
    catalog, topic = scene.catalog, scene.topic()
    catalog.groups.claim("g", OLD, create=True)
    catalog.groups.save(OLD, GroupRecord(group_id="g", generation=5, member_count=1))
    assert (
        catalog.group_offsets.commit("g", OLD, 4, [offset(topic, 1)]).outcome
        is CommitOutcome.STALE_GENERATION
    )
    assert fetched(catalog, topic) == []
    assert catalog.group_offsets.commit("g", OLD, 5, [offset(topic, 2)]).outcome is CommitOutcome.COMMITTED
    assert fetched(catalog, topic) == [2]


def test_offsets_store_metadata_and_the_last_of_a_request_wins(scene: Scene) -> None:
    catalog, topic = scene.catalog, scene.topic(partitions=2)
    catalog.groups.claim("g", OLD, create=True)
    catalog.group_offsets.commit(
        "g", OLD, None, [offset(topic, 1), offset(topic, 9, 1), offset(topic, 2, metadata="any\0thing: ü")]
    )
    assert catalog.group_offsets.fetch_all(["g"])["g"] == [
        ("t", offset(topic, 2, metadata="any\0thing: ü")),
        ("t", offset(topic, 9, 1)),
    ]
    catalog.group_offsets.delete("g", OLD, [PartitionId(topic.topic_id, 0)])
    assert fetched(catalog, topic) == [9]


def test_commits_to_a_deleted_topic_are_skipped_and_reported(scene: Scene) -> None:
    catalog, topic, other = scene.catalog, scene.topic(), scene.topic("other")
    catalog.groups.claim("g", OLD, create=True)
    catalog.group_offsets.commit("g", OLD, None, [offset(topic, 1), offset(other, 1)])
    catalog.topics.delete("t")
    assert [name for name, _ in catalog.group_offsets.fetch_all(["g"])["g"]] == ["other"]
    committed = catalog.group_offsets.commit("g", OLD, None, [offset(topic, 2), offset(other, 2)])
    assert committed == OffsetCommit(CommitOutcome.COMMITTED, frozenset({topic.topic_id}))
    assert fetched(catalog, other) == [2]


def test_groups_are_paged_and_deleted_with_their_offsets(scene: Scene) -> None:
    catalog, topic = scene.catalog, scene.topic()
    for name in ["b", "a", "c"]:
        catalog.groups.claim(name, OLD, create=True)
    first = catalog.groups.page(limit=2)
    assert [each.group_id for each in first] == ["a", "b"]
    assert [each.group_id for each in catalog.groups.page("b")] == ["c"]
    catalog.group_offsets.commit("c", OLD, None, [offset(topic, 1)])
    assert catalog.groups.delete("c", OLD)
    assert catalog.groups.page("b") == []
    assert fetched(catalog, topic, "c") == []


def test_offsets_of_a_group_without_members_expire_by_commit_time(scene: Scene, clock: ManualClock) -> None:
    catalog, topic = scene.catalog, scene.topic(partitions=3)
    catalog.groups.claim("g", OLD, create=True)
    catalog.group_offsets.commit("g", OLD, None, [offset(topic, 1, 0)])
    catalog.group_offsets.commit("g", OLD, None, [offset(topic, 2, 1)], retention_ms=10 * DAY_MS)
    clock.advance(86_400)
    catalog.group_offsets.commit("g", OLD, None, [offset(topic, 3, 2)])
    assert catalog.group_offsets.expire(["g"], DAY_MS) == []
    assert fetched(catalog, topic) == [2, 3]
    clock.advance(86_400)
    assert catalog.group_offsets.expire(["g"], DAY_MS) == []
    assert fetched(catalog, topic) == [2]
    clock.advance(9 * 86_400)
    assert catalog.group_offsets.expire(["g"], DAY_MS) == ["g"]
    assert catalog.groups.page() == []


def test_offsets_of_an_empty_group_expire_after_the_last_member_left(
    scene: Scene, clock: ManualClock
) -> None:
    """The age of the commit does not matter, so a slow group keeps its offsets while it has members."""
    catalog, topic = scene.catalog, scene.topic()
    catalog.groups.claim("g", OLD, create=True)
    catalog.group_offsets.commit("g", OLD, None, [offset(topic, 1)])
    clock.advance(3 * 86_400)
    empty = GroupRecord(group_id="g", generation=2, protocol_type="consumer", state_ms=clock.now_ms())
    catalog.groups.save(OLD, empty)
    assert catalog.group_offsets.expire(["g"], DAY_MS) == []
    assert fetched(catalog, topic) == [1]
    clock.advance(86_400)
    assert catalog.group_offsets.expire(["g"], DAY_MS) == ["g"]


def test_a_concurrent_commit_keeps_its_group(
    scene: Scene, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expiry of unused groups skips locked groups and deletes no acknowledged offset."""
    catalog, topic = scene.catalog, scene.topic()
    catalog.groups.claim("g", OLD, create=True)
    clock.advance(2 * 86_400)
    send, expired = Transaction.send, []

    def send_and_expire(self: Transaction, query: Query, params: Mapping[str, object] | None = None) -> Any:  # noqa: ANN401  # a cursor
        cursor = send(self, query, params)
        if query.name == "commit_offsets":
            self.wait()
            expired.append(
                expirer.submit(catalog.group_offsets.expire, ["g"], DAY_MS).result(_TIMEOUT_SECONDS)
            )
        return cursor

    monkeypatch.setattr(Transaction, "send", send_and_expire)
    with ThreadPoolExecutor(1) as expirer:
        catalog.group_offsets.commit("g", OLD, None, [offset(topic, 42)])
    assert expired == [[]]
    assert fetched(catalog, topic) == [42]
    clock.advance(2 * 86_400)
    assert catalog.group_offsets.expire(["g"], DAY_MS) == ["g"]


@pytest.mark.parametrize(("subscribed", "left"), [(frozenset({"t"}), [1]), (None, [1, 2])])
def test_a_group_with_members_loses_only_offsets_of_unsubscribed_topics(
    scene: Scene, clock: ManualClock, subscribed: frozenset[str] | None, left: list[int]
) -> None:
    catalog, topic, dropped = scene.catalog, scene.topic(), scene.topic("dropped")
    catalog.groups.claim("g", OLD, create=True)
    catalog.group_offsets.commit("g", OLD, None, [offset(topic, 1), offset(dropped, 2)])
    catalog.groups.save(
        OLD,
        GroupRecord(
            group_id="g",
            generation=1,
            protocol_type="consumer",
            member_count=1,
            subscribed_topics=subscribed,
        ),
    )
    clock.advance(2 * 86_400)
    assert catalog.group_offsets.expire(["g"], DAY_MS) == []
    assert fetched(catalog, topic) + fetched(catalog, dropped) == left


class _SkewedClock(SystemClock):
    """Clock of a machine that is wrong by some hours."""

    def __init__(self, hours: int) -> None:
        self._wrong_ms = hours * HOUR_MS

    @override
    def now_ms(self) -> int:
        return super().now_ms() + self._wrong_ms


@pytest.mark.parametrize("hours", [-2, 2])
def test_offsets_expire_by_the_clock_of_the_catalog(catalog_url: str, ids: Ids, hours: int) -> None:
    """Commit times, expiry times and the time of the last member are independent of the machine's clock."""
    wrong = open_catalog(catalog_url, _SkewedClock(hours), ids)
    right = open_catalog(catalog_url, SystemClock(), ids)
    with wrong, right:
        topic = wrong.topics.create("t", 1, {})
        for group in ("committed", "expiring", "left"):
            wrong.groups.claim(group, OLD, create=True)
            wrong.group_offsets.commit(
                group, OLD, None, [offset(topic, 1)], retention_ms=HOUR_MS if group == "expiring" else None
            )
        now_ms = _SkewedClock(hours).now_ms()
        wrong.groups.save(OLD, GroupRecord(group_id="left", protocol_type="consumer", state_ms=now_ms))
        claimed = right.groups.claim("left", NEW, create=False)
        assert claimed is not None
        assert abs(claimed.state_ms - SystemClock().now_ms()) < HOUR_MS / 2
        groups = ["committed", "expiring", "left"]
        assert right.group_offsets.expire(groups, HOUR_MS) == []
        assert [fetched(right, topic, group) for group in groups] == [[1], [1], [1]]
        right.group_offsets.expire(groups, 0)
        assert [fetched(right, topic, group) for group in groups] == [[], [1], []]


def test_committed_offsets_are_paged_with_the_ends_of_their_logs(catalog: Catalog) -> None:
    """Offsets of deleted topics are skipped, and the end of a local topic is unknown."""
    topic, gone = catalog.topics.create("t", 2), catalog.topics.create("gone", 1)
    local = catalog.topics.create("local", 1, {"storage.mode": "local"})
    for group_id in ("g1", "g2"):
        catalog.groups.claim(group_id, OLD, create=True)
        offsets = [offset(topic, 3), offset(topic, 4, partition=1), offset(gone, 1), offset(local, 2)]
        catalog.group_offsets.commit(group_id, OLD, None, offsets)
    catalog.topics.delete("gone")

    found: list[GroupOffset] = []
    cursor: OffsetCursor | None = OffsetCursor()
    pages = 0
    while cursor is not None:
        page, cursor = catalog.group_offsets.page(cursor, 3)
        found += page
        pages += 1

    assert pages == 3
    assert sorted(each for each in found if each.group_id == "g2") == [
        GroupOffset("g2", "local", 0, 2, None),
        GroupOffset("g2", "t", 0, 3, 0),
        GroupOffset("g2", "t", 1, 4, 0),
    ]
    assert len(found) == 6
