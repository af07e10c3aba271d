"""How many connections there may be, in all and from one address.

Kafka's `max.connections` and `max.connections.per.ip`. Beyond the first its brokers leave a connection
waiting to be accepted; here both close it at once, for any other agent would serve the client.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_log = structlog.get_logger(__name__)
_QUIET_SECONDS = 60.0


class ConnectionQuotas:
    """Counts connections; belongs to the event loop. `time` gives seconds, for a bound on what is logged."""

    def __init__(self, most: int, most_per_ip: int, time: Callable[[], float]) -> None:
        self._most = most
        self._most_per_ip = most_per_ip
        self._time = time
        self._hosts: dict[Hashable, str] = {}
        self._counts: Counter[str] = Counter()
        self._quiet_until = time()

    def __len__(self) -> int:
        return len(self._hosts)

    def take(self, who: Hashable, host: str) -> bool:
        """Count a connection of that host, if there may be one more."""
        if len(self._hosts) >= self._most:
            self._tell("max_connections", self._most, host)
            return False
        if self._counts[host] >= self._most_per_ip:
            self._tell("max_connections_per_ip", self._most_per_ip, host)
            return False
        self._hosts[who] = host
        self._counts[host] += 1
        return True

    def give_back(self, who: Hashable) -> None:
        """It is gone; nothing happens for one that was not counted."""
        host = self._hosts.pop(who, None)
        if host is None:
            return
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]

    def _tell(self, setting: str, most: int, host: str) -> None:
        now = self._time()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            _log.warning("Kafka connections are refused", setting=setting, most=most, client=host)
