"""Timestamps that producers give: each record is judged for itself, and those at fault are named."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.cluster.errors import InvalidRecordError
from agent.kafka.fast_path.produce import _Known
from agent.write.validation import NO_TIMESTAMP, AppendRules, judge_batches
from catalog.config.topic_config import TopicConfig
from catalog.model import Topic
from object_format.codecs.codec import Codec
from object_format.record_batch.records import encode_batch
from object_format.record_batch.validation import MAX_RECORDS_REPORTED

_NOW_MS, _BEFORE_MS, _AFTER_MS = 1_000_000, 1_000, 500
_FOR_EVER_MS = 2**63 - 1
_NEAR = st.integers(_NOW_MS - _BEFORE_MS - 3, _NOW_MS + _AFTER_MS + 3)
_TIMESTAMPS = st.lists(st.one_of(st.just(NO_TIMESTAMP), st.just(0), _NEAR), min_size=1, max_size=6)
_LIMITS = st.sampled_from([_BEFORE_MS, _FOR_EVER_MS])


def records(timestamps: list[int], codec: Codec = Codec.NONE) -> bytes:
    nothing = [b"" for _ in timestamps]
    return encode_batch(timestamps=timestamps, keys=nothing, values=nothing, codec=codec)


def rules(before_ms: int, after_ms: int = _AFTER_MS, kind: str = "CreateTime") -> AppendRules:
    return AppendRules.of(
        TopicConfig.of(
            {
                "message.timestamp.before.max.ms": str(before_ms),
                "message.timestamp.after.max.ms": str(after_ms),
                "message.timestamp.type": kind,
            }
        )
    )


def at_fault(timestamps: list[int], before_ms: int, after_ms: int = _AFTER_MS) -> list[int]:
    """As Kafka's LogValidator judges one record after the other."""
    return [
        index
        for index, each in enumerate(timestamps)
        if each != NO_TIMESTAMP and not _NOW_MS - before_ms <= each <= _NOW_MS + after_ms
    ]


def refused(data: bytes, given_rules: AppendRules) -> list[tuple[int, int]]:
    """The batches and records at fault; none where they are taken."""
    try:
        judge_batches("t-0", data, given_rules, now_ms=_NOW_MS)
    except InvalidRecordError as error:
        return [
            (batch, index) for batch, index, _ in error.record_errors if error.code == "INVALID_TIMESTAMP"
        ]
    return []


@given(_TIMESTAMPS, _LIMITS, _LIMITS, st.sampled_from([Codec.NONE, Codec.GZIP]))
@example([NO_TIMESTAMP, 0], _BEFORE_MS, _FOR_EVER_MS, Codec.NONE)
@example([NO_TIMESTAMP, NO_TIMESTAMP], _BEFORE_MS, _BEFORE_MS, Codec.NONE)
def test_each_record_is_judged_for_itself(
    timestamps: list[int], before_ms: int, after_ms: int, codec: Codec
) -> None:
    """One without a timestamp hides none that is too old; the batch in front of it is not to blame."""
    expected = at_fault(timestamps, before_ms, after_ms)
    data = records([_NOW_MS]) + records(timestamps, codec)
    assert refused(data, rules(before_ms, after_ms)) == [(1, index) for index in expected]


@given(_TIMESTAMPS, _LIMITS)
def test_the_short_way_takes_no_batch_that_has_a_record_at_fault(
    timestamps: list[int], before_ms: int
) -> None:
    """What it cannot be sure of goes the long way, which looks at each record."""
    topic = Topic(topic_id=UUID(int=1), name="t", partition_count=1, config=TopicConfig.of({}), created_ms=0)
    known = _Known(
        name=b"t",
        topic=topic,
        partitions=1,
        most_bytes=1000,
        require_keys=False,
        earliest=_NOW_MS - before_ms,
        latest=_NOW_MS + _AFTER_MS,
    )
    takes = known.takes(min(timestamps), max(timestamps))
    assert not (takes and at_fault(timestamps, before_ms))
    assert takes or at_fault(timestamps, before_ms) or NO_TIMESTAMP in timestamps


def test_a_thousand_records_at_fault_are_named() -> None:
    """Their words say what would be taken."""
    count = MAX_RECORDS_REPORTED + 5
    with pytest.raises(InvalidRecordError, match=f"has {count} records with timestamps too far") as error:
        judge_batches("t-0", records([7] * count), rules(_BEFORE_MS), now_ms=_NOW_MS)
    assert len(error.value.record_errors) == MAX_RECORDS_REPORTED
    assert error.value.record_errors[0] == (0, 0, "its timestamp 7 is not from 999000 to 1000500")


def test_where_the_agent_gives_the_time_none_is_at_fault() -> None:
    assert refused(records([NO_TIMESTAMP, 0]), rules(_BEFORE_MS, kind="LogAppendTime")) == []
