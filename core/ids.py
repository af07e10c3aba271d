"""Randomness and identifiers come in from outside, so that a simulation can replay them."""

from __future__ import annotations

import random
import secrets
import threading
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from core.clock import Clock


class Ids(Protocol):
    """A source of identifiers and random bytes."""

    def new_uuid(self) -> UUID:
        """A UUID that was not given before; later ones mostly sort later."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """`count` unpredictable bytes."""
        ...

    def random(self) -> float:
        """A float in [0, 1), for jitter."""
        ...


def _uuid7(now_ms: int, entropy: bytes) -> UUID:
    """UUID version 7 (RFC 9562 §5.7): 48 bits of milliseconds, then randomness."""
    value = (now_ms & (2**48 - 1)) << 80 | int.from_bytes(entropy, "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return UUID(int=value)


class SystemIds:
    """Identifiers from the operating system's randomness; time-ordered (UUID version 7)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def new_uuid(self) -> UUID:
        """A UUID that nobody else has."""
        return _uuid7(self._clock.now_ms(), secrets.token_bytes(10))

    def random_bytes(self, count: int) -> bytes:
        """`count` bytes from the operating system."""
        return secrets.token_bytes(count)

    def random(self) -> float:
        """A float in [0, 1)."""
        return secrets.randbits(53) / 2**53


class SeededIds:
    """The same identifiers at each run with the same seed and the same clock."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._lock = threading.Lock()

    def new_uuid(self) -> UUID:
        """The next UUID of the seed."""
        return _uuid7(self._clock.now_ms(), self.random_bytes(10))

    def random_bytes(self, count: int) -> bytes:
        """The next `count` bytes of the seed."""
        with self._lock:
            return self._random.randbytes(count)

    def random(self) -> float:
        """The next float of the seed."""
        with self._lock:
            return self._random.random()
