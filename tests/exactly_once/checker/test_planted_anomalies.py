"""The checker finds every planted anomaly."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.exactly_once.checker.anomalies import Kind
from tests.exactly_once.checker.check import anomalies_of, violations_of
from tests.exactly_once.checker.history import history_of
from tests.exactly_once.checker.model import history_from
from tests.exactly_once.checker.plants import PLANTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.exactly_once.checker.history import Event
    from tests.exactly_once.checker.plants import Pick


def _random_history(chance: random.Random) -> list[Event]:
    return history_from(
        [(chance.randrange(10), chance.randrange(12), chance.randrange(210)) for _ in range(60)]
    )


@pytest.mark.parametrize(("plant", "kind"), PLANTS)
@given(seed=st.integers(0, 2**32))
def test_an_anomaly_in_any_history_is_found(
    plant: Callable[[list[Event], Pick], bool], kind: Kind, seed: int
) -> None:
    """The history is correct except for the plant, so each violation follows from it."""
    chance = random.Random(seed)
    events = _random_history(chance)
    assume(plant(events, chance.choice))
    assert kind in {each.kind for each in violations_of(history_of(events))}


@pytest.mark.parametrize(("plant", "kind"), PLANTS)
def test_most_histories_have_an_opportunity(plant: Callable[[list[Event], Pick], bool], kind: Kind) -> None:
    """Otherwise the test above would test little."""
    chance = random.Random(1)
    planted = sum(plant(_random_history(chance), chance.choice) for _ in range(10))
    assert planted >= 7, kind


def _transaction(
    name: str,
    process: str,
    times: tuple[int, int],
    sends: list[tuple[str, int]],
    reads: list[list[object]] | None = None,
) -> list[Event]:
    """Return a committed transaction that lasts from one time to another."""
    begin, end = times
    events: list[Event] = [
        {"event": "begin", "at": begin, "process": process, "transaction": name, "reads": reads or []}
    ]
    for number, (partition, offset) in enumerate(sends):
        value = f"{name}.{number}"
        events += [
            {"event": "send", "at": begin, "transaction": name, "partition": partition, "value": value},
            {"event": "sent", "at": end - 1, "transaction": name, "value": value, "offset": offset},
        ]
    return [
        *events,
        {"event": "commit", "at": end - 1, "transaction": name},
        {"event": "end", "at": end, "transaction": name, "outcome": "committed"},
    ]


def _cycles(*transactions: list[Event]) -> set[Kind]:
    events = sorted((event for each in transactions for event in each), key=lambda event: int(event["at"]))
    kinds = {each.kind for each in anomalies_of(history_of(events))}
    return kinds & {Kind.G0, Kind.G1C, Kind.CONCURRENT_G0, Kind.CONCURRENT_G1C}


def test_a_write_cycle_of_transactions_that_do_not_overlap_is_found() -> None:
    one = _transaction("t1", "a", (1, 10), [("p", 0), ("q", 5)])
    other = _transaction("t2", "b", (11, 20), [("p", 3), ("q", 0)])
    assert _cycles(one, other) == {Kind.G0}
    between = _transaction("t3", "c", (5, 25), [("p", 1), ("q", 3)])
    assert Kind.G0 not in _cycles(one, other, between), "only neighbours of different processes are compared"


def test_a_write_cycle_of_one_process_is_found_although_others_wrote_between() -> None:
    one = _transaction("t1", "a", (1, 10), [("p", 0), ("q", 5)])
    other = _transaction("t2", "a", (11, 20), [("p", 3), ("q", 0)])
    between = _transaction("t3", "c", (5, 25), [("p", 1), ("q", 3)])
    assert Kind.G0 in _cycles(one, other, between)


def test_transactions_that_consume_from_each_other_are_found() -> None:
    """No order of writes is needed for this G1c."""
    one = _transaction("t1", "a", (1, 10), [("p", 0)], [["q", 0, "t2.0"]])
    other = _transaction("t2", "b", (2, 12), [("q", 0)], [["p", 0, "t1.0"]])
    assert _cycles(one, other) == {Kind.G1C}


def test_a_transaction_that_consumes_its_own_record_is_found() -> None:
    assert _cycles(_transaction("t1", "a", (1, 10), [("p", 0)], [["p", 0, "t1.0"]])) == {Kind.G1C}


def test_a_long_cycle_over_writes_and_consumed_records_is_found() -> None:
    """t1 wrote before t2, t3 consumed from t2, and t1 consumed from t3."""
    one = _transaction("t1", "a", (1, 10), [("p", 0)], [["r", 0, "t3.0"]])
    two = _transaction("t2", "b", (11, 20), [("p", 2)])
    three = _transaction("t3", "c", (12, 22), [("r", 0)], [["p", 2, "t2.0"]])
    assert _cycles(one, two, three) == {Kind.G1C}


def test_the_same_cycle_over_concurrent_writes_is_allowed() -> None:
    one = _transaction("t1", "a", (1, 30), [("p", 0)], [["r", 0, "t3.0"]])
    two = _transaction("t2", "b", (11, 20), [("p", 2)])
    three = _transaction("t3", "c", (12, 22), [("r", 0)], [["p", 2, "t2.0"]])
    assert _cycles(one, two, three) == {Kind.CONCURRENT_G1C}
