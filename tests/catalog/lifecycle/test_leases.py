"""Leases of periodic tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.lifecycle.leases import Lease
from core.clock import ManualClock

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


def test_one_process_holds_a_lease_until_it_ends(catalog: Catalog, clock: Clock, ids: Ids) -> None:
    assert isinstance(clock, ManualClock)
    first, second = ids.new_uuid(), ids.new_uuid()
    leases = catalog.leases
    held, free = (Lease(is_held=each, success_age_ms=None) for each in (True, False))
    assert leases.acquire("retention", first, 10_000) == held
    assert leases.acquire("retention", second, 10_000) == free
    assert leases.acquire("orphans", second, 10_000) == held
    clock.advance(9)
    assert leases.renew("retention", first, 10_000)
    clock.advance(9)
    assert leases.acquire("retention", second, 10_000) == free
    clock.advance(1)
    assert leases.acquire("retention", second, 10_000) == held
    assert not leases.renew("retention", first, 10_000)
    assert leases.acquire("retention", first, 10_000) == free


def test_a_released_lease_is_free_at_once(catalog: Catalog, ids: Ids) -> None:
    first, second = ids.new_uuid(), ids.new_uuid()
    for name in ("retention", "orphans"):
        assert catalog.leases.acquire(name, first, 10_000).is_held
    catalog.leases.release(first)
    for name in ("retention", "orphans"):
        assert catalog.leases.acquire(name, second, 10_000).is_held
    catalog.leases.release(first)
    assert not catalog.leases.acquire("retention", first, 10_000).is_held


def test_every_process_sees_the_age_of_the_last_success(catalog: Catalog, clock: Clock, ids: Ids) -> None:
    assert isinstance(clock, ManualClock)
    first, second = ids.new_uuid(), ids.new_uuid()
    catalog.leases.acquire("retention", first, 10_000)
    catalog.leases.record_success("retention")
    clock.advance(3)
    assert catalog.leases.acquire("retention", second, 10_000) == Lease(is_held=False, success_age_ms=3_000)


def test_a_clock_that_steps_back_does_not_prolong_the_lease_of_a_dead_process(
    catalog: Catalog, clock: Clock, ids: Ids
) -> None:
    """A failover to a server whose clock is behind would leave the task undone for the difference."""
    assert isinstance(clock, ManualClock)
    dead, living = ids.new_uuid(), ids.new_uuid()
    clock.advance(3600)
    assert catalog.leases.acquire("retention", dead, 10_000).is_held
    clock._start_ms -= 5_000
    assert not catalog.leases.acquire("retention", living, 10_000).is_held
    clock._start_ms -= 3_000_000
    assert catalog.leases.acquire("retention", living, 10_000).is_held
