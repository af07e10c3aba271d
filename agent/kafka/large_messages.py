"""Messages with many items: read and written away from the event loop, and bounded in memory.

A thread that reads or writes structs gives the interpreter away every few milliseconds; the loop would keep
it until the last of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.codec import MalformedMessageError, Struct
from agent.runtime.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from agent.kafka.api import Context
    from agent.kafka.codec.writing import Buffers
    from agent.runtime.work_pool import WorkPool

    T = TypeVar("T")

LARGE_BYTES = 64 * 1024
"""Of a request without records: up to some thousand items, that are read in a few milliseconds."""

_LARGE_ITEMS = 500
# What a socket's buffer takes anyway is not counted.
_COUNTED_BYTES = 256 * 1024


def is_large(answer: Struct) -> bool:
    """Whether an answer has so many items in its lists, and in theirs, that it is written elsewhere."""
    count, inside = 0, [answer]
    while inside:
        for value in inside.pop().__dict__.values():
            if isinstance(value, list):
                count += len(value)
                if count > _LARGE_ITEMS:
                    return True
                inside += [item for item in value if isinstance(item, Struct)]
    return False


class AnswerDeniedError(MalformedMessageError):
    """There is no room for an answer: the connection is closed, and the client comes again."""


async def elsewhere(pool: WorkPool, call: Callable[[], T]) -> T:
    """What `call` gives, from a thread of the pool; from here where that has no room."""
    try:
        return await pool.run(call)
    except BusyError:
        return call()


def hold(buffers: Buffers, context: Context) -> None:
    """Count a large answer among the requests' memory until it has left; `AnswerDeniedError` without room.

    One that is larger than half of that memory counts as half: or it would never be answered.
    """
    budget = context.services.request_budget
    size = min(sum(map(len, buffers)), budget.limit // 2)
    if size <= _COUNTED_BYTES:
        return
    try:
        budget.reserve(size)
    except BusyError as error:
        raise AnswerDeniedError(error.message) from None  # its frames would be logged with all that they hold
    context.releases.append(partial(budget.release, size))
