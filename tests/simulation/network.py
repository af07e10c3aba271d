"""What lies between a process and what it calls: pauses, refusals, answers that are lost."""

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
    from tests.simulation.virtual_time import Machine, Strands

T = TypeVar("T")
_PARTS: Final = (
    "clock",
    "store_binding",
    "garbage",
    "topics",
    "sessions",
    "commits",
    "extents",
    "jobs",
    "planning",
    "retention",
    "expiry",
    "quarantine",
)
#: After which there may be something to plan, or a job to take.
_CHANGES: Final = frozenset(
    (
        "commits.commit",
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
_LONGEST_LAG_MS: Final = 2_000


@dataclass
class Weather:
    """How bad it is, as shares of calls; everything is drawn from one seed.

    `rate` is for what a network does. At `stalls` a process stands still, in front of a call or behind it,
    for longer than leases and sessions last; at `deaths` it is dead. `changes` counts what gave planners and
    workers something to look at.
    """

    draw: random.Random
    strands: Strands
    rate: float = 0.0
    stalls: float = 0.0
    deaths: float = 0.0
    trace: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    def strikes(self, kind: str, share: float = 1.0) -> bool:
        """Whether trouble of this kind happens now."""
        return self._happens(kind, self.rate * share)

    def clear_up(self) -> None:
        """From now on nothing goes wrong."""
        self.rate = self.stalls = self.deaths = 0.0

    def pass_time(self, machine: Machine, mean_seconds: float) -> None:
        """What a machine meets on its way to a call, and on its way back."""
        seconds = self.draw.expovariate(1 / mean_seconds)
        if self._happens("stands still", self.stalls):
            machine.stands_until = self.strands.now + self.draw.uniform(*_STALL_SECONDS)
            self.trace.append(f"{machine.name} stands still")
        if not self.strands.pause(max(seconds, machine.stands_until - self.strands.now)):
            return  # whoever looks on from outside
        if self._happens("dies", self.deaths):
            self.trace.append(f"{machine.name} dies")
            machine.dead = True
            raise KilledError

    def _happens(self, kind: str, share: float) -> bool:
        happens = self.draw.random() < share
        if happens:
            self.seen[kind] = self.seen.get(kind, 0) + 1
        return happens


@dataclass
class Network:
    """The way of one process to the store and to the catalog."""

    weather: Weather
    machine: Machine

    def call(self, what: str, deed: Callable[[], T], refusal: Callable[[str], SiltstoneError]) -> T:
        """Do it after a while, answer after another while; either may come to nothing."""
        weather = self.weather
        slow = weather.strikes("slow", 0.5)
        weather.pass_time(self.machine, _SLOW_SECONDS if slow else _MEAN_SECONDS)
        if weather.strikes("refused"):
            raise refusal(f"{what} was refused")
        weather.trace.append(f"{self.machine.name} {what}")
        answer = deed()
        weather.changes += what in _CHANGES
        weather.pass_time(self.machine, _MEAN_SECONDS)
        if weather.strikes("lost answer"):
            raise refusal(f"the answer of {what} was lost")
        return answer

    def list_lag_ms(self) -> int:
        """How far behind a listing is."""
        return self.weather.draw.randrange(_LONGEST_LAG_MS) if self.weather.strikes("lagging list") else 0

    def catalog(self, catalog: Catalog) -> Catalog:
        """The same catalog behind this network."""
        return cast("Catalog", _Remote(catalog, self))


class _Remote:
    def __init__(self, catalog: Catalog, network: Network) -> None:
        for part in _PARTS:
            setattr(self, part, _RemotePart(part, getattr(catalog, part), network))


class _RemotePart:
    """Calls of one part of the catalog; each is one transaction, in which nobody else comes between."""

    def __init__(self, part: str, inner: object, network: Network) -> None:
        self._part, self._inner, self._network = part, inner, network

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the part has
        method = getattr(self._inner, name)

        def call(*arguments: object, **keywords: object) -> object:
            what = f"{self._part}.{name}"
            return self._network.call(what, lambda: method(*arguments, **keywords), CatalogUnavailableError)

        self.__dict__[name] = call
        return call
