"""The quotas of an agent's clients: the use of each one, and its throttle time.

A quota holds for each agent alone, as Kafka's hold for each broker. Rates are kept for the `max_tracked`
clients that were active last, and for an hour after the last use (as in Kafka). A client that is replaced
begins again without a past. Clients choose their client ids, and some choose their addresses. So a client id
or an address for which only a default holds replaces another such one, and never a user: it can neither fill
the memory nor erase what a user has used.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from agent.quotas.limits import AddressLimits, ClientLimits
from agent.quotas.rates import SampledRate, TokenBucket
from catalog.config.quota_entities import QuotaKey, canonical_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.quotas.limits import Limit
    from agent.quotas.rates import Windows
    from catalog.config.client_quotas import Quotas
    from core.clock import Clock

IDLE_MS: Final = 3_600_000
MAX_TRACKED: Final = 10_000
"""Default bound on clients with a measured rate. Each takes at most 2 KiB."""

_MAX_KEPT_NAME: Final = 200  # characters of a user or client id; longer ones are kept as their digest

_INT32_MAX: Final = 2**31 - 1  # of a throttle time in a response, in milliseconds
_ClientKey: TypeAlias = "tuple[QuotaKey, str | None, str | None]"


class FetchAllowance(NamedTuple):
    """The most bytes of a fetch's response, and the time until the client may have any."""

    max_bytes: int
    throttle_ms: int


class _Tracked:
    """The measured rate of one client, and until when it is throttled."""

    __slots__ = ("measured", "throttled_until_ms", "used_ms")

    def __init__(self, measured: SampledRate | TokenBucket, now_ms: int) -> None:
        self.measured = measured
        self.used_ms = now_ms
        self.throttled_until_ms = 0


