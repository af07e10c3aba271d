"""When an ingestion file is closed before its flush interval ends, because waiting gains nothing.

A producer that waits for acknowledgements sends nothing more. The rest of the flush interval then costs it
throughput and makes the file no larger. The open file is closed early if all of these hold:

1. It has at least `min_bytes`, or a batch of a transaction. A transaction is small, and its producer waits
   for all acknowledgements before it commits.
2. Few files are in flight, and it is not small in comparison with them. Otherwise it collects more while they
   are written, as in Nagle's algorithm (RFC 896).
3. Little more will arrive. Either stalled producers have sent at least half of it, or nothing that matters
   has arrived for the *idle time*.
4. The budget has a PUT left.

A producer is *stalled* if it has used up its requests in flight. This is known of idempotent producers only:
they may have five. A producer of many bytes counts as stalled at its third, so that one file is filled while
another is uploaded.

Files are uploaded in parallel, and committed in order. The time of a commit is that of one file: files that
are committed together divide it. The bytes in flight may be as many times those of the open file as a PUT
takes longer than a commit. If all files are equal, so many are uploaded while one is committed. More files
would only wait for their commits, while a file that stays open collects the requests of more producers. A
small file waits for larger ones, at most until the flush interval ends. So producers that
are acknowledged at different times meet in one file again. The agent learns how long PUTs and commits take.

The idle time is learnt from arrivals like a retransmission timeout (RFC 6298), from a mean and a mean
deviation. After a request it is the time in which another one follows it, so a file is closed soon after the
last request of a burst. After an acknowledgement it is the time in which a request follows that. A steady
flow fills its files: only one of 1,600 gaps of a Poisson process is longer than its idle time.

Requests teach by their bytes, so that small ones do not teach the times of large ones. Bytes that arrive at
less than an eighth of the rate at which the file has grown do not matter, so a slow producer does not delay
others.

The rule knows nothing of files, threads or timers. Its times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REQUESTS_IN_FLIGHT: Final = 5
"""Requests that an idempotent producer may have open (max.in.flight.requests.per.connection, KIP-98)."""

_OVERLAPPING_REQUESTS: Final = 3
_MEANS: Final = 1.5
_DEVIATIONS: Final = 8.0
_MEAN_WEIGHT: Final = 1 / 8
_DEVIATION_WEIGHT: Final = 1 / 4
_RATE_SHARE: Final = 1 / 8
_GB: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyCloseLimits:
    """Bounds of early closes.

    After an early close for stalled producers at most `max_files` files are in flight, after any other one.
    `overlap_bytes` are the bytes of one producer in a file that make it count as stalled at its third
    request. `puts_per_gb` counts per 10^9 bytes; infinity sets no limit. With `puts_per_second` or
    `puts_per_gb` 0, no file is closed early.
    """

    min_bytes: int
    overlap_bytes: int
    max_files: int
    min_idle_seconds: float
    max_idle_seconds: float
    puts_per_second: float
    puts_per_gb: float


class _LearntTime:
    """A time that samples rarely exceed, by the rule of RFC 6298."""

    def __init__(self) -> None:
        self.mean = 0.0
        self._deviation = 0.0

    @property
    def seconds(self) -> float:
        return _MEANS * self.mean + _DEVIATIONS * self._deviation

    def learn(self, sample: float, weight: float) -> None:
        error = sample - self.mean
        self.mean += _MEAN_WEIGHT * weight * error
        self._deviation += _DEVIATION_WEIGHT * weight * (abs(error) - self._deviation)


class _Mean:
    """A mean in which newer samples count more."""

    def __init__(self) -> None:
        self.value = 0.0

    def learn(self, sample: float) -> None:
        self.value += _MEAN_WEIGHT * (sample - self.value)


class PutBudget:
    """Two token buckets: one is filled by time, the other by the bytes of closed files.

    An early close takes a token from both. Each bucket holds at most the PUTs of one second, and is full at
    the start.
    """

    def __init__(self, puts_per_second: float, puts_per_gb: float, now: float) -> None:
        self._per_second = puts_per_second
        self._per_byte = puts_per_gb / _GB
        self.capacity = max(1.0, puts_per_second) if puts_per_second and puts_per_gb else 0.0
        self._by_time = self._by_bytes = self.capacity
        self._now = now

    def add_bytes(self, size: int) -> None:
        """Add the tokens of a closed file."""
        self._by_bytes = min(self.capacity, self._by_bytes + size * self._per_byte)

    def available_at(self, now: float) -> float | None:
        """Return when a PUT will be available; None: not before more bytes are written."""
        if self._by_bytes < 1:
            return None
        self._refill(now)
        return now if self._by_time >= 1 else now + (1 - self._by_time) / self._per_second

    def spend(self, now: float) -> None:
        """Take one PUT. `available_at` has returned a time that is not after `now`."""
        self._refill(now)
        self._by_time -= 1
        self._by_bytes -= 1

    def _refill(self, now: float) -> None:
        self._by_time = min(self.capacity, self._by_time + (now - self._now) * self._per_second)
        self._now = now


class EarlyCloseRule:
    """The rule for the files of one agent, and what it has learnt from arrivals.

    Call `arrived`, `closed`, `uploaded`, `committed` and `acknowledged` in the order of these events.
    """

    def __init__(self, limits: EarlyCloseLimits, now: float) -> None:
        self._limits = limits
        self._budget = PutBudget(limits.puts_per_second, limits.puts_per_gb, now)
        self._gap = _LearntTime()  # from one request to the next
        self._reaction = _LearntTime()  # from an acknowledgement to the next request
        self._put_seconds = _Mean()
        self._commit_seconds = _Mean()
        self._unacknowledged: Counter[int] = Counter()  # requests by idempotent producer
        self._acknowledged_at = now
        # The latest arrival that mattered, and the size of the open file after it
        self._mark_at = -math.inf
        self._mark_size = 0
        self._opened_at = now
        self._size = 0
        self._bytes: Counter[int] = Counter()  # of the open file, by idempotent producer
        self._stalled: set[int] = set()
        self._stalled_bytes = 0
        self._has_transaction = False
        self._in_flight_bytes = 0
        self._is_held_back = False
        self.held_back = 0

    @property
    def idle_seconds(self) -> float:
        """Time without requests after a request, at which the open file is closed."""
        return self._bounded(self._gap)

    def _bounded(self, learnt: _LearntTime) -> float:
        return min(max(learnt.seconds, self._limits.min_idle_seconds), self._limits.max_idle_seconds)

    def has_stalled_producers(self) -> bool:
        """Return True if stalled producers have sent at least half of the open file."""
        return 2 * self._stalled_bytes >= self._size

    def arrived(
        self,
        now: float,
        open_size: int,
        size: int,
        producer_id: int | None,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Record a request of `size` bytes, after which the open file has `open_size` bytes.

        The request may end in a file that is closed already. `producer_id` is None if it is not idempotent.
        """
        if not self._size:
            self._opened_at = now
        self._size = open_size
        self._has_transaction = open_size > 0 and (self._has_transaction or is_transactional)
        self._move_mark(now, size)
        if producer_id is None:
            return
        self._unacknowledged[producer_id] += 1
        if not open_size:
            return
        self._bytes[producer_id] += size
        if producer_id in self._stalled:
            self._stalled_bytes += size
        elif self._is_stalled(producer_id):
            self._stalled.add(producer_id)
            self._stalled_bytes += self._bytes[producer_id]

    def _move_mark(self, now: float, size: int) -> None:
        """Move the mark to this arrival, unless it is slow in comparison with the file."""
        gap = now - self._mark_at
        if self._mark_size:  # an arrival before it is in the same file
            grown = self._size - self._mark_size
            if grown * (now - self._opened_at) < _RATE_SHARE * self._size * gap:
                return
        limits = self._limits
        weight = min(1.0, size / limits.min_bytes)
        if self._mark_at >= self._acknowledged_at:
            self._gap.learn(min(gap, limits.max_idle_seconds), weight)
        else:
            reaction = min(now - self._acknowledged_at, limits.max_idle_seconds)
            self._reaction.learn(reaction, weight)
            # Producers with one request at a time show no gaps, but they must not keep a long one for ever.
            if reaction < self._gap.mean:
                self._gap.learn(reaction, weight)
        self._mark_at = now
        self._mark_size = self._size

    def _is_stalled(self, producer_id: int) -> bool:
        requests = self._unacknowledged[producer_id]
        return requests >= MAX_REQUESTS_IN_FLIGHT or (
            requests >= _OVERLAPPING_REQUESTS and self._bytes[producer_id] >= self._limits.overlap_bytes
        )

    def closed(self, size: int) -> None:
        """Record that the open file was closed with so many bytes, for any reason."""
        self._budget.add_bytes(size)
        self._in_flight_bytes += size
        self._size = self._mark_size = 0
        self._has_transaction = False
        self._bytes.clear()
        self._stalled.clear()
        self._stalled_bytes = 0
        self._is_held_back = False

    def uploaded(self, seconds: float) -> None:
        """Record how long the PUT of a file took."""
        self._put_seconds.learn(seconds)

    def committed(self, seconds: float) -> None:
        """Record how long the commit of a file took, or its share of the time of a common commit."""
        self._commit_seconds.learn(seconds)

    def _is_small_among_those_in_flight(self) -> bool:
        """Return True if bytes in flight / bytes of the open file > time of a PUT / time of a commit."""
        return self._in_flight_bytes * self._commit_seconds.value > self._size * self._put_seconds.value

    def acknowledged(self, now: float, size: int, requests: Mapping[int, int]) -> None:
        """Record that the requests of a closed file of `size` bytes were acknowledged, or failed.

        `requests` has their number by idempotent producer.
        """
        self._acknowledged_at = now
        self._in_flight_bytes -= size
        for producer_id, count in requests.items():
            self._unacknowledged[producer_id] -= count
            if producer_id in self._stalled and not self._is_stalled(producer_id):
                self._stalled.remove(producer_id)
                self._stalled_bytes -= self._bytes[producer_id]
            if self._unacknowledged[producer_id] <= 0:
                del self._unacknowledged[producer_id]

    def due_at(self, now: float, files_in_flight: int) -> float | None:
        """Return when to call `take` if no other event comes before; None: not before one does."""
        limits = self._limits
        if not self._budget.capacity or not self._size:
            return None
        is_small = self._size < limits.min_bytes and not self._has_transaction
        if is_small or files_in_flight >= limits.max_files or self._is_small_among_those_in_flight():
            return None
        if self.has_stalled_producers():
            due = now
        elif files_in_flight:
            return None
        elif self._mark_at >= self._acknowledged_at:
            due = self._mark_at + self.idle_seconds
        else:
            due = self._acknowledged_at + self._bounded(self._reaction)
        if self._is_held_back:
            available = self._budget.available_at(now)
            return None if available is None else max(due, available)
        return due

    def take(self, now: float, files_in_flight: int) -> bool:
        """Return True if the open file is to be closed now, and take its PUT from the budget."""
        due = self.due_at(now, files_in_flight)
        if due is None or due > now:
            return False
        if self._budget.available_at(now) == now:
            self._budget.spend(now)
            return True
        self.held_back += not self._is_held_back
        self._is_held_back = True
        return False
