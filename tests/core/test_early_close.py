"""The budget of early closes, and what the rule learns from arrivals."""

from __future__ import annotations

import math

import pytest

from core.early_close import EarlyCloseLimits, EarlyCloseRule, PutBudget

KIB = 1024


def limits(**changes: float) -> EarlyCloseLimits:
    usual: dict[str, float] = {
        "min_bytes": 64 * KIB,
        "overlap_bytes": 1024 * KIB,
        "max_files": 4,
        "min_idle_seconds": 0.002,
        "max_idle_seconds": 0.25,
        "puts_per_second": 100,
        "puts_per_gb": math.inf,
    }
    return EarlyCloseLimits(**{**usual, **changes})  # type: ignore[arg-type]  # the sizes are whole numbers


def send(rule: EarlyCloseRule, *requests: tuple[float, int], producer: int | None = None) -> None:
    """Let requests of (time, size) arrive, all for the same file."""
    size = 0
    for now, each in requests:
        size += each
        rule.arrived(now, size, each, producer)


def test_the_budget_bounds_puts_per_second() -> None:
    budget = PutBudget(2, math.inf, 10.0)

    def spend(now: float) -> None:
        assert budget.available_at(now) == now
        budget.spend(now)
        budget.add_bytes(1)

    spend(10.0)
    spend(10.0)
    assert budget.available_at(10.0) == 10.5
    spend(10.5)
    assert budget.available_at(10.75) == 11.0
    spend(99.0)
    spend(99.0)
    assert budget.available_at(99.0) == 99.5, "at most the PUTs of a second are saved up"


def test_the_budget_bounds_puts_per_gigabyte() -> None:
    budget = PutBudget(2, 1000, 0.0)
    budget.spend(0.0)
    budget.spend(1.0)
    assert budget.available_at(100.0) is None, "time adds no bytes"
    budget.add_bytes(999_999)
    assert budget.available_at(100.0) is None
    budget.add_bytes(1)
    assert budget.available_at(100.0) == 100.0


def test_a_small_file_is_closed_early_only_if_it_has_a_batch_of_a_transaction() -> None:
    """The transaction cannot commit before its records are acknowledged. The next file is judged again."""
    rule = EarlyCloseRule(limits(), 0.0)
    rule.arrived(1.0, 100, 100, 1)
    assert rule.due_at(1.0, 0) is None
    rule.arrived(1.001, 200, 100, 2, is_transactional=True)
    assert rule.due_at(1.001, 0) == 1.001 + rule.idle_seconds
    rule.arrived(1.002, 300, 100, 1)
    assert rule.due_at(1.002, 0) is not None
    assert rule.take(2.0, 0)
    rule.closed(300)
    rule.arrived(3.0, 100, 100, 1)
    assert rule.due_at(3.0, 0) is None


@pytest.mark.parametrize(("per_second", "per_gb"), [(0, 1000), (100, 0), (0, math.inf), (0, 0)])
def test_a_budget_of_zero_closes_nothing_early(per_second: float, per_gb: float) -> None:
    budget = PutBudget(per_second, per_gb, 0.0)
    budget.add_bytes(10**12)
    assert budget.available_at(1000.0) is None


def test_the_file_of_a_stalled_producer_is_due_at_its_fifth_request() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    send(rule, *[(0.0, 16 * KIB)] * 4, producer=7)
    assert rule.due_at(0.0, 0) == 0.002, "it may send one more"
    rule.arrived(0.001, 80 * KIB, 16 * KIB, 7)
    assert rule.has_stalled_producers()
    assert rule.due_at(0.001, 0) == 0.001


def test_a_producer_of_many_bytes_counts_as_stalled_at_its_third_request() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    send(rule, *[(0.0, 400 * KIB)] * 2, producer=7)
    assert not rule.has_stalled_producers()
    rule.arrived(0.0, 1200 * KIB, 400 * KIB, 7)
    assert rule.has_stalled_producers()


def test_a_producer_with_a_response_is_no_longer_stalled() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    send(rule, *[(0.0, 32 * KIB)] * 2, producer=7)
    rule.closed(64 * KIB)
    send(rule, *[(0.001, 32 * KIB)] * 3, producer=7)
    assert rule.has_stalled_producers(), "two requests are in flight, three are in the open file"
    rule.acknowledged(0.002, 64 * KIB, {7: 2})
    assert not rule.has_stalled_producers()
    rule.arrived(0.002, 128 * KIB, 32 * KIB, 7)
    rule.arrived(0.002, 160 * KIB, 32 * KIB, 7)
    assert rule.has_stalled_producers()


def test_half_of_the_bytes_must_be_of_stalled_producers() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    send(rule, *[(0.0, 20 * KIB)] * 5, producer=7)
    rule.arrived(0.0, 200 * KIB, 100 * KIB, None)
    assert rule.has_stalled_producers()
    rule.arrived(0.0, 201 * KIB, KIB, None)
    assert not rule.has_stalled_producers()


def test_a_file_below_the_minimum_size_is_never_due() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    send(rule, *[(0.0, 13 * KIB)] * 4, (0.0, 12 * KIB - 1), producer=7)
    assert rule.has_stalled_producers()
    assert rule.due_at(0.0, 0) is None
    assert rule.due_at(0.2, 0) is None


