"""One event loop whose time is virtual, and blocking code that runs on it a stretch at a time.

The loop never waits: when nothing is ready it sets the clock to the next timer. Blocking calls run in threads
of which only one has the baton at any time: it goes on until it pauses (at a call to the store or the
catalog, or when it sleeps), says for how long, and hands the baton back. So what happens next follows from
the pauses alone, and these from the seed.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from bedrock.clock import ManualClock

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
    """One blocking call on its way; `thread` is lent to it until it ends."""

    call: Callable[[], Any]
    machine: Machine
    future: asyncio.Future[Any]
    thread: _Thread | None = None
    over: bool = False


def _taken() -> threading.Lock:
    """A lock that whoever wants to go on waits for, and another lets go of: a semaphore without its cost."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class _Thread:
    """A thread that runs one strand after the other."""

    home: ThreadsAtHome
    wake: threading.Lock = field(default_factory=_taken)
    strand: _Strand | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="a strand").start()

    def _run(self) -> None:
        while True:
            self.wake.acquire()
            if self.strand is None:
                return
            self._carry(self.strand)
            self.home.idle.append(self)
            self.home.baton.release()

    def _carry(self, strand: _Strand) -> None:
        try:
            result = strand.call()
        except KilledError:
            strand.future.cancel()
        except BaseException as error:  # noqa: BLE001  # whatever it is, it goes to whoever waits
            if not strand.future.done():
                strand.future.set_exception(error)
        else:
            if not strand.future.done():
                strand.future.set_result(result)
        finally:
            strand.over = True


@dataclass(eq=False)
class ThreadsAtHome:
    """Threads that wait for a strand, kept from one schedule to the next; close them at the end."""

    idle: list[_Thread] = field(default_factory=list)
    baton: threading.Lock = field(default_factory=_taken)

    def close(self) -> None:
        """Let them end."""
        for thread in self.idle:
            thread.strand = None
            thread.wake.release()
        self.idle.clear()


class Strands:
    """Blocking calls as tasks of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, home: ThreadsAtHome) -> None:
        self._loop = loop
        self._home = home
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
        """Hand the baton on for so long; False where no strand runs, and nobody else could go on."""
        strand = self._current
        if strand is None or strand.thread is None:
            return False
        machine = strand.machine
        self._go_on(machine)
        self._loop.call_later(seconds, self._resume, strand)
        self._home.baton.release()
        strand.thread.wake.acquire()
        self._go_on(machine)
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
        if strand.thread is None:
            if strand.machine.dead:
                strand.over = True
                strand.future.cancel()
                self._open.remove(strand)
                return
            strand.thread = self._lend(strand)
        self._lend_baton(strand, strand.thread)
        self._open = [each for each in self._open if not each.over]

    def _lend_baton(self, strand: _Strand, thread: _Thread) -> None:
        self._current = strand
        thread.wake.release()
        self._home.baton.acquire()
        self._current = None

    def _lend(self, strand: _Strand) -> _Thread:
        if self._home.idle:
            thread = self._home.idle.pop()
        else:
            thread = _Thread(self._home)
            thread.start()
        thread.strand = strand
        return thread
