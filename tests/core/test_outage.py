"""Outages on a manual clock."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from core.clock import ManualClock
from core.errors import InvalidInputError, RetryableError, StaleStateError
from core.ids import SeededIds
from core.outage import MAX_PAUSE_SECONDS, Outage, StartWait


def test_pauses_grow_to_a_bound_and_have_jitter() -> None:
    clock = ManualClock()
    outage = Outage("reading", clock=clock, ids=SeededIds(1, clock))

    pauses = [outage.failed(RetryableError("gone")) for _ in range(1_100)]

    assert 0.125 <= pauses[0] <= 0.25
    assert all(MAX_PAUSE_SECONDS / 2 <= pause <= MAX_PAUSE_SECONDS for pause in pauses[6:])
    assert len(set(pauses)) > 1_000


def test_an_outage_logs_its_beginning_each_new_kind_of_error_and_its_end() -> None:
    clock = ManualClock()
    outage = Outage("reading", clock=clock, ids=SeededIds(1, clock))

    with capture_logs() as logs:
        for error in (RetryableError("no route"), RetryableError("refused"), StaleStateError("changed")):
            outage.failed(error)
            clock.advance(40)
        assert outage.seconds == 120
        outage.succeeded()
        outage.succeeded()

    assert [(line["event"], line.get("reason"), line.get("seconds")) for line in logs] == [
        ("outage: reading", "no route", None),
        ("outage: reading", "changed", None),
        ("outage ended: reading", None, 120.0),
    ]
    assert outage.seconds == 0


def test_a_start_waits_for_what_is_not_there_yet() -> None:
    clock = ManualClock()
    errors = [RetryableError("refused")] * 5

    def connect() -> str:
        if errors:
            raise errors.pop()
        return "connected"

    wait = StartWait(60, clock=clock, ids=SeededIds(1, clock))
    assert wait.run("opening the catalog", connect) == "connected"
    assert clock.monotonic() > 0


def test_a_start_gives_up_at_its_timeout_and_names_the_cause_and_the_setting() -> None:
    clock = ManualClock()
    calls = []

    def connect() -> None:
        calls.append(clock.monotonic())
        raise RetryableError("connection refused", remedy="start it")

    wait = StartWait(20, clock=clock, ids=SeededIds(1, clock))
    with pytest.raises(RetryableError, match=r"start_timeout_seconds=20 .* connection refused \(start it\)"):
        wait.run("opening the catalog", connect)

    assert calls[-1] == clock.monotonic() == 20  # one last attempt at the deadline


def test_a_start_does_not_wait_for_wrong_input() -> None:
    clock = ManualClock()

    def connect() -> None:
        raise InvalidInputError("no such bucket")

    with pytest.raises(InvalidInputError):
        StartWait(60, clock=clock, ids=SeededIds(1, clock)).run("checking the store", connect)
    assert clock.monotonic() == 0
