"""Leaders of the partitions of local topics."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from catalog.errors import InvalidConfigError
from catalog.model import Broker, PartitionId
from catalog.topics.local_leaders import UNASSIGNED, FoundLog, LocalLeader

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.ids import Ids


def test_the_first_claim_of_a_partition_wins(catalog: Catalog) -> None:
    topic = catalog.topics.create("t", 3, {"storage.mode": "local"})
    one, two, none = (PartitionId(topic.topic_id, number) for number in (0, 1, 9))
    catalog.local_leaders.claim({one: 5, none: 5})
    catalog.local_leaders.claim({two: 7, one: 7})
    assert catalog.local_leaders.of_topic(topic.topic_id) == {
        0: LocalLeader(node_id=5, leader_epoch=0, directory_id=UNASSIGNED),
        1: LocalLeader(node_id=7, leader_epoch=0, directory_id=UNASSIGNED),
    }


def test_a_log_is_claimed_if_the_given_storage_mode_has_spaces(catalog: Catalog) -> None:
    """Queries compare the stored text."""
    topic = catalog.topics.create("t", 1, {"storage.mode": " local "})
    assert topic.is_local
    log = {PartitionId(topic.topic_id, 0): FoundLog(directory_id=UUID(int=101), leader_epoch=0)}
    assert catalog.local_leaders.claim_found(5, log) == {}
    assert set(catalog.local_leaders.of_topic(topic.topic_id)) == {0}


def test_a_node_that_opens_its_logs_starts_new_leader_epochs(catalog: Catalog) -> None:
    topic = catalog.topics.create("t", 2, {"storage.mode": "local"})
    mine, other = PartitionId(topic.topic_id, 0), PartitionId(topic.topic_id, 1)
    catalog.local_leaders.claim({mine: 5, other: 7})
    assert catalog.local_leaders.begin_epochs(5) == {mine: 1}
    assert catalog.local_leaders.begin_epochs(5) == {mine: 2}
    assert catalog.local_leaders.of_topic(topic.topic_id)[1].leader_epoch == 0


def test_a_recorded_directory_changes_only_from_the_expected_one(catalog: Catalog) -> None:
    """A node records it once. Only a move to another directory names the one before."""
    topic = catalog.topics.create("t", 1, {"storage.mode": "local"})
    mine = PartitionId(topic.topic_id, 0)
    catalog.local_leaders.claim({mine: 5})
    one, two, three = (UUID(int=number) for number in (101, 102, 103))
    assert catalog.local_leaders.assign(7, {mine: one}) == {}, "another node leads it"
    assert catalog.local_leaders.assign(5, {mine: one}) == {mine: one}
    assert catalog.local_leaders.assign(5, {mine: two}) == {mine: one}
    assert catalog.local_leaders.assign(5, {mine: three}, source=two) == {mine: one}
    assert catalog.local_leaders.assign(5, {mine: two}, source=one) == {mine: two}
    assert catalog.local_leaders.directories_of(5) == {mine: two}


def test_a_found_log_takes_its_partition_only_from_a_node_without_one(catalog: Catalog) -> None:
    """An object topic has no leaders, and a partition that does not exist gets none."""
    topic = catalog.topics.create("t", 4, {"storage.mode": "local"})
    copied = PartitionId(catalog.topics.create("o", 1).topic_id, 0)
    lost, empty, kept, mine, none = (PartitionId(topic.topic_id, number) for number in (0, 1, 2, 3, 9))
    catalog.incarnations.declare_restore("a test")
    epoch = catalog.incarnations.current().epoch
    catalog.local_leaders.claim({empty: 7, kept: 7, mine: 5})
    one, two = UUID(int=101), UUID(int=102)
    catalog.local_leaders.assign(7, {kept: two})
    logs = {
        each: FoundLog(directory_id=one, leader_epoch=later)
        for each, later in ((lost, 3), (empty, epoch + 8), (kept, 3), (mine, 3), (none, 3), (copied, 3))
    }
    for _ in range(2):
        assert catalog.local_leaders.claim_found(5, logs) == {kept: 7}
        assert catalog.local_leaders.of_topic(topic.topic_id) == {
            0: LocalLeader(node_id=5, leader_epoch=epoch, directory_id=one),
            1: LocalLeader(node_id=5, leader_epoch=epoch + 9, directory_id=one),
            2: LocalLeader(node_id=7, leader_epoch=0, directory_id=two),
            3: LocalLeader(node_id=5, leader_epoch=0, directory_id=UNASSIGNED),
        }
    assert catalog.local_leaders.of_topic(copied.topic_id) == {}


def test_a_deleted_topic_has_no_leaders(catalog: Catalog) -> None:
    topic = catalog.topics.create("t", 1, {"storage.mode": "local"})
    catalog.local_leaders.claim({PartitionId(topic.topic_id, 0): 5})
    catalog.topics.delete("t")
    assert catalog.local_leaders.of_topic(topic.topic_id) == {}


def test_each_change_of_a_leader_is_another_version(catalog: Catalog) -> None:
    """Calls that change nothing keep it."""
    leaders, topic = catalog.local_leaders, catalog.topics.create("t", 2, {"storage.mode": "local"})
    mine, other = PartitionId(topic.topic_id, 0), PartitionId(topic.topic_id, 1)
    one, two = UUID(int=101), UUID(int=102)
    seen = {leaders.version()}
    for change in (
        partial(leaders.claim, {mine: 5}),
        partial(leaders.claim, {mine: 6, other: 6}),
        partial(leaders.begin_epochs, 5),
        partial(leaders.assign, 5, {mine: one}),
        partial(leaders.assign, 5, {mine: two}, source=one),
        partial(catalog.topics.delete, "t"),
        partial(catalog.topics.deleted.undelete, "t"),
        partial(catalog.incarnations.declare_restore, "a test"),
    ):
        change()
        version = leaders.version()
        assert version not in seen
        seen.add(version)
    leaders.claim({mine: 7})
    leaders.begin_epochs(9)
    leaders.assign(5, {mine: UUID(int=103)}, source=one)
    assert leaders.version() in seen


def test_no_partition_is_assigned_while_its_assignment_may_be_lost(catalog: Catalog, ids: Ids) -> None:
    """The node with the log claims it before it reports what a failover has lost."""
    session_id = ids.new_uuid()
    catalog.sessions.register(session_id, "the node with the log", Broker(node_id=1, host="h", port=1))
    topic_id = catalog.topics.create("t", 2, {"storage.mode": "local"}).topic_id
    mine, other = (PartitionId(topic_id, number) for number in range(2))
    epoch = catalog.incarnations.declare_restore("a test").epoch
    leaders = catalog.local_leaders
    leaders.claim({mine: 2, other: 2})
    assert leaders.of_topic(topic_id) == {}
    assert leaders.claim_found(1, {mine: FoundLog(directory_id=UUID(int=101), leader_epoch=0)}) == {}
    leaders.claim({mine: 2, other: 2})
    assert set(leaders.of_topic(topic_id)) == {0}
    catalog.lost_commits.report([session_id], [], epoch)
    leaders.claim({mine: 2, other: 2})
    assert {number: each.node_id for number, each in leaders.of_topic(topic_id).items()} == {0: 1, 1: 2}


def test_a_node_has_one_active_session(catalog: Catalog, ids: Ids) -> None:
    """A registration fences the session of an earlier process on the same disks."""
    before, after, other = (ids.new_uuid() for _ in range(3))
    catalog.sessions.register(other, "another node", Broker(node_id=2, host="h", port=2))
    catalog.sessions.register(before, "first", Broker(node_id=1, host="h", port=1))
    catalog.sessions.register(after, "second", Broker(node_id=1, host="h", port=1, has_local_logs=True))
    assert {session.session_id for session in catalog.sessions.active()} == {other, after}
    assert [broker.has_local_logs for broker in catalog.brokers.live(10_000)] == [True, False]


def test_the_storage_mode_of_a_topic_cannot_change(catalog: Catalog) -> None:
    catalog.topics.create("t", 1, {})
    with pytest.raises(InvalidConfigError, match=r"storage\.mode"):
        catalog.topics.alter_config("t", {"storage.mode": "local"})
    assert catalog.topics.alter_config("t", {"storage.mode": "object"}).config.storage_mode == "object"


def test_a_partition_that_is_removed_during_a_claim_is_skipped(catalog: Catalog, catalog_url: str) -> None:
    topic_id = catalog.topics.create("t", 2, {"storage.mode": "local"}).topic_id
    first, second = (PartitionId(topic_id, number) for number in range(2))
    locks = (
        b"SELECT count(*) FROM pg_stat_activity"
        b" WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with (
        psycopg.connect(catalog_url) as other,
        psycopg.connect(catalog_url, autocommit=True) as looking,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute(b"DELETE FROM siltstone.partitions WHERE topic_id = %s AND partition = 0", (topic_id,))
        claiming = pool.submit(catalog.local_leaders.claim, {first: 1, second: 1})
        while looking.execute(locks).fetchone() == (0,):
            time.sleep(0.01)
        other.commit()
        claiming.result()
    assert set(catalog.local_leaders.of_topic(topic_id)) == {1}
