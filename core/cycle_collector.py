"""Python's cycle collector, and a way to pause it while many objects are made."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector of this process inside the block, or during each call of a decorated function.

    It scans all young objects again and again while they grow in number, which takes a sixth to half of the
    time of a plan, a publication or a group of small sections. Use it for work that is bounded and makes no
    cycles, so that reference counts free everything.

    Threads may pause at the same time. The one that began first resumes the collector for all.
    """
    was_enabled = False
    try:
        # Otherwise another thread could resume the collector between the two calls, and this one would pause
        # it without resuming it.
        with _lock:
            was_enabled = gc.isenabled()
            gc.disable()
        yield
    finally:
        if was_enabled:
            with _lock:
                gc.enable()
