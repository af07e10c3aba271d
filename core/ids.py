"""Sources of identifiers and randomness, which are injected, so that a simulation can replay them."""

from __future__ import annotations

import random
import secrets
import threading
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from core.clock import Clock


class Ids(Protocol):
    """Source of identifiers and random bytes."""

    def new_uuid(self) -> UUID:
        """Return a new UUID; later ones mostly sort later."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Return `count` random bytes."""
        ...

    def random(self) -> float:
        """Return a float in [0, 1), for jitter."""
        ...


def _uuid7(now_ms: int, entropy: bytes) -> UUID:
    """Return a UUID version 7 (RFC 9562 §5.7): 48 bits of milliseconds, then random bits."""
    value = (now_ms & (2**48 - 1)) << 80 | int.from_bytes(entropy, "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return UUID(int=value)


class SystemIds:
    """Ids from the operating system's randomness, ordered by time (UUID version 7)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def new_uuid(self) -> UUID:
        """Return a globally unique UUID."""
        return _uuid7(self._clock.now_ms(), secrets.token_bytes(10))

    def random_bytes(self, count: int) -> bytes:
        """Return `count` unpredictable bytes."""
        return secrets.token_bytes(count)

    def random(self) -> float:
        """Return a float in [0, 1)."""
        return secrets.randbits(53) / 2**53


class SeededIds:
    """Ids that are the same in each run with the same seed and clock; thread-safe."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._lock = threading.Lock()

    def new_uuid(self) -> UUID:
        """Return the next UUID."""
        return _uuid7(self._clock.now_ms(), self.random_bytes(10))

    def random_bytes(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        with self._lock:
            return self._random.randbytes(count)

    def random(self) -> float:
        """Return the next float in [0, 1)."""
        with self._lock:
            return self._random.random()
