"""Topics, their names and their configuration."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from catalog.config.definitions import TOPIC_SETTINGS
from catalog.config.values import TopicConfig
from catalog.database.pool import Transaction
from catalog.database.sql_files import Query
from catalog.errors import (
    InvalidConfigError,
    InvalidTopicError,
    TopicCollisionError,
    TopicExistsError,
)
from catalog.model import PartitionId, Topic
from catalog.topics import repository
from catalog.topics.names import check_topic_name
from catalog.topics.repository import NewTopic
from core.errors import NotFoundError
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from catalog.database.connection import Row
    from tests.catalog.scene import Scene


def test_a_topic_is_found_by_name_and_by_id(scene: Scene) -> None:
    topic = scene.catalog.topics.create("flights", 3, {"cleanup.policy": "compact"})
    assert scene.catalog.topics.get("flights") == topic
    assert scene.catalog.topics.by_id(topic.topic_id) == topic
    assert topic.config.as_strings() == {"cleanup.policy": "compact"}
    other = scene.catalog.topics.create("airports", 1)
    assert scene.catalog.topics.list() == [other, topic]
    assert [state.partition for state in scene.catalog.topics.partitions(topic.topic_id)] == [0, 1, 2]
    partitions = [PartitionId(topic.topic_id, 2), PartitionId(topic.topic_id, 9)]
    assert [state.partition for state in scene.catalog.topics.states(partitions)] == [2]


def test_a_topic_name_is_unique(scene: Scene) -> None:
    scene.topic("a.b")
    with pytest.raises(TopicExistsError, match=r"'a\.b' exists"):
        scene.topic("a.b")
    with pytest.raises(TopicExistsError, match=r"collides with topic 'a\.b'"):
        scene.topic("a_b")
    with pytest.raises(NotFoundError, match="'a_b'"):
        scene.catalog.topics.get("a_b")


def test_a_deleted_topic_can_be_recreated_empty(scene: Scene) -> None:
    old = scene.topic("t")
    scene.commit(old, run_of(5))
    scene.catalog.topics.delete("t")
    for missing in (scene.catalog.topics.by_id, scene.catalog.topics.partitions):
        with pytest.raises(NotFoundError):
            missing(old.topic_id)
    with pytest.raises(NotFoundError):
        scene.catalog.topics.delete("t")
    new = scene.topic("t")
    assert new.topic_id != old.topic_id
    assert scene.extents(new) == []
    assert scene.catalog.garbage.dead_files(2**62, 10) == []
    scene.remove_deleted_topics()
    assert len(scene.catalog.garbage.dead_files(2**62, 10)) == 1


def test_the_data_of_a_deleted_topic_is_removed_in_small_transactions(scene: Scene) -> None:
    topic = scene.topic("t")
    for _ in range(5):
        scene.commit(topic, run_of(1, producer=(scene.ids.new_uuid().int % 1000, 0, 0)))
    garbage, remove = scene.catalog.garbage, scene.catalog.garbage.remove_deleted
    scene.catalog.topics.delete("t")
    assert scene.extents(topic) == []
    assert garbage.dead_files(2**62, 10) == []
    limit, kinds_of_rows = 2, 4
    removed = [remove(limit)]
    while removed[-1]:
        removed.append(remove(limit))
    assert max(removed) <= limit * kinds_of_rows
    assert len(garbage.dead_files(2**62, 10)) == 5


def test_a_change_keeps_other_settings(scene: Scene) -> None:
    scene.topic("t", retention_ms="1000", cleanup_policy="compact")
    changed = scene.catalog.topics.alter_config("t", {"retention.ms": None, "segment.ms": "5"})
    assert changed.config.as_strings() == {"cleanup.policy": "compact", "segment.ms": "5"}
    assert scene.catalog.topics.get("t") == changed
    with pytest.raises(InvalidConfigError):
        scene.catalog.topics.alter_config("t", {"segment.ms": "0"})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "a b", "a\n", "x" * 250])
def test_names_that_kafka_rejects_are_rejected(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="use 1 to 249"):
        check_topic_name(name)


def test_names_that_kafka_accepts_are_accepted() -> None:
    for name in ("a", "_", "-", "...", "A.b-c_9", "x" * 249):
        check_topic_name(name)


@pytest.mark.parametrize("count", [0, -1, 100_001])
def test_partition_counts_are_limited(scene: Scene, count: int) -> None:
    with pytest.raises(InvalidTopicError, match="choose a number from 1"):
        scene.topic(partitions=count)


def test_defaults_are_those_of_kafka() -> None:
    config = TopicConfig.of({})
    assert (config.cleanup_policy, config.compacts, config.deletes) == ("delete", False, True)
    assert config.retention_ms == 604_800_000
    assert config.local_retention_ms == config.retention_ms
    assert config.retention_bytes == config.local_retention_bytes == -1
    assert config.min_cleanable_dirty_ratio == 0.5
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (0, 2**63 - 1)
    assert config.delete_retention_ms == 86_400_000
    assert config.max_message_bytes == 1_048_588
    assert (config.segment_bytes, config.segment_ms) == (2**30, 604_800_000)
    assert (config.compression_type, config.storage_mode) == ("producer", "object")
    assert config.message_timestamp_type == "CreateTime"
    assert config.message_timestamp_before_max_ms == 2**63 - 1
    assert config.message_timestamp_after_max_ms == 3_600_000
    assert config.is_default("retention.ms")
    for setting in TOPIC_SETTINGS.values():
        assert setting.parse(setting.default) == config.value(setting.name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cleanup.policy", "shred", "some of compact, delete"),
        ("cleanup.policy", "delete,", "some of compact, delete"),
        ("compression.gzip.level", "0", "an integer from 1 to 9, or -1"),
        ("remote.log.copy.disable", "true", "use false: storage.mode decides"),
        ("remote.log.delete.on.disable", "true", "use false: retention and DeleteRecords"),
        ("leader.replication.throttled.replicas", "0", "partition:broker, separated by commas, or *"),
        ("follower.replication.throttled.replicas", "0:1,*", "partition:broker"),
        ("min.cleanable.dirty.ratio", "1.5", "a number from 0 to 1"),
        ("segment.bytes", "1", "an integer of at least 1048576"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("retention.ms", "-2", "an integer of at least -1"),
        ("retention.ms", "1_000", "an integer of at least -1"),
        ("retention.ms", str(2**63), "an integer of at least -1"),
        ("max.message.bytes", str(2**31), "an integer of at least 0"),
        ("segment.bytes", "1e9", "an integer of at least"),
        ("compression.type", "brotli", "one of uncompressed, zstd"),
        ("preallocate", "yes", "true or false"),
        ("retention.mss", "5", "did you mean retention.ms?"),
        ("colour", "5", "known settings are"),
    ],
)
def test_the_error_of_an_invalid_setting_names_it_and_the_valid_values(
    name: str, value: str, expected: str
) -> None:
    with pytest.raises(InvalidConfigError, match=name.replace(".", r"\.")) as rejected:
        TopicConfig.of({name: value})
    assert expected in str(rejected.value)
    assert rejected.value.setting == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote.storage.enable", "false"),
        ("remote.storage.enable", "true"),
        ("remote.log.copy.disable", "false"),
        ("remote.log.delete.on.disable", "false"),
        ("leader.replication.throttled.replicas", ""),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1,1:2"),
        ("compression.gzip.level", "-1"),
    ],
)
def test_values_that_request_no_unsupported_feature_are_accepted(name: str, value: str) -> None:
    assert TopicConfig.of({name: value}).text(name) == value


def test_remote_storage_of_a_local_topic_is_rejected_with_a_remedy() -> None:
    with pytest.raises(InvalidConfigError, match=r"storage\.mode=object") as rejected:
        TopicConfig.of({"storage.mode": "local", "remote.storage.enable": "true"})
    assert rejected.value.setting == "remote.storage.enable"


def test_an_empty_cleanup_policy_disables_deletion_and_compaction() -> None:
    config = TopicConfig.of({"cleanup.policy": ""})
    assert (config.cleanup_policy, config.compacts, config.deletes) == ("", False, False)


def test_changes_may_depend_on_the_current_configuration(scene: Scene) -> None:
    scene.topic("t", retention_ms="5", cleanup_policy="delete")
    altered = scene.catalog.topics.alter_config(
        "t", lambda config: {"retention.bytes": config.text("retention.ms"), "retention.ms": None}
    )
    assert altered.config.as_strings() == {"cleanup.policy": "delete", "retention.bytes": "5"}


def test_a_stored_setting_that_is_no_longer_valid_can_be_read(scene: Scene) -> None:
    """Stricter rules of a newer version must not break the retention of existing topics."""
    topic = scene.topic("t")
    stored = Jsonb({"compression.gzip.level": "0", "cleanup.policy": "delete"})
    query = Query("store", "", b"UPDATE topics SET config = %(stored)s")
    scene.catalog._database.transact("test", lambda t: t.count(query, {"stored": stored}))
    assert scene.catalog.topics.get("t").config.text("compression.gzip.level") == "0"
    assert scene.catalog.retention.expire([PartitionId(topic.topic_id, 0)]).extents == 0
    altered = scene.catalog.topics.alter_config("t", {"compression.gzip.level": None, "retention.ms": "1"})
    assert altered.config.retention_ms == 1


def test_the_minimum_compaction_lag_cannot_exceed_the_maximum() -> None:
    with pytest.raises(InvalidConfigError, match="is above"):
        TopicConfig.of({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})


def test_both_cleanup_policies_are_accepted_in_any_order() -> None:
    for text in ("delete, compact", "compact,delete", "COMPACT,delete"):
        config = TopicConfig.of({"cleanup.policy": text})
        assert (config.cleanup_policy, config.compacts, config.deletes) == ("compact,delete", True, True)


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("cleanup.policy", " delete, COMPACT ,delete", "delete,compact"),
        ("cleanup.policy", " ", ""),
        ("leader.replication.throttled.replicas", "0:1, 1:1", "0:1,1:1"),
        ("segment.bytes", "+002000000 ", "2000000"),
        ("retention.ms", "-1", "-1"),
        ("min.cleanable.dirty.ratio", "5e-1", "0.5"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("preallocate", " TRUE", "true"),
        ("message.timestamp.type", " CreateTime ", "CreateTime"),
    ],
)
def test_settings_are_shown_in_the_form_of_kafka(name: str, given: str, shown: str) -> None:
    """Clients that copy settings to a Kafka cluster, or compare them, expect it."""
    assert TopicConfig.of({name: given}).text(name) == shown
    stored_by_an_earlier_release = TopicConfig.from_stored({name: given})
    assert stored_by_an_earlier_release.value(name) == TopicConfig.of({name: given}).value(name)


@given(
    st.sampled_from(sorted(TOPIC_SETTINGS)),
    st.text(max_size=12) | st.integers().map(str) | st.floats().map(str),
)
def test_any_value_is_accepted_or_rejected_with_the_setting_name(name: str, text: str) -> None:
    rejected_setting = None
    try:
        config = TopicConfig.of({name: text})
    except InvalidConfigError as rejected:
        rejected_setting = rejected.setting
    else:
        assert TopicConfig.of({name: config.text(name)}) == config
        assert config.value(name) == TopicConfig.from_stored({name: text}).value(name)
        assert config.with_changes({name: None}) == TopicConfig.of({})
    assert rejected_setting in {None, name}


def test_a_conflicting_topic_may_be_deleted_between_two_statements(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Transaction.rows
    results: list[list[tuple[object, ...]]] = [[]]

    def no_rows_at_first(
        self: Transaction, query: Query, params: Mapping[str, object] | None = None
    ) -> list[Row]:
        found = rows(self, query, params)
        is_look = query is repository._SQL["find_conflicting_topics"]
        return results.pop() if is_look and results else found

    monkeypatch.setattr(Transaction, "rows", no_rows_at_first)
    assert scene.topic("t").name == "t"
    assert [topic.name for topic in scene.catalog.topics.list()] == ["t"]


def test_the_remedy_distinguishes_equal_and_colliding_names(scene: Scene) -> None:
    scene.topic("a.b")
    with pytest.raises(TopicExistsError) as exists:
        scene.topic("a.b")
    assert "metric" not in str(exists.value.remedy)
    with pytest.raises(TopicExistsError) as collides:
        scene.topic("a_b")
    assert "metric" in str(collides.value.remedy)


def test_many_topics_are_created_in_one_transaction_with_errors_for_each(scene: Scene) -> None:
    """Of two colliding names in one request, one topic is created."""
    scene.topic("c.d")
    topics = scene.catalog.topics
    before = scene.catalog.operation_counts()["topics.create"].calls
    new_topics = [
        NewTopic(name="b", partition_count=3, config={"cleanup.policy": "compact"}),
        NewTopic(name="c_d", partition_count=1),
        NewTopic(name="a/b", partition_count=1),
        NewTopic(name="a", partition_count=0),
        NewTopic(name="d", partition_count=1, config={"segment.ms": "0"}),
        NewTopic(name="e.f", partition_count=1),
        NewTopic(name="e_f", partition_count=1),
        NewTopic(name="a", partition_count=2),
    ]
    made = topics.create_many(new_topics)
    assert scene.catalog.operation_counts()["topics.create"].calls == before + 1
    assert [None if isinstance(each, Topic) else type(each) for each in made] == [
        None,
        TopicCollisionError,
        InvalidTopicError,
        InvalidTopicError,
        InvalidConfigError,
        None,
        TopicCollisionError,
        None,
    ]
    assert [each for each in made if isinstance(each, Topic)] == [
        topics.get(name) for name in ("b", "e.f", "a")
    ]
    assert topics.get("b").config.as_strings() == {"cleanup.policy": "compact"}
    assert [len(topics.partitions(topics.get(name).topic_id)) for name in ("b", "e.f", "a")] == [3, 1, 2]
    assert {name: str(error) for name, error in topics.name_conflicts(["x", "c_d", "a"]).items()} == {
        "c_d": str(made[1]),
        "a": str(topics.name_conflicts(["a"])["a"]),
    }


def test_concurrent_creations_in_different_orders_do_not_deadlock(scene: Scene) -> None:
    """Each name is created once."""
    names = [f"t{number}" for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        orders = [names, names[::-1], names[20:] + names[:20], names[::-1]]
        made = list(
            pool.map(
                lambda order: scene.catalog.topics.create_many(
                    [NewTopic(name=name, partition_count=1) for name in order]
                ),
                orders,
            )
        )
    given = [each.name for some in made for each in some if isinstance(each, Topic)]
    assert sorted(given) == sorted(names)
    assert {type(each) for some in made for each in some} == {Topic, TopicExistsError}
