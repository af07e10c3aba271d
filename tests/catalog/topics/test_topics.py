"""Topics, their names and their settings."""

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
from catalog.topics.names import check_topic_name
from catalog.topics.repository import NewTopic
from core.errors import NotFoundError
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from catalog.database.connection import Row
    from tests.catalog.scene import Scene


def test_a_topic_is_found_by_name_and_by_identifier(scene: Scene) -> None:
    topic = scene.catalog.topics.create("flights", 3, {"cleanup.policy": "compact"})
    assert scene.catalog.topics.get("flights") == topic
    assert scene.catalog.topics.by_id(topic.topic_id) == topic
    assert topic.config.as_strings() == {"cleanup.policy": "compact"}
    other = scene.catalog.topics.create("airports", 1)
    assert scene.catalog.topics.list() == [other, topic]
    assert [state.partition for state in scene.catalog.topics.partitions(topic.topic_id)] == [0, 1, 2]
    wanted = [PartitionId(topic.topic_id, 2), PartitionId(topic.topic_id, 9)]
    assert [state.partition for state in scene.catalog.topics.states(wanted)] == [2]


def test_a_name_is_given_once(scene: Scene) -> None:
    scene.topic("a.b")
    with pytest.raises(TopicExistsError, match=r"'a\.b' exists"):
        scene.topic("a.b")
    with pytest.raises(TopicExistsError, match=r"collides with topic 'a\.b'"):
        scene.topic("a_b")
    with pytest.raises(NotFoundError, match="'a_b'"):
        scene.catalog.topics.get("a_b")


def test_a_deleted_name_is_free_and_begins_anew(scene: Scene) -> None:
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
    assert len(scene.catalog.garbage.dead_files(2**62, 10)) == 1


def test_a_deletion_goes_on_where_it_stopped(scene: Scene) -> None:
    topic = scene.topic("t")
    for _ in range(5):
        scene.commit(topic, run_of(1, producer=(scene.ids.new_uuid().int % 1000, 0, 0)))
    garbage, remove = scene.catalog.garbage, scene.catalog.garbage.remove_deleted
    scene.catalog.topics._garbage = type(
        "Stopped", (), {"remove_deleted": lambda _self: 0}
    )()  # a process that died
    scene.catalog.topics.delete("t")
    assert scene.extents(topic) == []
    assert garbage.dead_files(2**62, 10) == []
    removed = [remove(2)]
    while removed[-1]:
        removed.append(remove(2))
    assert max(removed) <= 4
    assert len(garbage.dead_files(2**62, 10)) == 5


def test_settings_are_changed_one_by_one(scene: Scene) -> None:
    scene.topic("t", retention_ms="1000", cleanup_policy="compact")
    changed = scene.catalog.topics.alter_config("t", {"retention.ms": None, "segment.ms": "5"})
    assert changed.config.as_strings() == {"cleanup.policy": "compact", "segment.ms": "5"}
    assert scene.catalog.topics.get("t") == changed
    with pytest.raises(InvalidConfigError):
        scene.catalog.topics.alter_config("t", {"segment.ms": "0"})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "a b", "a\n", "x" * 250])
def test_names_that_kafka_refuses_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="use 1 to 249"):
        check_topic_name(name)


def test_names_that_kafka_takes_are_taken() -> None:
    for name in ("a", "_", "-", "...", "A.b-c_9", "x" * 249):
        check_topic_name(name)


@pytest.mark.parametrize("count", [0, -1, 100_001])
def test_partition_counts_are_bounded(scene: Scene, count: int) -> None:
    with pytest.raises(InvalidTopicError, match="choose a number from 1"):
        scene.topic(partitions=count)


def test_defaults_are_kafkas() -> None:
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
    ("name", "value", "says"),
    [
        ("cleanup.policy", "shred", "some of compact, delete"),
        ("cleanup.policy", "delete,", "some of compact, delete"),
        ("compression.gzip.level", "0", "a whole number from 1 to 9, or -1"),
        ("remote.log.copy.disable", "true", "use false: storage.mode decides"),
        ("remote.log.delete.on.disable", "true", "use false: retention and DeleteRecords"),
        ("leader.replication.throttled.replicas", "0", "partition:broker, separated by commas, or *"),
        ("follower.replication.throttled.replicas", "0:1,*", "partition:broker"),
        ("min.cleanable.dirty.ratio", "1.5", "a number from 0 to 1"),
        ("segment.bytes", "1", "a whole number from 1048576"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("retention.ms", "-2", "a whole number from -1"),
        ("retention.ms", "1_000", "a whole number from -1"),
        ("retention.ms", str(2**63), "a whole number from -1"),
        ("max.message.bytes", str(2**31), "a whole number from 0"),
        ("segment.bytes", "1e9", "a whole number from"),
        ("compression.type", "brotli", "one of uncompressed, zstd"),
        ("preallocate", "yes", "true or false"),
        ("retention.mss", "5", "did you mean retention.ms?"),
        ("colour", "5", "known settings are"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(name: str, value: str, says: str) -> None:
    with pytest.raises(InvalidConfigError, match=name.replace(".", r"\.")) as refused:
        TopicConfig.of({name: value})
    assert says in str(refused.value)
    assert refused.value.setting == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote.storage.enable", "false"),
        ("remote.storage.enable", "true"),
        ("remote.log.copy.disable", "false"),
        ("remote.log.delete.on.disable", "False"),
        ("leader.replication.throttled.replicas", ""),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1, 1:2"),
        ("compression.gzip.level", "-1"),
    ],
)
def test_what_asks_for_nothing_that_cannot_be_done_is_taken(name: str, value: str) -> None:
    assert TopicConfig.of({name: value}).text(name) == value


def test_remote_storage_of_a_topic_on_local_disks_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidConfigError, match=r"storage\.mode=object") as refused:
        TopicConfig.of({"storage.mode": "local", "remote.storage.enable": "true"})
    assert refused.value.setting == "remote.storage.enable"


