"""Retention windows: split a cleaned partition so that its oldest records can expire.

An extent expires as a whole, when its newest record expires. If every cleaning wrote a `compact,delete`
partition as one extent, the extent would always contain new records and nothing would ever expire. Therefore
time is cut into windows of a quarter of `retention.ms`, and each window gets a separate extent. A part
belongs to the window of the newest record up to its end, because expiry removes a prefix of the log.

Windows start at multiples of their length. If they were counted from now or from the oldest record, they
would move with each cleaning, and the oldest one would never end.

There are at most six: everything old enough to expire is one window, and the current one is the last.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_WINDOWS_OF_RETENTION: Final = 4


def windows_of(newest_ms: Sequence[int], expires_after_ms: int, now_ms: int) -> list[int]:
    """Return the window number of each part; numbers never decrease.

    `newest_ms` has the newest timestamp of each part, oldest part first. A part without timestamps (-1) joins
    the part before it, or the first dated part if there is none before.
    """
    length = max(
        1, -(-expires_after_ms // _WINDOWS_OF_RETENTION)
    )  # rounded up, so that retention.ms spans at most five windows
    expired, current = (now_ms - expires_after_ms) // length - 1, now_ms // length
    dated = next((each for each in newest_ms if each >= 0), 0)
    newest_so_far = accumulate(newest_ms, max, initial=dated)
    next(newest_so_far)
    return [min(max(each // length, expired), current) for each in newest_so_far]
