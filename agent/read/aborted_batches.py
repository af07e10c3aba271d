"""Removal of control batches and aborted batches, for readers that do not do it themselves.

Kafka's consumers read the control batches to see where an aborted transaction ends. The catalog's ranges
state it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from object_format.record_batch.headers import iter_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.transactions.repository import AbortedTransaction


def drop_unread(
    runs: Sequence[bytearray | memoryview], aborted: Sequence[AbortedTransaction]
) -> list[memoryview]:
    """Return the runs without control batches, and without transactional ones in their producers' ranges."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for each in aborted:
        ranges.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
    kept: list[memoryview] = []
    for run in runs:
        view, start, end = memoryview(run), 0, 0
        for position, header in iter_headers(run):
            end = position + header.size
            is_aborted = header.is_transactional and any(
                first <= header.base_offset <= last for first, last in ranges.get(header.producer_id, ())
            )
            if is_aborted or header.is_control:
                kept.append(view[start:position])
                start = end
        kept.append(view[start:end])
    return [run for run in kept if len(run)]
