"""Files and latency of one agent, by the rule of early closes that agents use (`core.early_close`).

Batches arrive as a Poisson process. Each is a request. PUTs run in parallel, and files are committed in the
order in which they were closed. Producers of a class with `in_flight_bytes` stop at that many bytes without
an acknowledgement, as producers with default settings do, and send the rest when one comes. The agent does
not know this limit. The time of 240 flush intervals or 20,000 batches is simulated, whichever is shorter. In
its first tenth the agent learns, and nothing is counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from core.early_close import EarlyCloseLimits, EarlyCloseRule

if TYPE_CHECKING:
    from cost_model.workload.definition import Workload

_INTERVALS: Final = 240
_LEARNING: Final = 0.1
_MAX_BATCHES: Final = 20_000
# Defaults of `agent.settings` that no workload changes
_MAX_FILES_IN_FLIGHT: Final = 8
_OVERLAP_BYTES: Final = 2**20
_MIN_IDLE_SECONDS: Final = 0.002
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceFigures:
    """PUTs of one agent and the latency of its producers, in seconds from a batch to its acknowledgement.

    `acknowledged` is the share of the batches that were acknowledged in the simulated time.
    """

    puts_per_second: float
    puts_per_gb: float
    early_share: float
    p50: float
    p99: float
    acknowledged: float


def with_budget(workload: Workload, puts_per_gb: int) -> Workload:
    """Return the workload with another budget of early closes; 0 turns them off."""
    return replace(workload, early_puts_per_gb=puts_per_gb)


def produce_figures(workload: Workload, *, seed: int = 0) -> ProduceFigures:
    """Simulate one of the agents of a workload."""
    return _Agent(workload, seed).run()


def early_close_factor(workload: Workload) -> float:
    """Return how many files an agent writes for each one that it would write without early closes."""
    files, without = (produce_figures(each) for each in (workload, with_budget(workload, 0)))
    return max(1.0, files.puts_per_gb / without.puts_per_gb) if without.puts_per_gb else 1.0


@dataclass(slots=True)
class _File:
    opened_at: float
    size: int = 0
    sent: list[tuple[int, float]] = field(default_factory=list)  # class and time of each batch
    acknowledged_at: float = 0.0


class _Agent:
    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._interval = workload.flush_interval_ms / 1000
        self._rule = EarlyCloseRule(
            EarlyCloseLimits(
                min_bytes=workload.early_close_bytes,
                overlap_bytes=_OVERLAP_BYTES,
                max_files=_MAX_FILES_IN_FLIGHT // 2,
                min_idle_seconds=_MIN_IDLE_SECONDS,
                max_idle_seconds=self._interval,
                puts_per_second=workload.early_puts_per_second,
                puts_per_gb=workload.early_puts_per_gb,
            ),
            0.0,
        )
        classes = workload.topics
        self._sizes = [max(1, round(each.batch_records * each.stored_record_bytes)) for each in classes]
        self._outstanding = [0] * len(classes)
        self._waiting: list[deque[float]] = [deque() for _ in classes]
        self._open: _File | None = None
        self._closed: deque[_File] = deque()
        self._flights: deque[_File] = deque()
        self._committed_at = 0.0
        self._early = self._files = self._bytes = 0
        self._latencies: list[float] = []
        rates = np.array(
            [each.partition_count * each.records_per_second / each.batch_records for each in classes]
        )
        rate = float(rates.sum()) / workload.agents
        generator = np.random.default_rng(seed)
        self._seconds = min(_INTERVALS * self._interval, _MAX_BATCHES / rate)
        self._counted_from = _LEARNING * self._seconds
        count = int(generator.poisson(rate * self._seconds))
        self._times = np.sort(generator.uniform(0, self._seconds, count)).tolist()
        self._classes = generator.choice(len(classes), count, p=rates / rates.sum()).tolist()

    def run(self) -> ProduceFigures:
        arrivals = deque(zip(self._times, self._classes, strict=True))
        sent = sum(time >= self._counted_from for time in self._times)
        now = 0.0
        while True:
            self._close_files(now)
            arrival = arrivals[0][0] if arrivals else _NEVER
            acknowledgement = self._flights[0].acknowledged_at if self._flights else _NEVER
            now = max(now, min(arrival, acknowledgement, self._close_time(now)))
            if now > self._seconds:
                break
            if acknowledgement <= now:
                self._acknowledge(now)
            elif arrival <= now:
                self._arrive(now, arrivals.popleft()[1])
        taken = np.quantile(self._latencies, (0.5, 0.99)) if self._latencies else (0.0, 0.0)
        return ProduceFigures(
            puts_per_second=self._files / (self._seconds - self._counted_from),
            puts_per_gb=self._files / max(self._bytes, 1) * 1e9,
            early_share=self._early / max(self._files, 1),
            p50=float(taken[0]),
            p99=float(taken[1]),
            acknowledged=len(self._latencies) / max(sent, 1),
        )

    def _arrive(self, now: float, kind: int) -> None:
        limit = self._workload.topics[kind].in_flight_bytes
        outstanding = self._outstanding[kind]
        if limit and outstanding and outstanding + self._sizes[kind] > limit:
            self._waiting[kind].append(now)
        else:
            self._send(now, kind, now)

    def _send(self, now: float, kind: int, born: float) -> None:
        if self._open is None:
            self._open = _File(now)
        file, size = self._open, self._sizes[kind]
        file.size += size
        file.sent.append((kind, born))
        self._outstanding[kind] += size
        is_full = file.size >= self._workload.flush_bytes
        if is_full:
            self._close(file)
        self._rule.arrived(now, 0 if is_full else file.size, size, None)

    def _close(self, file: _File) -> None:
        self._open = None
        self._closed.append(file)
        self._rule.closed(file.size)

    def _close_time(self, now: float) -> float:
        """Return when the open file is closed if nothing happens before."""
        if self._open is None or len(self._flights) >= _MAX_FILES_IN_FLIGHT:
            return _NEVER
        early = self._rule.due_at(now, len(self._flights))
        return min(self._open.opened_at + self._interval, _NEVER if early is None else early)

    def _close_files(self, now: float) -> None:
        """Close the open file if it is due, and upload what may be uploaded now."""
        if self._open is not None and len(self._flights) < _MAX_FILES_IN_FLIGHT and not self._closed:
            if now >= self._open.opened_at + self._interval:
                self._close(self._open)
            elif self._rule.take(now, len(self._flights)):
                self._early += now >= self._counted_from
                self._close(self._open)
        while self._closed and len(self._flights) < _MAX_FILES_IN_FLIGHT:
            file = self._closed.popleft()
            if now >= self._counted_from:
                self._files += 1
                self._bytes += file.size
            uploaded_at = now + self._workload.put_ms / 1000
            self._committed_at = max(uploaded_at, self._committed_at) + self._workload.commit_ms / 1000
            file.acknowledged_at = self._committed_at
            self._flights.append(file)

    def _acknowledge(self, now: float) -> None:
        file = self._flights.popleft()
        self._rule.acknowledged(now, file.size, {})
        for kind, born in file.sent:
            if born >= self._counted_from:
                self._latencies.append(now - born)
            self._outstanding[kind] -= self._sizes[kind]
        for kind, waiting in enumerate(self._waiting):
            limit, size = self._workload.topics[kind].in_flight_bytes, self._sizes[kind]
            while waiting and (not self._outstanding[kind] or self._outstanding[kind] + size <= limit):
                self._send(now, kind, waiting.popleft())
