"""What is held back of a section that is too long for it, and what is let go of.

Records of a section come oldest first and are judged from the newest on, so that they are held back until its
end. When there is no more room, first those go that a newer record held back has superseded: that is proven,
and all that a section of few keys needs. If most keys are distinct, only a random part of them is held back
from then on: those whose fingerprints begin with so many zero bits in their second word, as in adaptive
sampling (P. Flajolet, "On adaptive sampling", Computing 43, 1990, after M. Wegman). Of these keys, everything
is known at the section's end; records of the others are judged at once by what is newer than the section. As
the seed is a job's own, each further job takes another part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from object_format.dedupe.fingerprints import Columns
from object_format.kernels.dedupe.fingerprints import CONTROL_RECORD, KEYLESS, WORDS
from object_format.kernels.dedupe.retained_records import compact_columns, mark_superseded

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BITS: Final = 32
_EMPTY: Final = np.empty(0, np.int32)
_COPIED_RECORDS: Final = 1 << 18
"""How many records are let go of at a time: 5 MiB of them."""

Mask = npt.NDArray[np.bool_]


class LongSection:
    """Makes room in columns, which hold the records of one section."""

    def __init__(self) -> None:
        self._slots = _EMPTY
        self._bits = 0

    @property
    def nbytes(self) -> int:
        """The memory that this takes beside the columns."""
        return self._slots.nbytes

    @property
    def is_sampled(self) -> bool:
        """Whether records of some keys were let go of."""
        return self._bits > 0

    def begin(self) -> None:
        """Another section."""
        self._slots, self._bits = _EMPTY, 0

    def superseded(self, columns: Columns) -> Mask:
        """Which of the records have a newer one of their key behind them."""
        count = columns.count
        slots = 1 << max(4, (2 * count - 1).bit_length())
        if self._slots.size < slots:
            self._slots = np.empty(slots, np.int32)
        removed = np.zeros(count, np.bool_)
        mark_superseded(columns.words, columns.flags, count, self._slots, removed)
        return removed

    def unsampled(self, columns: Columns) -> Mask:
        """Which of the records are of no key that is held back, or of no key at all."""
        count = columns.count
        if self._bits == MAX_BITS:
            return np.ones(count, np.bool_)
        without_key: Mask = columns.flags[:count] & np.uint8(CONTROL_RECORD | KEYLESS) != 0
        if not self._bits:
            return without_key
        second = columns.words[1 : count * WORDS : WORDS]
        without_key |= second >> np.uint32(MAX_BITS - self._bits) != 0
        return without_key

    def halve_sample(self) -> None:
        """Hold back half of the keys that were held back so far."""
        self._bits += 1


def copy_records(columns: Columns, removed: Mask) -> Iterator[Columns]:
    """Copies of the records that are `removed`, by offset, some at a time."""
    for start in range(0, columns.count, _COPIED_RECORDS):
        (chosen,) = np.nonzero(removed[start : start + _COPIED_RECORDS])
        if chosen.size:
            chosen += start
            copy = Columns(0)
            copy.words = columns.words[: columns.count * WORDS].reshape(-1, WORDS)[chosen].reshape(-1)
            copy.offsets, copy.flags = columns.offsets[chosen], columns.flags[chosen]
            copy.count = chosen.size
            yield copy


def remove_records(columns: Columns, removed: Mask) -> None:
    """Move the records that are not `removed` together."""
    columns.count = compact_columns(columns.words, columns.offsets, columns.flags, columns.count, removed)
