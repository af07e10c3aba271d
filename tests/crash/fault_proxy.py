"""Proxy to the S3 server that injects random faults."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from tests.object_store.s3.fault_proxy import Fault, FaultProxy

if TYPE_CHECKING:
    from collections.abc import Callable

_ENTRY = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_SLOW_SECONDS = 0.15


def _drop_last_entry(body: bytes) -> bytes:
    """A listing that lags: the entry that comes last in the page is not there yet."""
    entries = _ENTRY.findall(body)
    return body.replace(entries[-1], b"", 1) if entries else body


_KINDS: dict[str, Callable[[str], Fault]] = {
    "slow": lambda method: Fault(method=method, before=partial(time.sleep, _SLOW_SECONDS)),
    "internal error": lambda method: Fault(method=method, status=500, code="InternalError"),
    "slow down": lambda method: Fault(method=method, status=503, code="SlowDown"),
    "lost response": lambda method: Fault(method=method, lose_response=True),
    "reset after execution": lambda method: Fault(method=method, lose_response=True, reset=True),
    "truncated": lambda method: Fault(method=method, keep_bytes=100),
    "reset within the body": lambda method: Fault(method=method, keep_bytes=1_000, reset=True),
    "lagging list": lambda method: Fault(method=method, rewrite=_drop_last_entry),
}


@dataclass
class RandomFaultProxy(FaultProxy):
    """A proxy that injects a fault into the share `rate` of requests; `counts` has the faults by kind."""

    rate: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def begin(self, seed: int, rate: float) -> None:
        """Draw faults with this seed and rate from now on."""
        self._random = random.Random(seed)
        self.rate = rate

    @override
    def take(self, method: str, path: str, range_: str) -> Fault | None:
        with self._lock:
            if self._random.random() >= self.rate:
                return None
            kinds = [kind for kind in _KINDS if (kind == "lagging list") <= ("list-type=2" in path)]
            kind = self._random.choice(kinds)
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return _KINDS[kind](method)
