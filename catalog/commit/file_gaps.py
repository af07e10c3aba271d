"""Recorded gaps in the sequences of a file's producers, and the changes by the commit of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.commit.sequence_gaps import OpenedGaps, SectionGaps, SequenceGap
from catalog.database import arrays
from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg import Cursor

    from catalog.commit.columns import SectionColumns, StampedProducers
    from catalog.database.connection import TupleRow
    from catalog.database.pool import Transaction

_SQL = load_queries("sequence_gaps")


class FileGaps:
    """Gaps of the sections of one file, by section, within the transaction of its commit."""

    def __init__(self, columns: SectionColumns, producers: StampedProducers) -> None:
        self._columns = columns
        self._producers = producers
        self._rows: Cursor[TupleRow] | None = None
        self._known: dict[int, list[SequenceGap]] | None = None
        self._sections: dict[int, OpenedGaps] = {}

    def read(self, transaction: Transaction) -> None:
        """Send the statement that reads the gaps; call it after the locks of the partitions."""
        if len(self._producers):
            self._rows = transaction.send(_SQL["read_gaps"], self._producers.params())

    def opened(self, index: int) -> OpenedGaps:
        """Return the gaps that an ordinary commit opens in the section at `index`."""
        return self._sections.setdefault(index, OpenedGaps())

    def of_readoption(self, index: int, first_new_producer_id: int, *, must_append: bool) -> SectionGaps:
        """Return the gaps of the section at `index`, which were read, for `SectionGaps`."""
        if self._known is None:
            self._known = {}
            entries = self._producers.sections
            for number, *gap in self._rows.fetchall() if self._rows is not None else ():
                self._known.setdefault(entries[number - 1], []).append(SequenceGap(*gap))
        gaps = SectionGaps(self._known.get(index, ()), first_new_producer_id, must_append=must_append)
        self._sections[index] = gaps
        return gaps

    def write(self, transaction: Transaction, now_ms: int) -> None:
        """Send the statements that record what has changed."""
        removed = [(index, gap) for index, gaps in self._sections.items() for gap in gaps.removed()]
        added = [(index, gap) for index, gaps in self._sections.items() for gap in gaps.added()]
        for query, gaps in ((_SQL["delete_gaps"], removed), (_SQL["insert_gaps"], added)):
            if gaps:
                transaction.send(query, {**self._params(gaps), "now_ms": now_ms})

    def _params(self, gaps: Sequence[tuple[int, SequenceGap]]) -> dict[str, object]:
        rows: Iterable[tuple[int, ...]] = ((index, *gap) for index, gap in gaps)
        indexes, producer_ids, epochs, first, last = arrays.columns(rows, 5)
        return {
            **self._columns.keys_at(indexes),
            "producer_ids": arrays.bigints(producer_ids),
            "producer_epochs": arrays.integers(epochs),
            "first_sequences": arrays.integers(first),
            "last_sequences": arrays.integers(last),
        }
