"""Validation of a producer's timestamps: each record is checked, and the rejected ones are listed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from object_format.codecs.codec import Codec
from object_format.errors import InvalidRecordError, RejectionReason
from object_format.record_batch.append_rules import NO_TIMESTAMP, AppendLimits, AppendRules, validate_append
from object_format.record_batch.records import Record, encode_batch
from object_format.record_batch.validation import MAX_RECORDS_REPORTED
from tests.object_format import model

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


@pytest.mark.parametrize(
    ("lowest", "highest", "accepted"),
    [
        (1, 9, True),
        (0, 9, False),
        (1, 10, False),
        (NO_TIMESTAMP, 9, False),  # the oldest record with a timestamp may have 0
        (NO_TIMESTAMP, NO_TIMESTAMP, True),
    ],
)
def test_the_borders_of_accepted_timestamps(lowest: int, highest: int, *, accepted: bool) -> None:
    limits = AppendLimits(require_keys=False, max_message_bytes=0, earliest=1, latest=9)
    assert limits.accepts_timestamps(lowest, highest) is accepted
    assert limits._replace(earliest=0).accepts_timestamps(NO_TIMESTAMP, 9)


def test_a_batch_may_be_as_long_as_the_topic_allows() -> None:
    short, long = records([_NOW_MS]), records([_NOW_MS] * 2)
    allowed = replace(rules(_BEFORE_MS), max_message_bytes=len(long))
    assert len(validate_append("t-0", short + long, allowed, now_ms=_NOW_MS)[1]) == 2

    forbidden = replace(allowed, max_message_bytes=len(long) - 1)
    with pytest.raises(InvalidRecordError, match=f"batch 1 for t-0 has {len(long)} bytes") as error:
        validate_append("t-0", short + long, forbidden, now_ms=_NOW_MS)
    assert error.value.reason is RejectionReason.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("read_only", [True, False])
def test_a_wrong_max_timestamp_is_corrected_in_its_header(*, read_only: bool) -> None:
    """Other batches stay as they are, and so does a buffer that cannot be written."""
    right = model.batch_of([Record(0, _NOW_MS, b"k", b"v")])
    wrong = replace(right, max_timestamp=_NOW_MS + 7)
    sent = bytearray(b"".join(map(model.encode, (right, wrong, right))))
    before = bytes(sent)

    corrected, summaries = validate_append(
        "t-0", before if read_only else sent, rules(_BEFORE_MS), now_ms=_NOW_MS
    )

    assert corrected == model.encode(right) * 3
    assert (sent == before) == read_only
    assert [each.max_timestamp for each in summaries] == [_NOW_MS] * 3


def test_log_append_time_replaces_the_timestamps_of_each_batch() -> None:
    data = records([3, 4]) + records([5])

    stamped, summaries = validate_append("t-0", data, rules(_BEFORE_MS, append_time=True), now_ms=_NOW_MS)

    assert [(each.min_timestamp, each.max_timestamp) for each in summaries] == [(_NOW_MS, _NOW_MS)] * 2
    batches = model.decode_all(bytes(stamped))
    assert [[record.timestamp for record in batch.records] for batch in batches] == [[_NOW_MS] * 2, [_NOW_MS]]


def test_records_without_a_key_are_listed_if_keys_are_required() -> None:
    data = records([_NOW_MS]) + encode_batch([_NOW_MS] * 3, [None, b"k", None], [b"v"] * 3)

    with pytest.raises(InvalidRecordError, match="records for t-0 are rejected: batch 1: ") as error:
        validate_append("t-0", data, replace(rules(_BEFORE_MS), require_keys=True), now_ms=_NOW_MS)

    assert error.value.reason is RejectionReason.INVALID_RECORD
    assert [entry[:2] for entry in error.value.record_errors] == [(1, 0), (1, 2)]
