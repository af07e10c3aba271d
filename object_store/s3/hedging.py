"""Hedged requests: a request that is unusually slow is sent a second time, and the first result counts.

See J. Dean and L. A. Barroso, "The Tail at Scale", CACM 56 (2), 2013. Only requests that may run twice are
hedged: reads, and writes of the same bytes under a name that has one writer. A store has one hedge at a
time. The slower call runs to its end, without an effect; it may take as long as all timeouts and retries.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.clock import Clock
    from object_store.accounting import Purpose, RequestCounts, RequestKind
    from object_store.s3.limits import S3Limits

T = TypeVar("T")

_PER_MILLE: Final = 999
"""A request is slow if it takes longer than this share of the last ones of its kind."""
_UPDATE_EVERY: Final = 64
_MAX_ABANDONED: Final = 8
"""Slow calls of a store that may outlive their hedges, with their memory and connections."""


class Latencies:
    """The durations of the last requests of one kind, and the one that few of them exceeded. Thread-safe."""

    def __init__(self, samples: int) -> None:
        self._durations: deque[float] = deque(maxlen=samples)
        self._lock = threading.Lock()
        self._until_update = samples
        self._quantile: float | None = None

    @property
    def quantile(self) -> float | None:
        """The 99.9th percentile in seconds; None before there were enough requests."""
        return self._quantile

    def add(self, seconds: float) -> None:
        """Add the duration of a request that has ended."""
        with self._lock:
            self._durations.append(seconds)
            self._until_update -= 1
            if not self._until_update:
                self._until_update = _UPDATE_EVERY
                ordered = sorted(self._durations)
                self._quantile = ordered[(len(ordered) - 1) * _PER_MILLE // 1000]


class Hedger:
    """Sends requests of a store, and hedges the slow ones. Thread-safe.

    Requests are sent by the calling threads until it is known what is slow. From then on, each call runs in
    a new thread, so that the caller can return with the first of two results. These threads do not keep the
    process alive.
    """

    def __init__(self, limits: S3Limits, counts: RequestCounts, clock: Clock) -> None:
        self._limits = limits
        self._counts = counts
        self._clock = clock
        self._latencies: dict[RequestKind, Latencies] = {}
        self._hedge_is_free = threading.Semaphore(1)
        self._abandoned = threading.Semaphore(_MAX_ABANDONED)

    def send(self, kind: RequestKind, purpose: Purpose, request: Callable[[], T]) -> T:
        """Return the result of `request`, or of a second call of it; raise its error if all calls fail."""
        samples = self._limits.hedge_samples
        if samples is None:
            return request()
        latencies = self._latencies.setdefault(kind, Latencies(samples))

        def timed() -> T:
            begin = self._clock.monotonic()
            result = request()
            latencies.add(self._clock.monotonic() - begin)
            return result

        slow_seconds = latencies.quantile
        if slow_seconds is None:
            return timed()
        deadline = self._clock.monotonic() + max(slow_seconds, self._limits.hedge_floor_seconds)
        first = _started(timed)
        while not first.done() and (left := deadline - self._clock.monotonic()) > 0:
            wait([first], left)
        if first.done() or (second := self._hedge(first, timed)) is None:
            return first.result()
        self._counts.record(kind, purpose, hedges=1)
        done, _ = wait([first, second], return_when=FIRST_COMPLETED)
        winner = next((each for each in done if each.exception() is None), None)
        if winner is None:  # a call failed, so the other one decides
            wait([first, second])
            winner = second if second.exception() is None else first
        if winner is second:
            self._counts.record(kind, purpose, hedges_won=1)
        return winner.result()

    def _hedge(self, slow: Future[T], request: Callable[[], T]) -> Future[T] | None:
        """Send a request again whose first call is `slow`, unless too many are under way."""
        if not self._hedge_is_free.acquire(blocking=False):
            return None
        if not self._abandoned.acquire(blocking=False):
            self._hedge_is_free.release()
            return None
        hedge = _started(request)
        hedge.add_done_callback(lambda _: self._hedge_is_free.release())
        slow.add_done_callback(lambda _: self._abandoned.release())
        return hedge


def _started(call: Callable[[], T]) -> Future[T]:
    """Start a call in a new thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 -- `Future.result` raises it
            future.set_exception(error)

    threading.Thread(target=run, name="siltstone-s3", daemon=True).start()
    return future
