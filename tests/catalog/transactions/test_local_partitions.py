"""Partitions of local topics in transactions: verification, pending markers, and what follows a failover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from catalog.database.sql_files import load_queries
from catalog.errors import TopicNotFoundError, TransactionRefusal, TransactionRefusedError
from catalog.model import OpenTransaction, PartitionId
from catalog.transactions.local_partitions import FirstBatch, PendingMarker, Verification
from catalog.transactions.rules import MAX_EPOCH, ProducerIdentity
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.clock import ManualClock

_SQL: Final = load_queries("local_transactions")
_TIMEOUT_MS = 60_000
_NODE = 7


def _local(scene: Scene, partitions: int = 1, node_id: int = _NODE, *, name: str = "t") -> list[PartitionId]:
    """Create a topic whose partitions a node leads."""
    topic = scene.topic(name, partitions=partitions)
    keys = [PartitionId(topic.topic_id, number) for number in range(partitions)]
    scene.catalog.local_leaders.claim(dict.fromkeys(keys, node_id))
    return keys


def _initialize(scene: Scene, name: str = "t") -> ProducerIdentity:
    return scene.catalog.transactions.initialize(name, _TIMEOUT_MS).producer


def _verify(
    scene: Scene,
    producer: ProducerIdentity,
    key: PartitionId,
    sequence: int = 0,
    *,
    name: str = "t",
    adds: bool = False,
) -> Verification:
    return scene.catalog.local_transactions.verify(name, producer, FirstBatch(key, sequence, adds))


def _begin(scene: Scene, keys: Sequence[PartitionId], name: str = "t") -> ProducerIdentity:
    producer = _initialize(scene, name)
    scene.catalog.transactions.add_partitions(name, producer, [], keys)
    return producer


def _pending(scene: Scene, node_id: int = _NODE) -> list[PendingMarker]:
    return scene.catalog.local_transactions.pending(node_id)


@pytest.mark.parametrize("commits", [True, False])
def test_the_end_of_a_transaction_leaves_a_marker_for_each_verified_partition(
    scene: Scene, commits: bool
) -> None:
    first, second, unused = _local(scene, 3)
    producer = _begin(scene, [first, second, unused])
    assert _verify(scene, producer, first, 5) is Verification.VERIFIED
    assert _verify(scene, producer, second, 0) is Verification.VERIFIED
    assert _pending(scene) == []
    ended = scene.catalog.transactions.end("t", producer, commits=commits)
    assert (ended.controls, set(ended.leaders)) == ((), {_NODE})
    markers = _pending(scene)
    assert [(each.partition, each.first_sequence) for each in markers] == [(first, 5), (second, 0)]
    assert {each[2:4] + each[5:7] for each in markers} == {(*producer, commits, producer.producer_epoch)}
    assert _pending(scene, _NODE + 1) == []
    scene.catalog.local_transactions.complete(markers)
    scene.catalog.local_transactions.complete(markers)
    assert _pending(scene) == []
    assert scene.catalog.transaction_lookups.contradictions() == []


def test_a_transaction_of_local_and_object_partitions_is_decided_at_once(scene: Scene) -> None:
    (key,) = _local(scene)
    topic = scene.topic("object")
    producer = _initialize(scene)
    object_key = PartitionId(topic.topic_id, 0)
    scene.catalog.transactions.add_partitions("t", producer, [object_key], [key])
    assert scene.catalog.transaction_lookups.added_partitions("t", producer) == {key, object_key}
    _verify(scene, producer, key)
    scene.commit(topic, run_of(3, producer=(*producer, 0), in_transaction=True, transactional_id="t"))
    before = scene.catalog.topics.states([key])
    ended = scene.catalog.transactions.end("t", producer, commits=True)
    assert (ended.partitions, set(ended.leaders)) == ((object_key,), {_NODE})
    assert [each.commits for each in _pending(scene)] == [True]
    assert scene.catalog.topics.states([key]) == before  # its offsets are those of the leader's log
    assert scene.catalog.transaction_lookups.contradictions() == []


def test_the_end_of_a_transaction_takes_one_statement_more_for_all_local_partitions(scene: Scene) -> None:
    keys = _local(scene, 3)
    producer = _begin(scene, keys)
    for key in keys:
        _verify(scene, producer, key)
    counts = scene.catalog.operation_counts
    before = counts()["transactions.end"].statements if "transactions.end" in counts() else 0
    scene.catalog.transactions.end("t", producer, commits=True)
    assert counts()["transactions.end"].statements - before == 4


def test_a_producer_cannot_use_a_partition_before_its_last_marker_is_complete(scene: Scene) -> None:
    key, other = _local(scene, 2)
    producer = _begin(scene, [key])
    _verify(scene, producer, key)
    scene.catalog.transactions.end("t", producer, commits=True)
    with pytest.raises(TransactionRefusedError) as refused:
        scene.catalog.transactions.add_partitions("t", producer, [], [key])
    assert refused.value.refusal is TransactionRefusal.CONCURRENT_TRANSACTIONS
    scene.catalog.transactions.add_partitions("t", producer, [], [other])  # an offline leader blocks no other
    assert _verify(scene, producer, key, 3, adds=True) is Verification.MARKER_PENDING
    scene.catalog.local_transactions.complete(_pending(scene))
    scene.catalog.transactions.add_partitions("t", producer, [], [key])
    assert _verify(scene, producer, key, 3) is Verification.VERIFIED


def test_a_late_completion_does_not_remove_the_next_marker(scene: Scene) -> None:
    (key,) = _local(scene)
    producer = _begin(scene, [key])
    _verify(scene, producer, key)
    scene.catalog.transactions.end("t", producer, commits=True)
    late = _pending(scene)
    scene.catalog.local_transactions.complete(late)
    scene.catalog.transactions.add_partitions("t", producer, [], [key])
    _verify(scene, producer, key, 1)
    scene.catalog.local_transactions.complete(late)  # the transaction is ongoing
    scene.catalog.transactions.end("t", producer, commits=False)
    scene.catalog.local_transactions.complete(late)
    assert [(each.first_sequence, each.commits) for each in _pending(scene)] == [(1, False)]


def test_a_zombie_and_a_stranger_are_not_verified(scene: Scene) -> None:
    (key,) = _local(scene)
    zombie = _begin(scene, [key])
    _initialize(scene, "stranger")
    with pytest.raises(TransactionRefusedError) as stranger:
        _verify(scene, zombie, key, name="stranger")
    assert stranger.value.refusal is TransactionRefusal.INVALID_PRODUCER_ID_MAPPING
    _verify(scene, zombie, key)
    current = scene.catalog.transactions.initialize("t", _TIMEOUT_MS)
    assert current.leaders == {_NODE}
    assert [(each.commits, each.marker_epoch) for each in _pending(scene)] == [(False, 1)]
    scene.catalog.local_transactions.complete(_pending(scene))
    with pytest.raises(TransactionRefusedError) as fenced:
        _verify(scene, zombie, key, adds=True)
    assert fenced.value.refusal is TransactionRefusal.PRODUCER_FENCED
    with pytest.raises(TransactionRefusedError) as not_added:
        _verify(scene, current.producer, key)
    assert not_added.value.refusal is TransactionRefusal.INVALID_TXN_STATE
    assert _verify(scene, current.producer, key, adds=True) is Verification.VERIFIED


def test_a_batch_is_not_verified_after_the_end_of_its_transaction(scene: Scene) -> None:
    (key,) = _local(scene)
    producer = _begin(scene, [key])
    scene.catalog.transactions.end("t", producer, commits=True)
    with pytest.raises(TransactionRefusedError) as refused:
        _verify(scene, producer, key)
    assert refused.value.refusal is TransactionRefusal.INVALID_TXN_STATE
    assert _pending(scene) == []  # the partition had no batch, so it needs no marker


def test_a_timed_out_transaction_is_aborted_in_local_partitions_too(scene: Scene) -> None:
    (key,) = _local(scene)
    producer = _begin(scene, [key])
    _verify(scene, producer, key)
    ended = scene.catalog.transactions.abort("t", producer)
    assert ended.leaders == {_NODE}
    assert [each.commits for each in _pending(scene)] == [False]


def test_markers_of_a_deleted_topic_are_gone(scene: Scene) -> None:
    topic = scene.topic(partitions=1)
    key = PartitionId(topic.topic_id, 0)
    scene.catalog.local_leaders.claim({key: _NODE})
    producer = _begin(scene, [key])
    _verify(scene, producer, key)
    scene.catalog.topics.delete(topic.name)
    ended = scene.catalog.transactions.end("t", producer, commits=True)
    assert (ended.leaders, _pending(scene)) == (frozenset(), [])
    assert scene.catalog.transaction_lookups.contradictions() == []


def test_no_batch_is_verified_in_a_deleted_topic(scene: Scene) -> None:
    """The log stays until an undeletion, and the catalog would not know its transaction."""
    (key,) = _local(scene)
    producer = _begin(scene, [key])
    scene.catalog.topics.delete("t")
    with pytest.raises(TopicNotFoundError):
        _verify(scene, producer, key, adds=True)
    scene.catalog.topics.deleted.undelete("t")
    assert _verify(scene, producer, key, adds=True) is Verification.VERIFIED
    scene.catalog.transactions.end("t", producer, commits=True)
    assert [(each.first_sequence, each.commits) for each in _pending(scene)] == [(0, True)]


def test_an_earlier_agent_cannot_end_a_transaction_with_local_partitions(
    scene: Scene, catalog_url: str
) -> None:
    """Its statements would forget the markers, so they must fail."""
    keys = _local(scene)
    _begin(scene, keys)
    with (
        psycopg.connect(catalog_url) as connection,
        pytest.raises(psycopg.errors.CheckViolation, match="only_ongoing_has_local_partitions"),
    ):
        connection.execute("UPDATE siltstone.transactional_ids SET state = 'committed', started_ms = NULL")


def test_only_transactions_that_the_catalog_lost_are_unknown(scene: Scene) -> None:
    ongoing, ended, lost = _local(scene, 3)
    producer = _begin(scene, [ongoing, ended, lost])
    other = _begin(scene, [ended], "other")
    _verify(scene, producer, ongoing, 4)
    _verify(scene, other, ended, 9, name="other")
    scene.catalog.transactions.end("other", other, commits=True)
    known = [
        OpenTransaction(ongoing, *producer, first_sequence=4, first_offset=0),
        OpenTransaction(ongoing, *producer, first_sequence=5, first_offset=0),  # its first batch was deleted
        OpenTransaction(ongoing, *producer, first_sequence=-1, first_offset=0),
        OpenTransaction(ended, *other, first_sequence=9, first_offset=0),
    ]
    unknown = [
        OpenTransaction(lost, *producer, first_sequence=0, first_offset=0),  # added, but not verified
        OpenTransaction(ongoing, *producer, first_sequence=3, first_offset=0),
        OpenTransaction(ongoing, producer.producer_id, 1, first_sequence=4, first_offset=0),
    ]
    assert scene.catalog.deletions.confirm_unknown_transactions([*known, *unknown]) == unknown


def test_a_look_for_markers_reads_none_of_other_nodes(scene: Scene, catalog_url: str) -> None:
    """A node that is away for long leaves many. Those that earlier code has left have no node."""
    topic = scene.topic(partitions=2)
    mine, other = (PartitionId(topic.topic_id, number) for number in range(2))
    scene.catalog.local_leaders.claim({mine: _NODE, other: _NODE + 1})
    with psycopg.connect(catalog_url, autocommit=True, options="-c search_path=siltstone") as connection:
        for key, node_id, first, count in (
            (other, _NODE + 1, 0, 5_000),
            (mine, _NODE, 10_000, 3),
            (mine, None, 20_000, 2),
        ):
            connection.execute(
                "INSERT INTO local_transaction_partitions (producer_id, topic_id, partition, producer_epoch,"
                " first_sequence, commits, marker_epoch, coordinator_epoch, ended_ms, node_id)"
                " SELECT %s + n, %s, %s, 0, 0, true, 0, 0, 0, %s FROM generate_series(1, %s) AS n",
                (first, key.topic_id, key.partition, node_id, count),
            )
        connection.execute("ANALYZE local_transaction_partitions")
        params = {"node_id": _NODE, "after": 0, "limit": 100}
        statement = b"EXPLAIN (ANALYZE, FORMAT JSON) " + _SQL["pending_markers"].sql
        ((report,),) = connection.execute(statement, params).fetchall()
    assert [each.producer_id for each in _pending(scene)] == [10_001, 10_002, 10_003, 20_001, 20_002]
    assert _rows_read(report[0]["Plan"]) < 50


def _rows_read(node: dict[str, Any]) -> int:
    """Return how many rows the scans of an executed plan have read."""
    own = 0
    if "Relation Name" in node:
        own = int(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
    return own + sum(map(_rows_read, node.get("Plans", ())))


def test_a_lost_history_aborts_local_partitions_of_ongoing_transactions(
    scene: Scene, catalog_url: str
) -> None:
    (key,) = _local(scene)
    producer = _begin(scene, [key])
    _verify(scene, producer, key)
    epoch = scene.catalog.incarnations.declare_restore("a test").epoch
    ((timed_out,),) = [scene.catalog.transaction_lookups.timed_out()]
    ended = scene.catalog.transactions.abort(timed_out.transactional_id, timed_out.producer)
    assert ended.leaders == {_NODE}
    (marker,) = _pending(scene)
    assert (marker.commits, marker.marker_epoch, marker.coordinator_epoch) == (False, MAX_EPOCH, epoch)
    assert (marker.producer_epoch, marker.first_sequence) == (producer.producer_epoch, 0)
    with psycopg.connect(catalog_url) as connection:
        row = connection.execute("SELECT has_local_partitions FROM siltstone.transactional_ids").fetchone()
    assert row == (False,)


def test_a_page_of_markers_begins_after_the_last(scene: Scene) -> None:
    keys = _local(scene, 3)
    producer = _begin(scene, keys)
    for key in keys:
        _verify(scene, producer, key)
    scene.catalog.transactions.end("t", producer, commits=True)
    table = scene.catalog.local_transactions
    page = table.pending(_NODE, limit=2)
    rest = table.pending(_NODE, after=page[-1].number, limit=2)
    assert [each.partition for each in page + rest] == keys


def test_transactions_in_the_logs_of_an_undeleted_topic_end_as_they_were_decided(
    scene: Scene, clock: ManualClock
) -> None:
    """Those that were open at the deletion are aborted in it. A producer that still has one is fenced."""
    (key,) = _local(scene)
    (other,) = _local(scene, node_id=_NODE + 1, name="other")
    transactions, names = scene.catalog.transactions, ("committed", "aborted", "later", "ongoing", "next")
    producers = {name: _begin(scene, [key], name) for name in names}
    for name, producer in producers.items():
        _verify(scene, producer, key, name=name)
    transactions.end("committed", producers["committed"], commits=True)
    transactions.end("aborted", producers["aborted"], commits=False)
    (topic,) = [each for each in scene.catalog.topics.list() if each.topic_id == key.topic_id]
    before = {each.producer_id: each for each in _pending(scene)}
    scene.catalog.topics.delete(topic.name)
    assert _pending(scene) == []
    found = OpenTransaction(key, *producers["committed"], 0, 0)
    assert scene.catalog.deletions.confirm_unknown_transactions([found]) == [], "its marker is kept"
    for name in ("later", "next"):
        transactions.end(name, producers[name], commits=True)
    clock.advance(1)
    transactions.add_partitions("next", producers["next"], [], [other])
    scene.catalog.topics.deleted.undelete(topic.name)

    after = {each.producer_id: each for each in _pending(scene)}
    assert {name: after[each.producer_id].commits for name, each in producers.items()} == {
        name: name == "committed" for name in names
    }
    for name in ("committed", "aborted"):
        producer_id = producers[name].producer_id
        assert after[producer_id][1:] == before[producer_id][1:]
    assert all(each[1:6:2] == (key, each.producer_epoch, each.commits) for each in after.values())
    with pytest.raises(TransactionRefusedError) as error:
        transactions.end("ongoing", producers["ongoing"], commits=True)
    assert error.value.refusal is TransactionRefusal.PRODUCER_FENCED
    (timed_out,) = scene.catalog.transaction_lookups.timed_out()
    assert timed_out.transactional_id == "ongoing"
    transactions.abort("ongoing", timed_out.producer)
    transactions.end("next", producers["next"], commits=True)
    assert set(_pending(scene)) == set(after.values())
    assert scene.catalog.transaction_lookups.contradictions() == []
