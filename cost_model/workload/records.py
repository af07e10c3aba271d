"""Records of a partition that deduplication leaves: expected numbers, or records drawn one by one.

Offsets count all records ever produced. A range of offsets therefore says how many records were drawn for it,
however many were dropped since. If records are drawn independently, a deduplicated range has as many records
as distinct keys. It does not matter how often and in which pieces it was deduplicated before.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cost_model.workload.definition import TopicClass
    from cost_model.workload.keys import DrawnKeys, ExpectedKeys

_MAX_CLEANINGS: Final = 64


class Records(Protocol):
    """The records of one partition, as far as deduplication depends on them."""

    def append(self, count: int) -> None:
        """Append records."""
        ...

    def deduplicate(self, base: int, upper: int, pieces: float) -> float:
        """Deduplicate offsets [base, upper) in equal pieces, and return how many records are left."""
        ...

    def clean(self, base: int, upper: int, now_ms: int) -> float:
        """Deduplicate offsets [base, upper) and drop expired tombstones; `base` is the start of the log.

        Return how many records are left.
        """
        ...

    def distinct(self, count: float) -> float:
        """Return the expected number of distinct keys among that many consecutive records."""
        ...


class ExpectedRecords:
    """Expected numbers of records; the state is only the times and upper offsets of earlier cleanings."""

    def __init__(self, topic: TopicClass, keys: ExpectedKeys, delete_retention_ms: int) -> None:
        self._keys = keys
        self._tombstone_ratio = topic.tombstone_ratio
        self._delete_retention_ms = delete_retention_ms
        self._cleaned: list[tuple[int, int]] = []

    def append(self, count: int) -> None:
        """Do nothing: the offsets are enough."""

    def deduplicate(self, base: int, upper: int, pieces: float) -> float:
        """Return the expected number of records if each piece keeps its distinct keys."""
        return pieces * self._keys.distinct((upper - base) / pieces)

    def clean(self, base: int, upper: int, now_ms: int) -> float:
        """Return the expected number of records after a cleaning.

        One record per key is left, without tombstones that were clean for delete.retention.ms. The survivors
        at or past an offset are as many as the distinct keys in the range from there. A share of the
        survivors below the offset that was clean long enough ago are tombstones, which are dropped.
        """
        kept = self._keys.distinct(upper - base)
        old = bisect_right(self._cleaned, (now_ms - self._delete_retention_ms, 2**63))
        self._cleaned.append((now_ms, upper))
        if old:
            young = self._keys.distinct(upper - max(self._cleaned[old - 1][1], base))
            kept -= self._tombstone_ratio * (kept - young)
            del self._cleaned[: old - 1]
        if (
            len(self._cleaned) > _MAX_CLEANINGS
        ):  # keep every second one: tombstones are dropped one cleaning later
            self._cleaned = self._cleaned[:1] + self._cleaned[1::2]
        return kept

    def distinct(self, count: float) -> float:
        """Return the expected number of distinct keys."""
        return self._keys.distinct(count)


class DrawnRecords:
    """All records with their keys, in arrays by offset; deduplication works as in compaction."""

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
        """Draw records and append them."""
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
        """Deduplicate the range, which must be one piece, since each job is simulated."""
        assert pieces == 1
        return float(len(self._survivors(base, upper)))

    def clean(self, base: int, upper: int, now_ms: int) -> float:
        """Deduplicate the range, and drop tombstones as KIP-534 says.

        A tombstone gets a time stamp for its deletion when it first becomes clean, and is dropped by a
        cleaning after that time.
        """
        survivors = self._survivors(base, upper)
        deletes = survivors[self._tombstone[survivors]]
        stamped = self._horizon_ms[deletes] > 0
        expired = deletes[stamped][self._horizon_ms[deletes[stamped]] <= now_ms]
        self._alive[expired] = False
        self._horizon_ms[deletes[~stamped]] = now_ms + self._delete_retention_ms
        return float(len(survivors) - len(expired))

    def _survivors(self, base: int, upper: int) -> NDArray[np.intp]:
        offsets = np.flatnonzero(self._alive[base:upper]) + base
        newest_first = offsets[::-1]
        _, first = np.unique(self._keys[newest_first], return_index=True)
        survivors = np.sort(newest_first[first])
        self._alive[base:upper] = False
        self._alive[survivors] = True
        return survivors

    def distinct(self, count: float) -> float:
        """Return the expected number of distinct keys.

        The ideal size is computed from it, so that it is the same in both simulations.
        """
        return self._expected.distinct(count)
