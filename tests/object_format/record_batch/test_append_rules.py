"""Validation of a producer's timestamps: each record is checked, and the rejected ones are listed."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from object_format.codecs.codec import Codec
from object_format.errors import InvalidRecordError, RejectionReason
from object_format.record_batch.append_rules import NO_TIMESTAMP, AppendRules, validate_append
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


def rules(before_ms: int, after_ms: int = _AFTER_MS, *, append_time: bool = False) -> AppendRules:
    return AppendRules(
        require_keys=False,
        max_message_bytes=1_000_000,
        append_time=append_time,
        before_max_ms=before_ms,
        after_max_ms=after_ms,
    )


def expected_rejections(timestamps: list[int], before_ms: int, after_ms: int = _AFTER_MS) -> list[int]:
    """Check one record after the other, as Kafka's LogValidator does."""
    return [
        index
        for index, each in enumerate(timestamps)
        if each != NO_TIMESTAMP and not _NOW_MS - before_ms <= each <= _NOW_MS + after_ms
    ]


def rejected(data: bytes, given_rules: AppendRules) -> list[tuple[int, int]]:
    """Return the rejected batches and records."""
    try:
        validate_append("t-0", data, given_rules, now_ms=_NOW_MS)
    except InvalidRecordError as error:
        return [
            (batch, index)
            for batch, index, _ in error.record_errors
            if error.reason is RejectionReason.INVALID_TIMESTAMP
        ]
    return []


@given(_TIMESTAMPS, _LIMITS, _LIMITS, st.sampled_from([Codec.NONE, Codec.GZIP]))
@example([NO_TIMESTAMP, 0], _BEFORE_MS, _FOR_EVER_MS, Codec.NONE)
@example([NO_TIMESTAMP, NO_TIMESTAMP], _BEFORE_MS, _BEFORE_MS, Codec.NONE)
def test_each_timestamp_is_checked(
    timestamps: list[int], before_ms: int, after_ms: int, codec: Codec
) -> None:
    """A record without a timestamp hides no other one, and the valid batch before it is not reported."""
    expected = expected_rejections(timestamps, before_ms, after_ms)
    data = records([_NOW_MS]) + records(timestamps, codec)
    assert rejected(data, rules(before_ms, after_ms)) == [(1, index) for index in expected]


@given(_TIMESTAMPS, _LIMITS, _LIMITS)
def test_a_range_of_accepted_timestamps_has_no_rejected_one(
    timestamps: list[int], before_ms: int, after_ms: int
) -> None:
    """A range is rejected without cause only if some records have no timestamp."""
    limits = rules(before_ms, after_ms).limits_at(_NOW_MS)
    rejections = expected_rejections(timestamps, before_ms, after_ms)
    is_accepted = limits.accepts_timestamps(min(timestamps), max(timestamps))
    assert not (is_accepted and rejections)
    assert is_accepted or rejections or NO_TIMESTAMP in timestamps


def test_at_most_a_thousand_rejected_records_are_listed() -> None:
    """Each entry gives the allowed range."""
    count = MAX_RECORDS_REPORTED + 5
    with pytest.raises(InvalidRecordError, match=f"has {count} records with timestamps too far") as error:
        validate_append("t-0", records([7] * count), rules(_BEFORE_MS), now_ms=_NOW_MS)
    assert len(error.value.record_errors) == MAX_RECORDS_REPORTED
    assert error.value.record_errors[0] == (0, 0, "its timestamp 7 is not from 999000 to 1000500")


def test_any_timestamp_is_accepted_with_log_append_time() -> None:
    assert rejected(records([NO_TIMESTAMP, 0]), rules(_BEFORE_MS, append_time=True)) == []
