"""Kafka's cleanable ratio and compaction lags, with extents in place of segments."""

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
    ("clean", "dirty", "min_ratio", "due"),
    [
        (0, 100, 0.5, True),
        (100, 100, 0.5, False),  # the ratio must be greater, as in Kafka
        (100, 101, 0.5, True),
        (100, 1, 0.0, True),
        (100, 0, 0.0, False),
        (0, 100, 1.0, False),  # a ratio is never above 1
    ],
)
def test_the_ratio_must_be_greater_than_the_setting(
    clean: int, dirty: int, min_ratio: float, due: bool
) -> None:
    log, key = one_partition([(clean, 0), (dirty, 0)], min_cleanable_dirty_ratio=min_ratio)
    log.first_dirty[key] = 10
    measured = measure(log.view(key), log.extents[key], NOW_MS)
    assert (measured.clean_bytes, measured.cleanable_bytes, measured.due) == (clean, dirty, due)
    assert measured.ratio == pytest.approx(dirty / (clean + dirty))


def test_a_topic_without_compaction_is_never_due() -> None:
    log, key = one_partition([(100, 0)], cleanup_policy="delete", min_cleanable_dirty_ratio=0.0)
    assert not measure(log.view(key), log.extents[key], NOW_MS, force=True).due


def test_force_makes_partitions_with_cleanable_bytes_due() -> None:
    log, key = one_partition([(100, 0), (1, 0)])
    log.first_dirty[key] = 10
    assert not measure(log.view(key), log.extents[key], NOW_MS).due
    assert measure(log.view(key), log.extents[key], NOW_MS, force=True).due
    log.first_dirty[key] = 20
    assert not measure(log.view(key), log.extents[key], NOW_MS, force=True).due


@pytest.mark.parametrize(("age_ms", "overdue_ms"), [(1_000, 0), (1_001, 1), (5_000, 4_000)])
def test_max_compaction_lag_forces_a_cleaning(age_ms: int, overdue_ms: int) -> None:
    log, key = one_partition([(1_000, 9_000), (1, age_ms)], max_compaction_lag_ms=1_000)
    log.first_dirty[key] = 10
    measured = measure(log.view(key), log.extents[key], NOW_MS)
    assert (measured.overdue_ms, measured.due) == (overdue_ms, overdue_ms > 0)


@pytest.mark.parametrize(("timestamp", "overdue_ms"), [(-1, 0), (0, 0), (1, NOW_MS - 2)])
def test_records_without_a_positive_timestamp_force_no_cleaning(timestamp: int, overdue_ms: int) -> None:
    log, key = one_partition([(1_000, 0), (1, NOW_MS - timestamp)], max_compaction_lag_ms=1)
    log.first_dirty[key] = 10
    assert measure(log.view(key), log.extents[key], NOW_MS).overdue_ms == overdue_ms


def test_min_compaction_lag_excludes_the_first_young_extent_and_later_ones() -> None:
    log, key = one_partition([(10, 5_000), (10, 999), (10, 5_000)], min_compaction_lag_ms=1_000)
    assert takeable_extents(log.view(key), NOW_MS) == tuple(log.extents[key][:1])
    assert takeable_extents(log.view(key), NOW_MS + 1) == tuple(log.extents[key])


def test_min_compaction_lag_counts_from_the_youngest_record_of_an_extent() -> None:
    """An extent with one young record is not taken, however old its other records are."""
    log, key = one_partition([], min_compaction_lag_ms=1_000)
    for age_ms in (5_000, 1_000):
        log.append({key: Chunk(records=10, length=10, age_ms=age_ms - 1, span_ms=9_000)})
    assert takeable_extents(log.view(key), NOW_MS) == tuple(log.extents[key][:1])
    assert takeable_extents(log.view(key), NOW_MS + 1) == tuple(log.extents[key])


def test_max_compaction_lag_counts_from_the_oldest_record_of_an_extent() -> None:
    log, key = one_partition([(1_000, 9_000)], max_compaction_lag_ms=1_000)
    log.first_dirty[key] = 10
    log.append({key: Chunk(records=10, length=1, age_ms=0, span_ms=5_000)})
    assert measure(log.view(key), log.extents[key], NOW_MS).overdue_ms == 4_000


def test_min_compaction_lag_excludes_a_young_extent_that_is_clean_in_part() -> None:
    log, key = one_partition([(10, 5_000), (10, 0)], min_compaction_lag_ms=1_000)
    log.first_dirty[key] = 15
    assert takeable_extents(log.view(key), NOW_MS) == tuple(log.extents[key][:1])


def test_the_shortest_min_compaction_lag_excludes_records_of_this_millisecond() -> None:
    log, key = one_partition([(10, 1), (10, 0)], min_compaction_lag_ms=1)
    assert takeable_extents(log.view(key), NOW_MS) == tuple(log.extents[key][:1])


def test_min_compaction_lag_does_not_affect_clean_or_uncompacted_data() -> None:
    log, key = one_partition([(10, 0)], min_compaction_lag_ms=1_000)
    log.first_dirty[key] = 10
    assert len(takeable_extents(log.view(key), NOW_MS)) == 1
    log, key = one_partition([(10, 0)], min_compaction_lag_ms=1_000, cleanup_policy="delete")
    assert len(takeable_extents(log.view(key), NOW_MS)) == 1


def test_extents_at_the_last_stable_offset_are_not_taken() -> None:
    log, key = one_partition([(10, 0), (10, 0), (10, 0)])
    log.unstable[key] = 11  # the last stable offset is 19, within the second extent
    assert takeable_extents(log.view(key), NOW_MS) == tuple(log.extents[key][:1])


def test_a_first_dirty_offset_outside_the_log_means_its_start() -> None:
    log, key = one_partition([(10, 0), (10, 0)])
    log.first_dirty[key] = 21
    assert measure(log.view(key), log.extents[key], NOW_MS).clean_bytes == 0


@pytest.mark.parametrize(("first_dirty", "covers"), [(19, True), (20, True), (21, False)])
def test_an_exact_job_covers_what_the_inexact_one_took(first_dirty: int, *, covers: bool) -> None:
    """The extents end at offset 20."""
    log, key = one_partition([(100, 0), (100, 0), (1, 0)], min_cleanable_dirty_ratio=1.0)
    log.first_dirty[key] = first_dirty
    incomplete = replace(log.view(key), exactness=Exactness.DEDUP_INCOMPLETE)
    assert measure(incomplete, log.extents[key][:2], NOW_MS).due is covers
    assert not measure(incomplete, (), NOW_MS).due


def test_nothing_is_clean_while_deduplication_is_incomplete() -> None:
    """The partition is due at any ratio, but only as a whole."""
    log, key = one_partition([(100, 0), (100, 0), (1, 0)], min_cleanable_dirty_ratio=1.0)
    log.first_dirty[key] = 20
    incomplete = replace(log.view(key), exactness=Exactness.DEDUP_INCOMPLETE)
    impossible = replace(log.view(key), exactness=Exactness.DEDUP_IMPOSSIBLE)
    for count in (2, 3):
        measured = measure(incomplete, log.extents[key][:count], NOW_MS)
        assert measured.due
        assert measured.clean_bytes == 0
        assert not measure(impossible, log.extents[key][:count], NOW_MS).due
    part = measure(incomplete, log.extents[key][:1], NOW_MS, force=True)
    assert (part.cleanable_bytes, part.due) == (0, False)
