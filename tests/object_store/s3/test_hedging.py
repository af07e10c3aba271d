"""Slow reads and writes are started a second time, with a bound on what that may cost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_store.accounting import Purpose, RequestKind
from object_store.errors import ObjectNotFoundError
from object_store.s3.hedging import Latencies
from tests.object_store.s3.fault_proxy import Fault
from tests.object_store.s3.limited_store import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.clock import ManualClock
    from object_store.s3.store import S3Store
    from tests.object_store.s3.fault_proxy import FaultProxy

GET, PUT = RequestKind.GET, RequestKind.PUT
SAMPLES = 3
HEDGING = replace(LIMITS, hedge_samples=SAMPLES, hedge_floor_seconds=0.01, attempts=1, resumes=0)
hedged = pytest.mark.parametrize("store", [HEDGING], indirect=True)


def read(store: S3Store) -> bytes:
    return bytes(store.read_range("v1/x", 1, 3, purpose=Purpose.FETCH))


def write(store: S3Store) -> int:
    return store.put("v1/x", [b"ab", b"cde"], purpose=Purpose.INGEST)


def learn(store: S3Store) -> None:
    """Send as many requests of each kind as the store must know."""
    for _ in range(SAMPLES):
        write(store)
    for _ in range(SAMPLES):
        read(store)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Gate:
    """What slow requests wait for. The store's clock advances only when one of them arrives."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._open = threading.Event()

    def hold(self) -> None:
        self._clock.advance(1)
        self._open.wait()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(clock: ManualClock) -> Iterator[Gate]:
    gate = Gate(clock)
    yield gate
    gate.open()


def hedges(store: S3Store) -> tuple[int, int]:
    tally = store.counts.snapshot().of()
    return tally.hedges, tally.hedges_won


@hedged
@pytest.mark.parametrize(("method", "call", "kind"), [("GET", read, GET), ("PUT", write, PUT)])
def test_the_second_call_returns_while_the_first_one_hangs(
    store: S3Store,
    proxy: FaultProxy,
    gate: Gate,
    method: str,
    call: Callable[[S3Store], object],
    kind: RequestKind,
) -> None:
    learn(store)
    expected = call(store)
    proxy.plan(Fault(method=method, before=gate.hold))
    sent = proxy.count(method)
    assert call(store) == expected
    assert proxy.count(method) == sent + 2
    tally = store.counts.snapshot().of(kind)
    assert (tally.hedges, tally.hedges_won) == (1, 1)
    senders = [each for each in threading.enumerate() if each.name == "siltstone-s3"]
    assert senders
    assert all(each.daemon for each in senders)  # the process can end while a call hangs
    gate.open()
    until(lambda: store.counts.snapshot().of(kind).requests == proxy.count(method))
    assert read(store) == b"bcd"  # a write that comes late changes nothing


@hedged
def test_the_first_call_wins_if_its_hedge_is_slower(
    store: S3Store, proxy: FaultProxy, clock: ManualClock, gate: Gate
) -> None:
    learn(store)
    first = Gate(clock)

    def hold_second() -> None:
        first.open()
        gate.hold()

    proxy.plan(Fault(method="GET", before=first.hold), Fault(method="GET", before=hold_second))
    assert read(store) == b"bcd"
    assert hedges(store) == (1, 0)


@hedged
@pytest.mark.parametrize("fails", ["first", "second"])
def test_one_failed_call_of_two_is_no_failure(
    store: S3Store, proxy: FaultProxy, clock: ManualClock, fails: str
) -> None:
    """The call that succeeds ends last."""
    learn(store)
    first = Gate(clock)
    if fails == "first":
        proxy.plan(Fault(method="GET", before=first.hold, status=500, code="InternalError"))
        proxy.plan(Fault(method="GET", before=first.open, delay_seconds=0.05))
    else:
        proxy.plan(Fault(method="GET", before=first.hold, delay_seconds=0.05))
        proxy.plan(Fault(method="GET", before=first.open, status=500, code="InternalError"))
    assert read(store) == b"bcd"
    assert hedges(store) == (1, int(fails == "first"))


@hedged
def test_the_error_is_raised_if_both_calls_fail(
    store: S3Store, proxy: FaultProxy, clock: ManualClock
) -> None:
    learn(store)
    first = Gate(clock)
    missing = Fault(method="GET", status=404, code="NoSuchKey")
    proxy.plan(replace(missing, before=first.hold), replace(missing, before=first.open))
    with pytest.raises(ObjectNotFoundError):
        read(store)
    assert hedges(store) == (1, 0)


@hedged
def test_there_is_one_hedge_at_a_time(store: S3Store, proxy: FaultProxy, gate: Gate) -> None:
    """Three slow reads: one is hedged, and this hedge is slow too."""
    learn(store)
    sent = proxy.count("GET")
    proxy.plan(Fault(method="GET", before=gate.hold, times=4))
    with ThreadPoolExecutor(3) as threads:
        reads = [threads.submit(read, store) for _ in range(3)]
        until(lambda: proxy.count("GET") == sent + 4)
        time.sleep(0.05)
        assert proxy.count("GET") == sent + 4
        gate.open()
        assert [each.result() for each in reads] == [b"bcd"] * 3
    assert hedges(store)[0] == 1


@hedged
def test_calls_that_were_given_up_are_bounded(store: S3Store, proxy: FaultProxy, gate: Gate) -> None:
    """Eight may hang at a time. The ninth slow read waits for its only call."""
    learn(store)
    for _ in range(8):
        proxy.plan(Fault(method="GET", before=gate.hold))
        assert read(store) == b"bcd"
    proxy.plan(Fault(method="GET", before=gate.hold))
    sent = proxy.count("GET")
    with ThreadPoolExecutor(1) as thread:
        ninth = thread.submit(read, store)
        until(lambda: proxy.count("GET") == sent + 1)
        time.sleep(0.05)
        assert not ninth.done()
        gate.open()
        assert ninth.result() == b"bcd"
    assert hedges(store) == (8, 8)


@hedged
def test_nothing_is_hedged_before_it_is_known_what_is_slow(
    store: S3Store, proxy: FaultProxy, clock: ManualClock
) -> None:
    write(store)
    proxy.plan(Fault(method="GET", before=lambda: clock.advance(1), times=SAMPLES))
    for _ in range(SAMPLES):
        read(store)
    assert hedges(store) == (0, 0)


def test_a_store_hedges_nothing_unless_it_is_told_to(
    store: S3Store, proxy: FaultProxy, clock: ManualClock
) -> None:
    learn(store)
    proxy.plan(Fault(method="GET", before=lambda: clock.advance(1)))
    read(store)
    assert hedges(store) == (0, 0)


@given(st.lists(st.floats(0, 100), min_size=20, max_size=300))
def test_few_durations_are_above_the_percentile(durations: list[float]) -> None:
    latencies = Latencies(len(durations))
    for each in durations[:-1]:
        latencies.add(each)
        assert latencies.quantile is None
    latencies.add(durations[-1])
    quantile = latencies.quantile
    assert quantile in durations
    assert sum(each > quantile for each in durations) <= 1


def test_the_percentile_follows_the_newest_requests() -> None:
    latencies = Latencies(100)
    for seconds in (1.0, 2.0):
        for _ in range(200):
            latencies.add(seconds)
    assert latencies.quantile == 2.0
