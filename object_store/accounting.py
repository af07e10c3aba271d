"""Counts of every request and byte, by kind and purpose, for metrics, reports and tests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Purpose(StrEnum):
    """Purpose of a request, in metrics and reports."""

    INGEST = "ingest"
    FETCH = "fetch"
    COMPACTION = "compaction"
    GC = "gc"
    FSCK = "fsck"
    CHECK = "check"  # verifying that the store can be used


class RequestKind(StrEnum):
    """Kind of a request, as price lists of object stores group them."""

    GET = "get"
    PUT = "put"  # a whole object
    PART = "part"  # one part of a multipart upload
    POST = "post"  # starting or completing a multipart upload
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"  # a batch of names, or an aborted multipart upload


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one kind and purpose, or a sum of such counts.

    `requests` counts everything on the wire, including requests that were sent again (`retries`) and requests
    that continue a broken stream (`resumes`). `errors` counts requests that failed: by status, without a
    response, or for lack of a connection; those without a connection are in no other count. `hedges` counts
    operations that were slow and were therefore started a second time; `hedges_won` those whose second call
    was faster. Bytes are bytes of bodies; `bytes_in` are received.
    """

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    errors: int = 0
    retries: int = 0
    resumes: int = 0
    hedges: int = 0
    hedges_won: int = 0

    def values(self) -> tuple[int, ...]:
        """Return the numbers, in the order of the fields."""
        return (
            self.requests,
            self.bytes_in,
            self.bytes_out,
            self.errors,
            self.retries,
            self.resumes,
            self.hedges,
            self.hedges_won,
        )

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(self.values(), other.values(), strict=True)))

    def __sub__(self, other: Tally) -> Tally:
        return Tally(*(a - b for a, b in zip(self.values(), other.values(), strict=True)))


_NOTHING = Tally()
_FIELDS = tuple(field.name for field in fields(Tally))


@dataclass(frozen=True, slots=True)
class CountsSnapshot:
    """Counts at one moment; subtract an earlier snapshot for the difference."""

    tallies: Mapping[tuple[RequestKind, Purpose], Tally]

    def __sub__(self, earlier: CountsSnapshot) -> CountsSnapshot:
        differences = {key: tally - earlier.tallies.get(key, _NOTHING) for key, tally in self.tallies.items()}
        return CountsSnapshot({key: tally for key, tally in differences.items() if tally != _NOTHING})

    def __add__(self, other: CountsSnapshot) -> CountsSnapshot:
        """Return the counts of two stores together, for a report over many tasks."""
        keys = self.tallies.keys() | other.tallies.keys()
        return CountsSnapshot(
            {key: self.tallies.get(key, _NOTHING) + other.tallies.get(key, _NOTHING) for key in keys}
        )

    def of(self, kind: RequestKind | None = None, purpose: Purpose | None = None) -> Tally:
        """Return the sum over the given kind and purpose; None means any."""
        total = _NOTHING
        for (each_kind, each_purpose), tally in self.tallies.items():
            if kind in (None, each_kind) and purpose in (None, each_purpose):
                total += tally
        return total

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return a report: purpose → `get_requests`, `put_requests`, … `bytes_in`, `bytes_out`, `resumes`, ….

        Purposes without requests are left out; the others have every name.
        """
        report: dict[str, dict[str, int]] = {}
        for purpose in sorted({purpose for _, purpose in self.tallies}):
            entry = {f"{kind}_requests": self.of(kind, purpose).requests for kind in RequestKind}
            total = self.of(purpose=purpose)
            entry.update((name, getattr(total, name)) for name in _FIELDS if name != "requests")
            report[purpose.value] = entry
        return report


class RequestCounts:
    """Running counts of one store; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[tuple[RequestKind, Purpose], list[int]] = {}

    def record(
        self,
        kind: RequestKind,
        purpose: Purpose,
        *,
        requests: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        errors: int = 0,
        retries: int = 0,
        resumes: int = 0,
        hedges: int = 0,
        hedges_won: int = 0,
    ) -> None:
        """Add to the counts of one kind and purpose."""
        with self._lock:
            numbers = self._numbers.get((kind, purpose))
            if numbers is None:
                numbers = self._numbers[kind, purpose] = [0] * len(_FIELDS)
            numbers[0] += requests
            numbers[1] += bytes_in
            numbers[2] += bytes_out
            numbers[3] += errors
            numbers[4] += retries
            numbers[5] += resumes
            numbers[6] += hedges
            numbers[7] += hedges_won

    def snapshot(self) -> CountsSnapshot:
        """Return the current counts."""
        with self._lock:
            return CountsSnapshot({key: Tally(*numbers) for key, numbers in self._numbers.items()})
