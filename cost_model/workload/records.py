"""What deduplication leaves of a partition: by expectation, or of records that were drawn one by one.

Offsets count every record that was ever produced, so a range of offsets says how many draws it stands for,
whatever was dropped of it before. Of records drawn independently, those that are left of a range are the
newest of their keys, as many as there are distinct keys in it, however often and in whatever pieces it was
deduplicated on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cost_model.workload.keys import DrawnKeys, ExpectedKeys
    from cost_model.workload.workload import TopicClass

_MAX_CLEANINGS: Final = 64


class Records(Protocol):
    """The records of one partition, as far as deduplication needs to know them."""

    def append(self, count: int) -> None:
        """Producers sent so many more."""
        ...

    def deduplicate(self, base: int, upper: int, pieces: float) -> float:
        """How many are left of offsets [base, upper), each of so many equal pieces being deduplicated."""
        ...

    def clean(self, base: int, upper: int, now_ms: int) -> float:
        """As `deduplicate`, with nothing older than `base`: tombstones go whose time has come."""
        ...

    def distinct(self, count: float) -> float:
        """How many distinct keys to expect among so many records in a row."""
        ...


class ExpectedRecords:
    """By expectation; offsets alone are kept, and when the partition was cleaned up to which of them."""

    def __init__(self, topic: TopicClass, keys: ExpectedKeys, delete_retention_ms: int) -> None:
        self._keys = keys
        self._tombstone_ratio = topic.tombstone_ratio
        self._delete_retention_ms = delete_retention_ms
        self._cleaned: list[tuple[int, int]] = []

    def append(self, count: int) -> None:
        """Nothing to remember: offsets tell."""

    def deduplicate(self, base: int, upper: int, pieces: float) -> float:
        """Each piece keeps its distinct keys."""
        return pieces * self._keys.distinct((upper - base) / pieces)

    def clean(self, base: int, upper: int, now_ms: int) -> float:
        """One record a key, and no tombstone that was clean for delete.retention.ms before this cleaning.

        Survivors with an offset of at least o are as many as there are distinct keys in [o, upper); a share
        of the rest, below what was clean so long ago, are tombstones and go.
        """
        kept = self._keys.distinct(upper - base)
        old = bisect_right(self._cleaned, (now_ms - self._delete_retention_ms, 2**63))
        self._cleaned.append((now_ms, upper))
        if old:
            young = self._keys.distinct(upper - max(self._cleaned[old - 1][1], base))
            kept -= self._tombstone_ratio * (kept - young)
            del self._cleaned[: old - 1]
        if len(self._cleaned) > _MAX_CLEANINGS:  # every other one: the horizon is late by one at the most
            self._cleaned = self._cleaned[:1] + self._cleaned[1::2]
        return kept

    def distinct(self, count: float) -> float:
        """By the formula."""
        return self._keys.distinct(count)


class DrawnRecords:
    """Every record with its key; deduplication as compaction does it, in arrays by offset."""

    def __init__(self, drawn: DrawnKeys, keys: ExpectedKeys, delete_retention_ms: int) -> None:
        self._drawn = drawn
        self._expected = keys
        self._delete_retention_ms = delete_retention_ms
        self._keys = np.empty(0, np.int64)
        self._tombstone = np.empty(0, np.bool_)
        self._horizon_ms = np.empty(0, np.int64)
        self._alive = np.empty(0, np.bool_)
        self._count = 0

    def append(self, count: int) -> None:
        """Draw them."""
        keys, tombstone = self._drawn.draw(count)
        while self._count + count > len(self._keys):
            self._grow(max(1024, len(self._keys)))
        end = self._count + count
        self._keys[self._count : end] = keys
        self._tombstone[self._count : end] = tombstone
        self._alive[self._count : end] = True
        self._count = end

    def _grow(self, more: int) -> None:
        self._keys = np.concatenate([self._keys, np.zeros(more, np.int64)])
        self._tombstone = np.concatenate([self._tombstone, np.zeros(more, np.bool_)])
        self._horizon_ms = np.concatenate([self._horizon_ms, np.zeros(more, np.int64)])
        self._alive = np.concatenate([self._alive, np.zeros(more, np.bool_)])

    def deduplicate(self, base: int, upper: int, pieces: float) -> float:
        """The range is one piece here: each job is carried out by itself."""
        assert pieces == 1
        return float(len(self._survivors(base, upper)))

    def clean(self, base: int, upper: int, now_ms: int) -> float:
        """KIP-534: a tombstone gets its horizon when it first becomes clean, and goes once that is over."""
        survivors = self._survivors(base, upper)
        deletes = survivors[self._tombstone[survivors]]
        stamped = self._horizon_ms[deletes] > 0
        gone = deletes[stamped][self._horizon_ms[deletes[stamped]] <= now_ms]
        self._alive[gone] = False
        self._horizon_ms[deletes[~stamped]] = now_ms + self._delete_retention_ms
        return float(len(survivors) - len(gone))

    def _survivors(self, base: int, upper: int) -> NDArray[np.intp]:
        offsets = np.flatnonzero(self._alive[base:upper]) + base
        newest_first = offsets[::-1]
        _, first = np.unique(self._keys[newest_first], return_index=True)
        survivors = np.sort(newest_first[first])
        self._alive[base:upper] = False
        self._alive[survivors] = True
        return survivors

    def distinct(self, count: float) -> float:
        """By the formula; the smallest log that could be is measured by it in both modes."""
        return self._expected.distinct(count)
