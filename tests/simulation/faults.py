"""Faults between a process and its calls: delays, stalls, crashes, refused calls and lost responses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from catalog.errors import CatalogUnavailableError
from tests.simulation.virtual_time import KilledError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from catalog.open import Catalog
    from core.errors import SiltstoneError
    from tests.simulation.virtual_time import FiberScheduler, SimulatedProcess

T = TypeVar("T")
_PARTS: Final = (
    "clock",
    "store_binding",
    "deletions",
    "garbage",
    "incarnations",
    "lost_commits",
    "topics",
    "sessions",
    "commits",
    "extents",
    "jobs",
    "planning",
    "retention",
    "expiry",
    "quarantine",
    "transaction_lookups",
    "transactions",
)
#: Calls after which there may be something to plan or a job to run.
_CHANGES: Final = frozenset(
    (
        "commits.commit",
        "commits.commit_together",
        "jobs.submit",
        "jobs.complete",
        "jobs.release",
        "retention.expire",
        "garbage.remove_deleted",
    )
)
_MEAN_SECONDS: Final = 0.02
_SLOW_SECONDS: Final = 8.0
_STALL_SECONDS: Final = (20.0, 240.0)
_MAX_LAG_MS: Final = 2_000


@dataclass
class FaultInjector:
    """Probabilities of faults per call; one seed draws everything.

    `rate` is for network faults. A process that stalls pauses for longer than leases and sessions last,
    before or after a call. `changes` counts the calls after which planners and workers may have work.
    """

    rng: random.Random
    fibers: FiberScheduler
    rate: float = 0.0
    stalls: float = 0.0
    crashes: float = 0.0
    trace: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    def occurs(self, kind: str, factor: float = 1.0) -> bool:
        """Return True if a network fault occurs now, with the probability `rate` times `factor`."""
        return self._draw(kind, self.rate * factor)

    def disable(self) -> None:
        """Inject no more faults."""
        self.rate = self.stalls = self.crashes = 0.0

    def delay(self, process: SimulatedProcess, mean_seconds: float) -> None:
        """Delay a process before or after a call; it may stall or crash."""
        seconds = self.rng.expovariate(1 / mean_seconds)
        if self._draw("stall", self.stalls):
            process.stalled_until = self.fibers.now + self.rng.uniform(*_STALL_SECONDS)
            self.trace.append(f"{process.name} stalls")
        if not self.fibers.pause(max(seconds, process.stalled_until - self.fibers.now)):
            return  # not called from a fiber
        if self._draw("crash", self.crashes):
            self.trace.append(f"{process.name} crashes")
            process.dead = True
            raise KilledError

    def _draw(self, kind: str, probability: float) -> bool:
        occurs = self.rng.random() < probability
        if occurs:
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return occurs


@dataclass
class Network:
    """The connection of one process to the store and the catalog."""

    faults: FaultInjector
    process: SimulatedProcess

    def call(self, name: str, action: Callable[[], T], refusal: Callable[[str], SiltstoneError]) -> T:
        """Run `action` after a delay and return after another one; either way may fail."""
        faults = self.faults
        slow = faults.occurs("slow", 0.5)
        faults.delay(self.process, _SLOW_SECONDS if slow else _MEAN_SECONDS)
        if faults.occurs("refused"):
            raise refusal(f"{name} was refused")
        faults.trace.append(f"{self.process.name} {name}")
        result = action()
        faults.changes += name in _CHANGES
        faults.delay(self.process, _MEAN_SECONDS)
        if faults.occurs("lost response"):
            raise refusal(f"the response of {name} was lost")
        return result

    def list_lag_ms(self) -> int:
        """Return the delay after which new objects appear in listings."""
        return self.faults.rng.randrange(_MAX_LAG_MS) if self.faults.occurs("lagging list") else 0

    def catalog(self, catalog: Catalog) -> Catalog:
        """Return the catalog as seen through this network."""
        return cast("Catalog", _Remote(catalog, self))


class _Remote:
    def __init__(self, catalog: Catalog, network: Network) -> None:
        for part in _PARTS:
            setattr(self, part, _RemotePart(part, getattr(catalog, part), network))


class _RemotePart:
    """Calls of one part of the catalog; each call is one transaction and happens at one moment."""

    def __init__(self, part: str, inner: object, network: Network) -> None:
        self._part, self._inner, self._network = part, inner, network

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # any attribute of the part
        method = getattr(self._inner, name)

        def call(*arguments: object, **keywords: object) -> object:
            full_name = f"{self._part}.{name}"
            return self._network.call(
                full_name, lambda: method(*arguments, **keywords), CatalogUnavailableError
            )

        self.__dict__[name] = call
        return call
