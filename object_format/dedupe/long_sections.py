"""Reduces the retained records of a section that is too long to retain.

The records of a section are read oldest first and decided newest first, so they are retained until its end.
If there are too many, records that a newer retained record supersedes are removed first. This is exact, and
is sufficient for a section with few keys. If most keys are distinct, only a random sample of the keys is
retained from then on: those whose fingerprint has a number of leading zero bits in its second word. This is
adaptive sampling (P. Flajolet, "On adaptive sampling", Computing 43, 1990, after M. Wegman). The keys of the
sample are decided exactly at the end of the section. Records of other keys are compared only with newer
sections. Each job has its own seed, so later jobs sample other keys.
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

_WORD_BITS: Final = 32
_EMPTY: Final = np.empty(0, np.int32)
_COPIED_RECORDS: Final = 1 << 18
"""Records copied at a time: 5 MiB."""

Mask = npt.NDArray[np.bool_]


class LongSection:
    """Sampling state of one section whose retained records are in columns."""

    def __init__(self) -> None:
        self._slots = _EMPTY
        self._bits = 0

    @property
    def nbytes(self) -> int:
        """Memory used in addition to the columns."""
        return self._slots.nbytes

    @property
    def is_sampled(self) -> bool:
        """True if records of some keys were not retained."""
        return self._bits > 0

    def begin(self) -> None:
        """Begin another section."""
        self._slots, self._bits = _EMPTY, 0

    def superseded(self, columns: Columns) -> Mask:
        """Return a mask of the records that a newer record of the same key follows."""
        count = columns.count
        slots = 1 << (2 * count - 1).bit_length()
        if self._slots.size < slots:
            self._slots = np.empty(slots, np.int32)
        removed = np.zeros(count, np.bool_)
        mark_superseded(columns.words, columns.flags, count, self._slots, removed)
        return removed

    def unsampled(self, columns: Columns) -> Mask:
        """Return a mask of the records whose key is not in the sample, or that have no key."""
        count = columns.count
        if self._bits == _WORD_BITS:
            return np.ones(count, np.bool_)
        without_key: Mask = columns.flags[:count] & np.uint8(CONTROL_RECORD | KEYLESS) != 0
        if not self._bits:
            return without_key
        second = columns.words[1 : count * WORDS : WORDS]
        without_key |= second >> np.uint32(_WORD_BITS - self._bits) != 0
        return without_key

    def halve_sample(self) -> None:
        """Remove half of the keys from the sample."""
        self._bits += 1


def copy_records(columns: Columns, removed: Mask) -> Iterator[Columns]:
    """Yield copies of the records in the mask, in offset order, a bounded number at a time."""
    for start in range(0, columns.count, _COPIED_RECORDS):
        (chosen,) = np.nonzero(removed[start : start + _COPIED_RECORDS])
        if chosen.size:
            chosen += start
            copy = Columns(0)
            copy.words = columns.words[: columns.count * WORDS].reshape(columns.count, WORDS)[chosen].ravel()
            copy.offsets, copy.flags = columns.offsets[chosen], columns.flags[chosen]
            copy.count = chosen.size
            yield copy


def remove_records(columns: Columns, removed: Mask) -> None:
    """Remove the records in the mask from the columns."""
    columns.count = compact_columns(columns.words, columns.offsets, columns.flags, columns.count, removed)