class ClientQuotas:
    """Rates and limits of all clients. Belongs to the event loop.

    Amounts are bytes, percent of one thread's second, partitions, and connections. Throttle times are
    milliseconds.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        windows: Windows,
        mutation_windows: Windows,
        max_tracked: int = MAX_TRACKED,
        on_throttle: Callable[[QuotaKey, float], None] = lambda _key, _seconds: None,
    ) -> None:
        """Take the windows; `on_throttle` is called with the seconds of each throttle time."""
        self._clock = clock
        self._windows = windows
        self._mutation_windows = mutation_windows
        self._max_tracked = max_tracked
        self._on_throttle = on_throttle
        # Least recently used first. Those of any client id or address are apart: they are evicted first.
        self._tracked: dict[_ClientKey, _Tracked] = {}
        self._of_any: dict[_ClientKey, _Tracked] = {}
        self.set_limits({})

    def set_limits(self, quotas: Quotas) -> None:
        """Replace all limits. What clients have used stays."""
        self._limits = {key: ClientLimits(quotas, key) for key in QuotaKey}
        self._address_limits = AddressLimits(quotas)
        if not self.has_limits:
            self._tracked.clear()
            self._of_any.clear()

    @property
    def has_limits(self) -> bool:
        """True if any quota is set."""
        return any(self._limits.values()) or bool(self._address_limits)

    def __len__(self) -> int:
        return len(self._tracked) + len(self._of_any)

    def throttled(self) -> int:
        """Return the number of clients that are throttled now."""
        now_ms = self._now_ms()
        tracked = (*self._tracked.values(), *self._of_any.values())
        return sum([each.throttled_until_ms > now_ms for each in tracked])

    def record(self, key: QuotaKey, user: str, client_id: str | None, amount: float) -> int:
        """Count an amount, and return the time for which the client is throttled; 0 if it may go on."""
        limit = self._limits[key].find(user, client_id or "")
        if limit is None:
            return 0
        now_ms = self._now_ms()
        tracked = self._track(key, limit, now_ms)
        rate = tracked.measured
        assert isinstance(rate, SampledRate)
        rate.record(amount, now_ms)
        return self._throttle(tracked, key, rate.throttle_ms(limit.value, now_ms), now_ms)

    def _throttle(self, tracked: _Tracked, key: QuotaKey, throttle_ms: int, now_ms: int) -> int:
        if key is QuotaKey.REQUEST_PERCENTAGE:
            throttle_ms = min(throttle_ms, self._windows.window_ms)  # as in ClientRequestQuotaManager
        if throttle_ms:
            throttle_ms = min(throttle_ms, _INT32_MAX)
            tracked.throttled_until_ms = max(tracked.throttled_until_ms, now_ms + throttle_ms)
            self._on_throttle(key, throttle_ms / 1000)
        return throttle_ms

    def throttle_left(self, key: QuotaKey, user: str, client_id: str | None) -> int:
        """Return the time until the client may send more, without counting anything."""
        limit = self._limits[key].find(user, client_id or "")
        if limit is None:
            return 0
        client = key, _kept(limit.user), _kept(limit.client_id)
        tracked = self._tracked.get(client) or self._of_any.get(client)
        return 0 if tracked is None else max(tracked.throttled_until_ms - self._now_ms(), 0)

    def fetch_allowance(self, user: str, client_id: str | None) -> FetchAllowance | None:
        """Return what a fetch may return now; None without a limit.

        A response that is larger than the rate of all windows would be throttled even if it were the first.
        """
        limit = self._limits[QuotaKey.CONSUMER_BYTE_RATE].find(user, client_id or "")
        if limit is None:
            return None
        most = max(math.floor(limit.value * self._windows.whole_seconds), 1)
        return FetchAllowance(most, self.throttle_left(QuotaKey.CONSUMER_BYTE_RATE, user, client_id))

    def mutate(self, user: str, client_id: str | None, partitions: int, *, strict: bool) -> tuple[bool, int]:
        """Count created or deleted partitions; return whether that is allowed, and the throttle time.

        If the client is in debt already, `strict` counts nothing and allows nothing (KIP-599). Otherwise the
        mutation is allowed, and the client is throttled until its debt is paid.
        """
        key = QuotaKey.CONTROLLER_MUTATION_RATE
        limit = self._limits[key].find(user, client_id or "")
        if limit is None:
            return True, 0
        now_ms = self._now_ms()
        tracked = self._track(key, limit, now_ms)
        bucket = tracked.measured
        assert isinstance(bucket, TokenBucket)
        if strict:
            throttle_ms = bucket.throttle_ms(limit.value, now_ms)
            if throttle_ms:
                return False, self._throttle(tracked, key, throttle_ms, now_ms)
            bucket.take(partitions, limit.value, now_ms)
            return True, 0
        bucket.take(partitions, limit.value, now_ms)
        return True, self._throttle(tracked, key, bucket.throttle_ms(limit.value, now_ms), now_ms)

    def connect(self, host: str) -> int:
        """Count a connection from an address; return the time after which it is to be closed, or 0.

        A connection that is to be closed does not count.
        """
        try:
            address = canonical_address(host)
        except ValueError:  # a socket that is not of the internet
            return 0
        value = self._address_limits.find(address)
        if value is None:
            return 0
        now_ms = self._now_ms()
        key = QuotaKey.CONNECTION_CREATION_RATE
        is_of_any = not self._address_limits.has_own(address)
        tracked = self._track_key((key, address, None), now_ms, is_of_any=is_of_any)
        rate = tracked.measured
        assert isinstance(rate, SampledRate)
        rate.record(1, now_ms)
        throttle_ms = min(rate.throttle_ms(value, now_ms), self._windows.window_ms)
        if throttle_ms:
            rate.record(-1, now_ms)
        return self._throttle(tracked, key, throttle_ms, now_ms)

    def _track(self, key: QuotaKey, limit: Limit, now_ms: int) -> _Tracked:
        client = key, _kept(limit.user), _kept(limit.client_id)
        return self._track_key(client, now_ms, is_of_any=limit.is_of_any_id)

    def _track_key(self, key: _ClientKey, now_ms: int, *, is_of_any: bool) -> _Tracked:
        # In either table: the quota of a client may have become one of a default, or its own.
        tracked = self._tracked.pop(key, None) or self._of_any.pop(key, None)
        if tracked is None or now_ms - tracked.used_ms >= IDLE_MS:
            self._evict(now_ms)
            measured: SampledRate | TokenBucket
            if key[0] is QuotaKey.CONTROLLER_MUTATION_RATE:
                measured = TokenBucket(self._mutation_windows)
            else:
                measured = SampledRate(self._windows, now_ms)
            tracked = _Tracked(measured, now_ms)
        tracked.used_ms = now_ms
        (self._of_any if is_of_any else self._tracked)[key] = tracked
        return tracked

    def _evict(self, now_ms: int) -> None:
        """Make room for one more client, and forget the idle ones."""
        for table in (self._of_any, self._tracked):
            while table:
                key, oldest = next(iter(table.items()))
                if len(self) < self._max_tracked and now_ms - oldest.used_ms < IDLE_MS:
                    break
                del table[key]

    def _now_ms(self) -> int:
        return math.floor(self._clock.monotonic() * 1000)


def _kept(name: str | None) -> str | None:
    """Return a name, or its digest if it is long."""
    if name is None or len(name) <= _MAX_KEPT_NAME:
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=32).hexdigest()
