"""The time that one request takes: on the event loop, and of the threads that work for it.

`RequestTime` is measured only while a quota needs it. `WorkPool` reads `current_request` to find the request
for which a call runs.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import Any

T = TypeVar("T")


class RequestTime:
    """Seconds that a request has taken so far, without the time that it waited.

    Time of a thread counts from the start of the call to its end, also while the call waits for the catalog
    or the object store: no other request can use the thread meanwhile.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._started = monotonic()
        self._on_loop = 0.0
        self._in_threads: list[float] = []  # appended to by several threads
        self._is_closed = False

    def stop(self) -> None:
        """Count the time on the event loop since the request was created or continued."""
        self._on_loop += self._monotonic() - self._started

    def resume(self) -> None:
        """Begin to count time on the event loop again."""
        self._started = self._monotonic()

    def close(self) -> float:
        """Return the time until the last `stop`, and count nothing more.

        A task or a timer that the request has started may refer to it for a long time.
        """
        self._is_closed = True
        return self._on_loop + sum(self._in_threads)

    def timed(self, call: Callable[[], T]) -> Callable[[], T]:
        """Return `call` such that its time in a thread counts."""
        if self._is_closed:
            return call

        def run() -> T:
            started = self._monotonic()
            try:
                return call()
            finally:
                if not self._is_closed:
                    self._in_threads.append(self._monotonic() - started)

        return run


current_request: Final[ContextVar[RequestTime | None]] = ContextVar("current_request", default=None)
"""The request on whose behalf the code runs, if its time is measured."""


class Measured(Generic[T]):
    """Awaitable that counts each step of a coroutine on the event loop, but not the time between steps.

    The caller has stopped the time. It is stopped again when the coroutine ends.
    """

    def __init__(self, time: RequestTime, work: Coroutine[Any, Any, T]) -> None:
        self._time = time
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the coroutine, with the request as the current one."""
        current_request.set(self._time)
        step: Callable[[], Any] = _first(self._work)
        try:
            while True:
                self._time.resume()
                try:
                    awaited = step()
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    self._time.stop()
                try:
                    value = yield awaited
                except GeneratorExit:
                    self._work.close()
                    raise
                except BaseException as error:  # noqa: BLE001  # passed on to the coroutine
                    step = _throw(self._work, error)
                else:
                    step = _send(self._work, value)
        finally:
            current_request.set(None)  # not `reset`: a loop that closes may end this in another context


def _first(work: Coroutine[Any, Any, object]) -> Callable[[], object]:
    return _send(work, None)


def _send(work: Coroutine[Any, Any, object], value: object) -> Callable[[], object]:
    return lambda: work.send(value)


def _throw(work: Coroutine[Any, Any, object], error: BaseException) -> Callable[[], object]:
    return lambda: work.throw(error)
