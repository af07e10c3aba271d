"""Effects of a topic's rules on extents."""

from __future__ import annotations

import pytest

from tests.planner.model_log import NOW_MS, topic_rules


@pytest.mark.parametrize(
    ("policy", "retention_ms", "expires_after_ms"),
    [
        ("delete", 0, 0),
        ("delete", 5, 5),
        ("delete", -1, None),
        ("compact,delete", 5, 5),
        ("compact", 5, None),
    ],
)
def test_records_expire_by_age_only_with_a_limit(
    policy: str, retention_ms: int, expires_after_ms: int | None
) -> None:
    """A limit of 0 is one: such records expire at once."""
    assert (
        topic_rules(0, cleanup_policy=policy, retention_ms=retention_ms).expires_after_ms == expires_after_ms
    )


@pytest.mark.parametrize(
    ("policy", "lag_ms", "cleanable_after_ms"),
    [
        ("compact", 1, 1),
        ("compact,delete", 5, 5),
        ("compact", 0, None),
        ("compact", -1, None),
        ("delete", 5, None),
    ],
)
def test_records_of_a_compacted_topic_are_cleaned_after_a_positive_lag(
    policy: str, lag_ms: int, cleanable_after_ms: int | None
) -> None:
    """Without one, even records of the future may be cleaned."""
    rules = topic_rules(0, cleanup_policy=policy, min_compaction_lag_ms=lag_ms)
    assert rules.cleanable_after_ms == cleanable_after_ms


def test_an_extent_delays_its_oldest_record_by_a_quarter_at_most() -> None:
    expiring = topic_rules(0, cleanup_policy="delete", retention_ms=4_000)
    lagging = topic_rules(0, min_compaction_lag_ms=4_000)
    for rules in (expiring, lagging):
        assert not rules.spans_too_long(NOW_MS - 1_000, NOW_MS, NOW_MS)
        assert rules.spans_too_long(NOW_MS - 1_001, NOW_MS, NOW_MS)
    assert not lagging.spans_too_long(0, NOW_MS - 4_000, NOW_MS)


def test_records_of_the_future_do_not_limit_extents_without_a_limit() -> None:
    """Producers set timestamps as they like."""
    for rules in (topic_rules(0), topic_rules(0, cleanup_policy="delete")):
        assert not rules.spans_too_long(0, NOW_MS + 1, NOW_MS)
