"""Bounded thread pools for blocking calls."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from agent.runtime.errors import BusyError, StoppingError
from agent.runtime.request_time import current_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")


class WorkPool:
    """Threads for one kind of blocking call.

    At most `threads` calls run and `max_waiting` wait. Further calls raise `BusyError`. Belongs to the event
    loop. A call that has started runs to its end, even if its caller is cancelled. Each thread calls
    `prepare` first. `ended_at` is the loop's time when the last call ended.
    """

    def __init__(
        self, name: str, *, threads: int, max_waiting: int, prepare: Callable[[], None] | None = None
    ) -> None:
        self.name = name
        self.pending = 0
        self.ended_at = 0.0
        self._is_closed = False
        self._limit = threads + max_waiting
        self._executor = ThreadPoolExecutor(
            threads, thread_name_prefix=f"siltstone-{name}", initializer=prepare
        )

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` in a thread of this pool and return its result."""
        if self._is_closed:
            raise StoppingError("this agent is stopping", remedy="send the request to another agent")
        if self.pending >= self._limit:
            raise BusyError(
                f"{self.pending} calls of kind {self.name} are under way or waiting",
                remedy="retry the request later",
                retry_after_seconds=1.0,
            )
        if (measured := current_request.get()) is not None:
            call = measured.timed(call)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        job = self._executor.submit(call)
        self.pending += 1
        # The callback receives the job as an argument. A reference to it would be a cycle, which keeps the
        # result until the next garbage collection.
        job.add_done_callback(partial(self._notify, loop, result))
        try:
            return await result
        except asyncio.CancelledError:
            job.cancel()  # has no effect on a running job
            raise

    def _notify(self, loop: asyncio.AbstractEventLoop, result: asyncio.Future[T], job: Future[T]) -> None:
        """Wake the event loop from a pool thread; `asyncio.wrap_future` would wake it twice."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the call has outlived the agent
            loop.call_soon_threadsafe(self._finished, job, result)

    def _finished(self, job: Future[T], result: asyncio.Future[T]) -> None:
        self.pending -= 1
        if not job.cancelled():
            self.ended_at = asyncio.get_running_loop().time()
        if result.done():
            return  # the caller was cancelled
        if job.cancelled():
            result.cancel()
        elif (error := job.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(job.result())

    def close(self, *, wait: bool = True) -> None:
        """Cancel the calls that have not started; with `wait`, block until the running ones end."""
        self._is_closed = True
        self._executor.shutdown(wait=wait, cancel_futures=True)
