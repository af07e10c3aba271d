"""One event loop whose time is virtual, and blocking code that runs on it a stretch at a time.

The loop never waits: when nothing is ready it sets the clock to the next timer. Blocking calls run on stacks
of their own (greenlets): each goes on until it pauses (at a call to the store or the catalog, or when it
sleeps), says for how long, and the loop has its turn. So what happens next follows from the pauses alone, and
these from the seed. All of it is one thread: to hand on between threads costs some twenty times as much.
"""

from __future__ import annotations

import asyncio
import selectors
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import greenlet
from typing_extensions import override

from core.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class KilledError(BaseException):
    """The process that this code is in has died; nothing of it may be seen any more."""


class StalledError(AssertionError):
    """Somebody waits, and nothing will ever happen again."""


@dataclass(eq=False)
class Machine:
    """What dies, or stands still until some time, as one: a process."""

    name: str
    dead: bool = False
    stands_until: float = 0.0


class VirtualClock(ManualClock):
    """The loop's time; sleeping is a pause of whoever has the baton."""

    strands: Strands | None = None

    @override
    def sleep(self, seconds: float) -> None:
        if self.strands is None or not self.strands.pause(seconds):
            self.advance(seconds)


class _NoWaiting(selectors.SelectSelector):
    """Looks what is ready; instead of waiting for more it lets the time pass."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise StalledError("nothing is left that could happen")
        if not ready and timeout:
            self._clock.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_NoWaiting(clock))
        self._virtual = clock

    @override
    def time(self) -> float:
        return self._virtual.monotonic()


@dataclass(eq=False)
class _Strand:
    """One blocking call on its way; `stack` is where it stands between two stretches."""

    call: Callable[[], Any]
    machine: Machine
    future: asyncio.Future[Any]
    stack: greenlet | None = None
    over: bool = False

    def carry(self) -> None:
        """Make the call, and hand what comes of it to whoever waits."""
        try:
            result = self.call()
        except KilledError:
            self.future.cancel()
        except BaseException as error:  # noqa: BLE001  # whatever it is, it goes to whoever waits
            if not self.future.done():
                self.future.set_exception(error)
        else:
            if not self.future.done():
                self.future.set_result(result)
        finally:
            self.over = True


class Strands:
    """Blocking calls as tasks of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._current: _Strand | None = None
        self._open: list[_Strand] = []

    async def run(self, call: Callable[[], T], machine: Machine) -> T:
        """What `call` returns; it belongs to `machine`, and ends with it."""
        strand = _Strand(call, machine, self._loop.create_future())
        self._open.append(strand)
        self._loop.call_soon(self._resume, strand)
        result: T = await strand.future
        return result

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._loop.time()

    def pause(self, seconds: float) -> bool:
        """Let others go on for so long; False where no strand runs, and nobody else could."""
        strand = self._current
        if strand is None or strand.stack is None:
            return False
        self._go_on(strand.machine)
        self._loop.call_later(seconds, self._resume, strand)
        loops_own = strand.stack.parent
        assert loops_own is not None
        loops_own.switch()
        self._go_on(strand.machine)
        return True

    @staticmethod
    def _go_on(machine: Machine) -> None:
        if machine.dead:
            raise KilledError

    def end(self) -> None:
        """Let every strand that still runs die where it stands."""
        for strand in tuple(self._open):
            strand.machine.dead = True
            while not strand.over:
                self._resume(strand)

    def _resume(self, strand: _Strand) -> None:
        if strand.over:
            return
        if strand.stack is None and strand.machine.dead:
            strand.over = True
            strand.future.cancel()
        else:
            strand.stack = strand.stack or greenlet(strand.carry)
            self._current = strand
            strand.stack.switch()
            self._current = None
        self._open = [each for each in self._open if not each.over]
