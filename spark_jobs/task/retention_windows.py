"""Which parts of a partition may expire together: what comes of others goes into an extent of its own.

An extent expires as a whole, with its newest record. Were a partition that is cleaned and expires written as
one extent, from its log start on, none of it would ever expire as long as it is cleaned again in time. So
time is cut into *spells*, each a quarter of `retention.ms`. A part belongs to the spell of the newest record
up to its end, for nothing goes before what is in front of it. Spells begin at multiples of their length: were
they counted from the oldest record, or from now, they would move along with each cleaning, and the oldest one
would never be over.

There are six at the most: all that is over for so long that it may go is one spell, and now's is the last.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPELLS_OF_RETENTION: Final = 4


def spells_of(newest_ms: Sequence[int], expires_after_ms: int, now_ms: int) -> list[int]:
    """For the newest timestamp of each part, oldest part first, the number of its spell; they never fall.

    A part of which no record has a timestamp (-1) goes with what is before it, or behind it at the beginning.
    """
    length = max(1, -(-expires_after_ms // _SPELLS_OF_RETENTION))  # rounded up: retention is in five at most
    over, current = (now_ms - expires_after_ms) // length - 1, now_ms // length
    dated = next((each for each in newest_ms if each >= 0), 0)
    newest_so_far = accumulate(newest_ms, max, initial=dated)
    next(newest_so_far)
    return [min(max(each // length, over), current) for each in newest_so_far]
