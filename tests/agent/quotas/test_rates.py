"""Measured rates, against models that are written like Kafka's classes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.quotas.rates import SampledRate, TokenBucket, Windows

_WINDOWS = st.builds(Windows, count=st.integers(1, 4), window_ms=st.sampled_from([1, 10, 1000]))
_STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 9, 10, 11, 35, 900, 1000, 4100]), st.integers(-3, 50), st.booleans()),
    max_size=40,
)


@dataclass
class Sample:
    """Kafka's `SampledStat.Sample`."""

    start: int
    last: int
    value: float = 0


class KafkaRate:
    """Kafka's `Rate` of a `WindowedSum`, sample by sample."""

    def __init__(self, windows: Windows, now: int) -> None:
        self.windows = windows
        self.samples = [Sample(now, now)]
        self.current = 0

    def record(self, value: float, now: int) -> None:
        sample = self.samples[self.current]
        if now - sample.start >= self.windows.window_ms:
            self.current = (self.current + 1) % (self.windows.count + 1)
            if self.current >= len(self.samples):
                self.samples.append(Sample(now, now))
            self.samples[self.current] = sample = Sample(now, now)
        sample.value += value
        sample.last = now

    def window(self, now: int) -> int:
        for index, sample in enumerate(self.samples):
            if now - sample.last >= self.windows.count * self.windows.window_ms:
                self.samples[index] = Sample(now, now)
        elapsed = now - min(each.start for each in self.samples)
        full = elapsed // self.windows.window_ms
        if full < self.windows.count - 1:
            elapsed += (self.windows.count - 1 - full) * self.windows.window_ms
        return max(elapsed, 1)

    def measure(self, now: int) -> float:
        window = self.window(now)
        return sum(each.value for each in self.samples) / (window / 1000)


@given(_WINDOWS, _STEPS, st.sampled_from([0.5, 3.0, 1000.0]))
def test_a_rate_and_its_throttle_time_are_kafkas(
    windows: Windows, steps: list[tuple[int, int, bool]], limit: float
) -> None:
    now = 7
    rate, model = SampledRate(windows, now), KafkaRate(windows, now)
    for pause, amount, measures in steps:
        now += pause
        rate.record(amount, now)
        model.record(amount, now)
        if measures:
            observed = model.measure(now)
            measured, span_ms = rate.measure(now)
            assert (measured, span_ms) == pytest.approx((observed, model.window(now)))
            expected = (observed - limit) / limit * model.window(now)
            assert rate.throttle_ms(limit, now) == pytest.approx(max(expected, 0), abs=0.51)


@pytest.mark.parametrize("chunk", [1, 100, 5_000, 20_000])
def test_a_client_that_waits_gets_its_limit_on_average(chunk: int) -> None:
    """In addition to the amount of all windows, which it may use up at once."""
    limit, windows = 1000.0, Windows(count=11, window_ms=1000)
    rate, now, total = SampledRate(windows, 0), 0, 0
    while now < 60_000:
        rate.record(chunk, now)
        total += chunk
        now += max(rate.throttle_ms(limit, now), 1)
    burst = limit * windows.whole_seconds
    assert 0.9 * limit * now / 1000 <= total <= 1.1 * limit * now / 1000 + burst + chunk


@given(_WINDOWS, _STEPS, st.sampled_from([0.5, 3.0, 40.0]))
def test_a_token_bucket_is_kafkas(windows: Windows, steps: list[tuple[int, int, bool]], limit: float) -> None:
    bucket, now = TokenBucket(windows), 100_000_000
    burst = windows.count * windows.window_ms / 1000 * limit
    tokens, updated = 0.0, 0  # of Kafka's `TokenBucket`
    for pause, amount, measures in steps:
        now += pause
        tokens, updated = min(burst, tokens + limit * (now - updated) / 1000), now
        tokens -= max(amount, 0)
        bucket.take(max(amount, 0), limit, now)
        if measures:
            expected = math.floor(-tokens / limit * 1000 + 0.5) if tokens < 0 else 0
            assert bucket.throttle_ms(limit, now) == pytest.approx(expected, abs=1)
