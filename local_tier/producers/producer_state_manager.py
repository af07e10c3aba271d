"""The idempotent producers of a log, and its transactions that are open or not yet replicated.

Producer state is rebuilt from the newest snapshot and the batches after it. All calls require the log's lock.

Source: ProducerStateManager of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from local_tier.errors import CorruptSnapshotError
from local_tier.producers.producer_state_entry import (
    AppendOrigin,
    CompletedTxn,
    ProducerAppendInfo,
    ProducerStateEntry,
)
from local_tier.producers.snapshots import ProducerSnapshots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from local_tier.files.file_system import FileSystem
    from local_tier.producers.batches import ProducerBatch

_log = structlog.get_logger(__name__)

PRODUCER_EXPIRY_MS: Final = 24 * 3_600_000
"""Default of `producer.id.expiration.ms`: the state of a producer is dropped after that time without appends.
"""


@dataclass(slots=True)
class TxnMetadata:
    """An open transaction, or (with a last offset) one whose marker is not below the high watermark yet."""

    producer_id: int
    first_offset: int
    last_offset: int | None = None


class ProducerStateManager:
    """The state of all producers of one log up to `map_end_offset`, and its snapshots."""

    def __init__(
        self, file_system: FileSystem, directory: Path, *, log_name: str, expiry_ms: int = PRODUCER_EXPIRY_MS
    ) -> None:
        self.snapshots = ProducerSnapshots(file_system, directory)
        self.map_end_offset = 0
        self._log_name = log_name
        self._expiry_ms = expiry_ms
        self._last_snapshot = 0
        self._producers: dict[int, ProducerStateEntry] = {}
        self._ongoing_txns: dict[int, TxnMetadata] = {}
        self._unreplicated_txns: dict[int, TxnMetadata] = {}

    @property
    def producers(self) -> Mapping[int, ProducerStateEntry]:
        """The state by producer id."""
        return self._producers

    @property
    def is_empty(self) -> bool:
        """True if no producer and no transaction is known."""
        return not self._producers and not self._unreplicated_txns

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that readers of committed data must not see yet, or None."""
        return min((*self._ongoing_txns, *self._unreplicated_txns), default=None)

    def prepare_update(self, producer_id: int, origin: AppendOrigin) -> ProducerAppendInfo:
        """Return a new append of a producer's batches."""
        known = self._producers.get(producer_id) or ProducerStateEntry(producer_id)
        return ProducerAppendInfo(known, origin, self._log_name)

    def update(self, appended: ProducerAppendInfo) -> None:
        """Apply an append to the state of its producer."""
        updated = appended.updated
        known = self._producers.get(updated.producer_id)
        if known is None:
            self._producers[updated.producer_id] = updated
        else:
            known.update(updated)
        for offset in appended.started_txn_offsets:
            self._ongoing_txns[offset] = TxnMetadata(updated.producer_id, offset)

    def replay(self, batches: Iterable[ProducerBatch]) -> Iterator[CompletedTxn]:
        """Apply batches that are already in the log, one at a time.

        Yields each completed transaction before the next batch is applied. The caller must pass it to
        `complete_txn`.
        """
        for batch in batches:
            appended = self.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
            done = appended.append(batch)
            self.update(appended)
            if done is not None:
                yield done

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """Return the last stable offset after that transaction is complete."""
        others = (
            first for first, open_ in self._ongoing_txns.items() if open_.producer_id != completed.producer_id
        )
        return min(others, default=completed.last_offset + 1)

    def complete_txn(self, completed: CompletedTxn) -> None:
        """Mark a transaction as complete.

        It stays unstable until the high watermark has passed its marker.
        """
        transaction = self._ongoing_txns.pop(completed.first_offset)
        transaction.last_offset = completed.last_offset
        self._unreplicated_txns[completed.first_offset] = transaction

    def on_high_watermark_updated(self, offset: int) -> None:
        """Drop completed transactions whose markers are below `offset`."""
        done = [
            first
            for first, transaction in self._unreplicated_txns.items()
            if transaction.last_offset is not None and transaction.last_offset < offset
        ]
        for first in done:
            del self._unreplicated_txns[first]

    def on_log_start_offset_incremented(self, offset: int) -> None:
        """Note that the records below `offset` are gone. Their producers remain known.

        No snapshot is taken at `offset` any more, as the next start would delete it. Kafka also updates what
        the high watermark and the end of the log have updated here before.
        """
        self._last_snapshot = max(self._last_snapshot, offset)

    def copy_from(self, other: ProducerStateManager) -> None:
        """Take over the state of `other`, which has read the batches.

        It is more complete than a snapshot, which has only the last batch of each producer.
        """
        self._producers, self._ongoing_txns = other._producers, other._ongoing_txns
        self._unreplicated_txns = other._unreplicated_txns
        self.map_end_offset, self._last_snapshot = other.map_end_offset, other._last_snapshot
        self.snapshots.reload()

    def remove_expired(self, now_ms: int) -> None:
        """Drop producers without an open transaction that have not appended for the expiry time."""
        self._producers = {
            producer_id: state
            for producer_id, state in self._producers.items()
            if not self._is_expired(state, now_ms)
        }

    def take_snapshot(self, *, sync: bool = True) -> int | None:
        """Write a snapshot, unless one exists at this offset. Return its offset, or None if it exists."""
        if self.map_end_offset <= self._last_snapshot:
            return None
        offset = self.map_end_offset
        self.snapshots.write(offset, self._producers.values(), sync=sync)
        self._last_snapshot = offset
        return offset

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Load the newest valid snapshot in (start, end].

        Nothing is loaded if the state already ends at `log_end_offset`. Snapshots outside of the range are
        deleted.
        """
        for offset in self.snapshots.offsets:
            if offset > log_end_offset or offset <= log_start_offset:
                self.snapshots.delete(offset)
        if self.map_end_offset == log_end_offset:
            self.on_log_start_offset_incremented(log_start_offset)
            return
        self._clear()
        self._load(log_start_offset, now_ms)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all state and all snapshots."""
        self._clear()
        for snapshot in self.snapshots.offsets:
            self.snapshots.delete(snapshot)
        self._last_snapshot = 0
        self.map_end_offset = offset

    def _clear(self) -> None:
        self._producers.clear()
        self._ongoing_txns.clear()
        self._unreplicated_txns.clear()

    def _load(self, log_start_offset: int, now_ms: int) -> None:
        while (offset := self.snapshots.latest) is not None:
            try:
                states = self.snapshots.read(offset)
            except CorruptSnapshotError as error:
                _log.warning("producer_snapshot_discarded", reason=str(error))
                self.snapshots.delete(offset)
                continue
            for state in states:
                if not self._is_expired(state, now_ms):
                    self._load_entry(state)
            self._last_snapshot = self.map_end_offset = offset
            return
        self._last_snapshot = self.map_end_offset = log_start_offset

    def _load_entry(self, state: ProducerStateEntry) -> None:
        self._producers[state.producer_id] = state
        if state.current_txn_first_offset is not None:
            first = state.current_txn_first_offset
            self._ongoing_txns[first] = TxnMetadata(state.producer_id, first)

    def _is_expired(self, state: ProducerStateEntry, now_ms: int) -> bool:
        return state.current_txn_first_offset is None and now_ms - state.last_timestamp >= self._expiry_ms