def test_without_a_policy_everything_is_kept() -> None:
    config = TopicConfig.of({"cleanup.policy": ""})
    assert (config.cleanup_policy, config.compacts, config.deletes) == ("", False, False)


def test_changes_may_depend_on_what_was_set(scene: Scene) -> None:
    scene.topic("t", retention_ms="5", cleanup_policy="delete")
    altered = scene.catalog.topics.alter_config(
        "t", lambda config: {"retention.bytes": config.text("retention.ms"), "retention.ms": None}
    )
    assert altered.config.as_strings() == {"cleanup.policy": "delete", "retention.bytes": "5"}


def test_a_setting_that_was_valid_once_can_still_be_read(scene: Scene) -> None:
    """The rules of settings become stricter; what a topic has does not stop its retention."""
    topic = scene.topic("t")
    kept = Jsonb({"compression.gzip.level": "0", "cleanup.policy": "delete"})
    query = Query("keep", "", b"UPDATE topics SET config = %(kept)s")
    scene.catalog._database.transact("test", lambda t: t.count(query, {"kept": kept}))
    assert scene.catalog.topics.get("t").config.text("compression.gzip.level") == "0"
    assert scene.catalog.retention.expire([PartitionId(topic.topic_id, 0)]).extents == 0
    altered = scene.catalog.topics.alter_config("t", {"compression.gzip.level": None, "retention.ms": "1"})
    assert altered.config.retention_ms == 1


def test_lags_must_not_cross() -> None:
    with pytest.raises(InvalidConfigError, match="is above"):
        TopicConfig.of({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})


def test_both_policies_in_any_order() -> None:
    for text in ("delete, compact", "compact,delete", "COMPACT,delete"):
        config = TopicConfig.of({"cleanup.policy": text})
        assert (config.cleanup_policy, config.compacts, config.deletes) == ("compact,delete", True, True)


def test_a_policy_cannot_be_named_twice_and_is_read_where_it_was() -> None:
    twice = {"cleanup.policy": "COMPACT,delete,compact"}
    with pytest.raises(InvalidConfigError, match="twice"):
        TopicConfig.of(twice)
    assert TopicConfig.from_stored(twice).cleanup_policy == "compact,delete"


@given(
    st.sampled_from(sorted(TOPIC_SETTINGS)),
    st.text(max_size=12) | st.integers().map(str) | st.floats().map(str),
)
def test_any_value_is_taken_or_refused_by_name(name: str, text: str) -> None:
    wrong = None
    try:
        config = TopicConfig.of({name: text})
    except InvalidConfigError as refused:
        wrong = refused.setting
    else:
        assert config.text(name) == text
        assert config.with_changes({name: None}) == TopicConfig.of({})
    assert wrong in {None, name}


def test_a_topic_in_the_way_may_go_between_two_statements(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Transaction.rows
    answers: list[list[tuple[object, ...]]] = [[]]

    def rows_late(self: Transaction, query: Query, params: Mapping[str, object] | None = None) -> list[Row]:
        found = rows(self, query, params)
        return answers.pop() if answers else found

    monkeypatch.setattr(Transaction, "rows", rows_late)
    assert scene.topic("t").name == "t"
    assert [topic.name for topic in scene.catalog.topics.list()] == ["t"]


def test_the_remedy_fits_what_is_in_the_way(scene: Scene) -> None:
    scene.topic("a.b")
    with pytest.raises(TopicExistsError) as exists:
        scene.topic("a.b")
    assert "metric" not in str(exists.value.remedy)
    with pytest.raises(TopicExistsError) as collides:
        scene.topic("a_b")
    assert "metric" in str(collides.value.remedy)


def test_many_topics_are_made_together_or_each_is_told_why_not(scene: Scene) -> None:
    """In one transaction; of two names that collide in it one topic is made."""
    scene.topic("c.d")
    topics = scene.catalog.topics
    before = scene.catalog.operation_counts()["topics.create"].calls
    wanted = [
        NewTopic(name="b", partition_count=3, config={"cleanup.policy": "compact"}),
        NewTopic(name="c_d", partition_count=1),
        NewTopic(name="a/b", partition_count=1),
        NewTopic(name="a", partition_count=0),
        NewTopic(name="d", partition_count=1, config={"segment.ms": "0"}),
        NewTopic(name="e.f", partition_count=1),
        NewTopic(name="e_f", partition_count=1),
        NewTopic(name="a", partition_count=2),
    ]
    made = topics.create_many(wanted)
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


def test_two_who_make_the_same_topics_in_another_order_share_them(scene: Scene) -> None:
    """Neither waits for the other for ever, and each name is given once."""
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
