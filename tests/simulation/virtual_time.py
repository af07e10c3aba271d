"""An event loop on virtual time, and blocking code in fibers.

The loop never waits: when nothing is ready, it advances the clock to the next timer. A blocking call runs in
a fiber (a greenlet) until it pauses: at a call to the store or the catalog, or when it sleeps. The loop
resumes it after the pause. So the order of events follows from the pauses alone, and these follow from the
seed. All of it is one thread, because switching between threads takes about twenty times as long.
"""

from __future__ import annotations

import asyncio
import selectors
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import greenlet as greenlets
from typing_extensions import override

from core.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class KilledError(BaseException):
    """The process of this code has crashed; the code must have no further effect."""


class DeadlockError(AssertionError):
    """Code waits although no event is left."""


@dataclass(eq=False)
class SimulatedProcess:
    """A unit that crashes or stalls as a whole."""

    name: str
    dead: bool = False
    stalled_until: float = 0.0


class VirtualClock(ManualClock):
    """The clock of the loop; `sleep` pauses the running fiber."""

    fibers: FiberScheduler | None = None

    @override
    def sleep(self, seconds: float) -> None:
        if self.fibers is None or not self.fibers.pause(seconds):
            self.advance(seconds)


class _NonBlockingSelector(selectors.SelectSelector):
    """Looks what is ready; instead of waiting for more it lets the time pass."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise DeadlockError("no event is left")
        if not ready and timeout:
            self._clock.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_NonBlockingSelector(clock))
        self._virtual = clock

    @override
    def time(self) -> float:
        return self._virtual.monotonic()


@dataclass(eq=False)
class _Fiber:
    """A blocking call in progress; `greenlet` holds its stack between two pauses."""

    call: Callable[[], Any]
    process: SimulatedProcess
    future: asyncio.Future[Any]
    greenlet: greenlets.greenlet | None = None
    is_done: bool = False

    def run(self) -> None:
        """Run the call and pass its outcome to the future."""
        try:
            result = self.call()
        except KilledError:
            self.future.cancel()
        except BaseException as error:  # noqa: BLE001  # every outcome goes to the future
            if not self.future.done():
                self.future.set_exception(error)
        else:
            if not self.future.done():
                self.future.set_result(result)
        finally:
            self.is_done = True


class FiberScheduler:
    """Runs blocking calls as fibers of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._current: _Fiber | None = None
        self._open: list[_Fiber] = []

    async def run(self, call: Callable[[], T], process: SimulatedProcess) -> T:
        """Return the result of `call`, which ends when `process` crashes."""
        fiber = _Fiber(call, process, self._loop.create_future())
        self._open.append(fiber)
        self._loop.call_soon(self._resume, fiber)
        result: T = await fiber.future
        return result

    @property
    def now(self) -> float:
        """The virtual time in seconds."""
        return self._loop.time()

    def pause(self, seconds: float) -> bool:
        """Let other code run for this time. Return False if no fiber is running."""
        fiber = self._current
        if fiber is None or fiber.greenlet is None:
            return False
        self._check_alive(fiber.process)
        self._loop.call_later(seconds, self._resume, fiber)
        loop_greenlet = fiber.greenlet.parent
        assert loop_greenlet is not None
        loop_greenlet.switch()
        self._check_alive(fiber.process)
        return True

    @staticmethod
    def _check_alive(process: SimulatedProcess) -> None:
        if process.dead:
            raise KilledError

    def end(self) -> None:
        """Kill all fibers."""
        for fiber in tuple(self._open):
            fiber.process.dead = True
            while not fiber.is_done:
                self._resume(fiber)

    def _resume(self, fiber: _Fiber) -> None:
        if fiber.is_done:
            return
        if fiber.greenlet is None and fiber.process.dead:
            fiber.is_done = True
            fiber.future.cancel()
        else:
            fiber.greenlet = fiber.greenlet or greenlets.greenlet(fiber.run)
            self._current = fiber
            fiber.greenlet.switch()
            self._current = None
        self._open = [each for each in self._open if not each.is_done]
