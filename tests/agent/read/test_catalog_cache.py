"""Cached bounds and extents, and when they are invalid."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from uuid import UUID

from agent.read.caches.catalog_cache import BoundsCache, ExtentCache
from catalog.model import Extent, FileKind, PartitionId, PartitionState, SectionResult
from core.clock import ManualClock

if TYPE_CHECKING:
    from agent.cluster.commits import CommittedFile

TOPIC = UUID(int=1)
ONE, TWO = PartitionId(TOPIC, 1), PartitionId(TOPIC, 2)


def _state(partition: int, high_watermark: int, log_start: int = 0) -> PartitionState:
    return PartitionState(
        topic_id=TOPIC,
        partition=partition,
        log_start_offset=log_start,
        last_stable_offset=high_watermark,
        high_watermark=high_watermark,
        log_end_offset=high_watermark,
        first_dirty_offset=0,
        leader_epoch=0,
    )


def _commit(
    bounds: BoundsCache, high_watermark: int, log_start: int = 0, *, has_transactions: bool = False
) -> None:
    result = SectionResult(
        topic_id=TOPIC,
        partition=1,
        log_start_offset=log_start,
        high_watermark=high_watermark,
        leader_epoch=0,
        runs=(),
        has_transactions=has_transactions,
    )
    bounds.committed(cast("CommittedFile", None), [result])


def _bounds(limit: int = 10) -> tuple[BoundsCache, ManualClock]:
    clock = ManualClock()
    return BoundsCache(clock, ttl_ms=1000, limit=limit), clock


def _look_up(bounds: BoundsCache, *states: PartitionState) -> None:
    with bounds.lookup(PartitionId(state.topic_id, state.partition) for state in states) as undisturbed:
        bounds.store(states, undisturbed)


def test_bounds_expire_and_own_commits_do_not_prolong_them() -> None:
    bounds, clock = _bounds()
    _look_up(bounds, _state(1, 5))
    clock.advance(0.9)
    _commit(bounds, 8, log_start=2)
    assert bounds.get(ONE) == _state(1, 8, 2)
    clock.advance(0.2)
    assert bounds.get(ONE) is None


def test_an_own_commit_to_a_partition_with_transactions_keeps_the_last_stable_offset() -> None:
    """Only the catalog knows where it is now."""
    bounds, _ = _bounds()
    _look_up(bounds, _state(1, 5))
    _commit(bounds, 8, has_transactions=True)
    state = bounds.get(ONE)
    assert state is not None
    assert (state.last_stable_offset, state.high_watermark, state.has_transactions) == (5, 8, True)


def test_an_own_commit_below_the_cached_bounds_changes_nothing() -> None:
    bounds, _ = _bounds()
    _look_up(bounds, _state(1, 9))
    _commit(bounds, 7)
    assert bounds.get(ONE) == _state(1, 9)


def test_invalidated_bounds_are_gone() -> None:
    bounds, _ = _bounds()
    _look_up(bounds, _state(1, 5), _state(2, 6))
    bounds.invalidate([ONE])
    assert (bounds.get(ONE), bounds.get(TWO)) == (None, _state(2, 6))
    bounds.invalidate_all()
    assert bounds.get(TWO) is None


def test_the_result_of_an_overtaken_lookup_is_not_cached() -> None:
    """The result may or may not include a commit that is announced during the lookup."""
    for overtake in (
        lambda bounds: bounds.invalidate([ONE]),
        lambda bounds: bounds.invalidate_all(),
        lambda bounds: _commit(bounds, 6),
    ):
        bounds, _ = _bounds()
        with bounds.lookup([ONE]) as undisturbed:
            overtake(bounds)
            bounds.store([_state(1, 5)], undisturbed)
        assert bounds.get(ONE) is None


def test_concurrent_lookups_of_the_same_partitions_are_distinct() -> None:
    """A lookup that ends first does not affect the other one, whose result is overtaken."""
    bounds, _ = _bounds()
    with bounds.lookup([ONE]) as later:
        with bounds.lookup([ONE]) as earlier:
            bounds.store([_state(1, 5)], earlier)
        bounds.invalidate([ONE])
        bounds.store([_state(1, 5)], later)
    assert bounds.get(ONE) is None


def test_the_least_recently_used_bounds_are_evicted_first() -> None:
    bounds, _ = _bounds(limit=2)
    _look_up(bounds, _state(1, 5), _state(2, 5))
    bounds.get(ONE)
    _look_up(bounds, _state(3, 5))
    assert (bounds.get(ONE) is None, bounds.get(TWO) is None) == (False, True)


def _extents(*bases: int) -> list[Extent]:
    first = Extent(
        topic_id=TOPIC,
        partition=1,
        base_offset=0,
        last_offset=9,
        record_count=10,
        min_timestamp=0,
        max_timestamp=0,
        file_id=UUID(int=3),
        object_name="o",
        file_kind=FileKind.INGESTION,
        position=0,
        length=100,
        index_position=0,
        index_length=0,
        offset_shift=0,
        leader_epoch=0,
        unique_keys=False,
        committed_ms=0,
    )
    return [first._replace(base_offset=base, last_offset=base + 9) for base in bases]


def test_extents_are_returned_from_the_one_that_covers_the_offset() -> None:
    known = ExtentCache(ManualClock(), ttl_ms=1000, limit=10)
    extents = _extents(10, 20, 30)
    known.store(ONE, extents, 0.0)
    assert known.get(ONE, 10) == extents
    assert known.get(ONE, 29) == extents[1:]
    for outside in (9, 40):
        assert known.get(ONE, outside) == ()
    assert known.get(TWO, 10) == ()


def test_extents_expire_counted_from_the_start_of_the_lookup() -> None:
    clock = ManualClock()
    known = ExtentCache(clock, ttl_ms=1000, limit=10)
    begun = clock.monotonic()
    clock.advance(0.6)
    known.store(ONE, _extents(0), begun)
    clock.advance(0.3)
    assert known.get(ONE, 0)
    clock.advance(0.2)
    assert known.get(ONE, 0) == ()


def test_extents_are_bounded_in_number_over_all_partitions() -> None:
    known = ExtentCache(ManualClock(), ttl_ms=1000, limit=3)
    known.store(ONE, _extents(0, 10), 0.0)
    known.store(TWO, _extents(0, 10), 0.0)
    assert (known.get(ONE, 0), len(known.get(TWO, 0))) == ((), 2)
    known.invalidate(TWO)
    known.store(ONE, _extents(0, 10, 20), 0.0)
    assert len(known.get(ONE, 0)) == 3