def test_a_file_is_not_due_while_others_are_in_flight() -> None:
    """Some may be in flight if producers are stalled, none otherwise."""
    rule = EarlyCloseRule(limits(max_files=3), 0.0)
    send(rule, (0.0, 100 * KIB), producer=7)
    assert rule.due_at(0.0, 0) == 0.002
    assert rule.due_at(0.0, 1) is None
    for number in range(2, 6):
        rule.arrived(0.0, 100 * KIB * number, 100 * KIB, 7)
    assert rule.due_at(0.0, 2) == 0.0
    assert rule.due_at(0.0, 3) is None


@pytest.mark.parametrize(("put_seconds", "times"), [(0.004, 0.8), (0.010, 2), (0.3, 60)])
def test_the_bytes_in_flight_are_bounded_by_those_of_the_open_file(put_seconds: float, times: float) -> None:
    """If files are equal, one is committed while the others are uploaded."""
    rule = EarlyCloseRule(limits(), 0.0)
    rule.arrived(0.0, 0, 400 * KIB, None)
    rule.closed(int(times * 1000 * KIB))
    send(rule, *[(0.0, 200 * KIB)] * 4, producer=7)
    rule.arrived(0.0, 999 * KIB, 199 * KIB, 7)
    assert rule.due_at(0.0, 1) == 0.0, "nothing is learnt yet"
    for _ in range(3):
        rule.uploaded(put_seconds)
        rule.committed(0.005)
    assert rule.due_at(0.0, 1) is None
    rule.arrived(0.0, 1001 * KIB, 2 * KIB, 7)
    assert rule.due_at(0.0, 1) == 0.0


def test_a_small_file_waits_until_a_large_one_is_acknowledged() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    rule.uploaded(0.005)
    rule.committed(0.005)
    rule.closed(1000 * KIB)
    send(rule, *[(0.0, 100 * KIB)] * 5, producer=7)
    assert rule.due_at(0.0, 1) is None
    rule.acknowledged(0.1, 1000 * KIB, {})
    assert rule.due_at(0.1, 0) == 0.1


def test_the_idle_time_follows_the_gaps_between_requests() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    assert rule.idle_seconds == 0.002
    send(rule, *[(number * 0.010, 64 * KIB) for number in range(200)])
    assert rule.idle_seconds == pytest.approx(0.015, rel=0.01)
    assert rule.due_at(2.0, 0) == pytest.approx(1.99 + 0.015, rel=0.01)
    for number in range(40):
        rule.closed(64 * KIB)
        send(rule, (2.0 + 0.5 * number, 64 * KIB))
    assert rule.idle_seconds == 0.25


def test_after_an_acknowledgement_the_idle_time_is_that_of_a_response() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    for number in range(1, 100):
        rule.closed(1000 * KIB)
        rule.acknowledged(number + 0.9, 0, {})
        send(rule, (number + 0.904, 1000 * KIB))
    assert rule.idle_seconds == 0.002
    assert rule.due_at(99.904, 0) == pytest.approx(99.906)
    rule.acknowledged(99.905, 0, {})
    assert rule.due_at(99.905, 0) == pytest.approx(99.905 + 1.5 * 0.004, rel=1e-5)


def test_the_time_before_the_first_request_teaches_no_gap() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    send(rule, (100.0, 100 * KIB))
    assert rule.idle_seconds == 0.002


def test_a_long_gap_is_unlearnt_by_producers_of_one_request_at_a_time() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    send(rule, *[(0.1 * number, 100 * KIB) for number in range(100)])
    assert rule.idle_seconds > 0.1
    for number in range(100, 160):
        rule.closed(100 * KIB)
        rule.acknowledged(0.1 * number, 0, {})
        send(rule, (0.1 * number + 0.002, 100 * KIB))
    assert rule.idle_seconds < 0.005


def test_small_requests_do_not_teach_the_gaps_of_large_ones() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    for number in range(1, 1000):
        rule.closed(100)
        send(rule, (0.1 * number, 100))
        if number % 10 == 0:
            rule.closed(64 * KIB)
            send(rule, (0.1 * number + 0.001, 64 * KIB))
    assert rule.idle_seconds < 0.03


def test_a_trickle_neither_delays_a_file_nor_teaches_its_gaps() -> None:
    rule = EarlyCloseRule(limits(), 0.0)
    burst = [(0.0005 * number, 100 * KIB) for number in range(10)]
    send(rule, *burst, *[(0.0045 + 0.001 * number, 50) for number in range(1, 20)])
    assert rule.due_at(0.0045, 0) == pytest.approx(0.0045 + rule.idle_seconds)
    assert rule.idle_seconds < 0.0031


def test_files_that_wait_for_the_budget_are_counted_once() -> None:
    rule = EarlyCloseRule(limits(puts_per_second=1), 0.0)
    for number in range(3):
        send(rule, (0.0, 100 * KIB))
        rule.acknowledged(0.0, 0, {})
        assert rule.take(0.1, 0) is (number == 0)
        if number:
            assert not rule.take(0.1, 0)
            assert rule.due_at(0.1, 0) == 1.1
        rule.closed(100 * KIB)
    assert rule.held_back == 2


@pytest.mark.parametrize("off", [{"puts_per_second": 0}, {"puts_per_gb": 0}])
def test_nothing_waits_for_a_budget_that_is_turned_off(off: dict[str, float]) -> None:
    rule = EarlyCloseRule(limits(**off), 0.0)
    send(rule, (0.0, 100 * KIB))
    assert rule.due_at(10.0, 0) is None
    assert not rule.take(10.0, 0)
    assert rule.held_back == 0
