"""An event loop in a separate thread, for work that requests of clients must not delay.

The agent sends its heartbeats there, serves its health, and watches its own parts. What runs there does not
wait for the other event loop, except for the recovery of lost commits, which is part of a registration.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread's event loop and return its result."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


class ControlLoop:
    """The thread and its loop. `start`, `run` and `stop` are for the agent's event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="siltstone-control", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    @property
    def is_running(self) -> bool:
        """Return True if the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this loop and return its result."""
        return await run_in(self._loop, work)

    async def stop(self) -> None:
        """Stop the loop. What still runs there is cancelled."""
        if self._thread.ident is None:  # the agent could not start
            self._loop.close()
        if not self._thread.is_alive():
            self._loop.close()  # it may never have run
            return
        await self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
