"""Kafka's cleanable ratio and its lags, with extents for segments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.model import Exactness
from planner.dirtiness import measure, takeable_extents
from tests.planner.model_log import NOW_MS, Chunk, ModelLog, topic_rules

if TYPE_CHECKING:
    from catalog.model import PartitionId


def one_partition(lengths_and_ages: list[tuple[int, int]], **rules: object) -> tuple[ModelLog, PartitionId]:
    log = ModelLog(rules=[topic_rules(0, **rules)])
    key = next(iter(log.extents))
    for length, age_ms in lengths_and_ages:
        log.append({key: Chunk(records=10, length=length, age_ms=age_ms)})
    return log, key


@pytest.mark.parametrize(
    ("clean", "dirty", "least", "due"),
    [
        (0, 100, 0.5, True),
        (100, 100, 0.5, False),  # Kafka wants more than the ratio, not as much
        (100, 101, 0.5, True),
        (100, 1, 0.0, True),
        (100, 0, 0.0, False),
        (0, 100, 1.0, False),  # never over 1
    ],
)
def test_the_ratio_must_be_greater_than_the_setting(clean: int, dirty: int, least: float, due: bool) -> None:
    log, key = one_partition([(clean, 0), (dirty, 0)], min_cleanable_dirty_ratio=least)
    log.first_dirty[key] = 10
    judged = measure(log.view(key), log.extents[key], NOW_MS)
    assert (judged.clean_bytes, judged.cleanable_bytes, judged.due) == (clean, dirty, due)


def test_a_topic_that_is_not_compacted_is_never_due() -> None:
    log, key = one_partition([(100, 0)], cleanup_policy="delete", min_cleanable_dirty_ratio=0.0)
    assert not measure(log.view(key), log.extents[key], NOW_MS, force=True).due


def test_force_makes_due_what_has_anything_cleanable() -> None:
    log, key = one_partition([(100, 0), (1, 0)])
    log.first_dirty[key] = 10
    assert not measure(log.view(key), log.extents[key], NOW_MS).due
    assert measure(log.view(key), log.extents[key], NOW_MS, force=True).due
    log.first_dirty[key] = 20
    assert not measure(log.view(key), log.extents[key], NOW_MS, force=True).due


@pytest.mark.parametrize(("age_ms", "overdue_ms"), [(1_000, 0), (1_001, 1), (5_000, 4_000)])
def test_max_compaction_lag_forces_what_has_waited_longer(age_ms: int, overdue_ms: int) -> None:
    log, key = one_partition([(1_000, 9_000), (1, age_ms)], max_compaction_lag_ms=1_000)
    log.first_dirty[key] = 10
    judged = measure(log.view(key), log.extents[key], NOW_MS)
    assert (judged.overdue_ms, judged.due) == (overdue_ms, overdue_ms > 0)


def test_records_without_a_timestamp_force_nothing() -> None:
    log, key = one_partition([(1_000, 0), (1, NOW_MS + 1)], max_compaction_lag_ms=1)
    log.first_dirty[key] = 10
    assert measure(log.view(key), log.extents[key], NOW_MS).overdue_ms == 0


def test_min_compaction_lag_holds_back_the_first_young_extent_and_all_after_it() -> None:
    log, key = one_partition([(10, 5_000), (10, 999), (10, 5_000)], min_compaction_lag_ms=1_000)
    assert takeable_extents(log.view(key), NOW_MS) == tuple(log.extents[key][:1])
    assert takeable_extents(log.view(key), NOW_MS + 1) == tuple(log.extents[key])


def test_min_compaction_lag_means_nothing_to_what_is_clean_or_never_compacted() -> None:
    log, key = one_partition([(10, 0)], min_compaction_lag_ms=1_000)
    log.first_dirty[key] = 10
    assert len(takeable_extents(log.view(key), NOW_MS)) == 1
    log, key = one_partition([(10, 0)], min_compaction_lag_ms=1_000, cleanup_policy="delete")
    assert len(takeable_extents(log.view(key), NOW_MS)) == 1


def test_nothing_is_taken_that_reaches_the_last_stable_offset() -> None:
    log, key = one_partition([(10, 0), (10, 0), (10, 0)])
    log.unstable[key] = 11  # the last stable offset is 19, within the second extent
    assert takeable_extents(log.view(key), NOW_MS) == tuple(log.extents[key][:1])


def test_a_first_dirty_offset_outside_the_log_falls_back_to_its_start() -> None:
    log, key = one_partition([(10, 0), (10, 0)])
    log.first_dirty[key] = 21
    assert measure(log.view(key), log.extents[key], NOW_MS).clean_bytes == 0


def test_while_an_exact_job_is_owed_nothing_is_clean() -> None:
    """It is due whatever the ratio asks for, but only as a whole: a part of it would make up for nothing."""
    log, key = one_partition([(100, 0), (100, 0), (1, 0)], min_cleanable_dirty_ratio=1.0)
    log.first_dirty[key] = 20
    owed = replace(log.view(key), exactness=Exactness.DEDUP_INCOMPLETE)
    given_up = replace(log.view(key), exactness=Exactness.DEDUP_IMPOSSIBLE)
    for count in (2, 3):
        judged = measure(owed, log.extents[key][:count], NOW_MS)
        assert judged.due
        assert judged.clean_bytes == 0
        assert not measure(given_up, log.extents[key][:count], NOW_MS).due
    part = measure(owed, log.extents[key][:1], NOW_MS, force=True)
    assert (part.cleanable_bytes, part.due) == (0, False)
