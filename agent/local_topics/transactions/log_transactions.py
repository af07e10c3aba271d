"""Transactions in the log of a local partition: which are open, and the markers that end them.

The calls block; run them in the threads of the log's directory, and hold the lock of the partition for those
that write.

A transaction is recognized by the epoch and the sequence of its first batch, which the leader has recorded
in the catalog before. So a marker never ends another transaction than its own: not after a crash between the
append and the completion of the marker, and not after a failover of the catalog that brings a completed
marker back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalog.model import OpenTransaction
from core.errors import OffsetOutOfRangeError
from local_tier.log.unified_log import Isolation
from local_tier.producers.producer_state_entry import AppendOrigin
from object_format.record_batch.control_batch import encode_end_marker
from object_format.record_batch.headers import read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import PartitionId
    from catalog.transactions.local_partitions import PendingMarker
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.producers.producer_state_entry import OpenTxn

UNKNOWN_SEQUENCE: Final = -1
"""Sequence of a first batch that retention or a client has deleted."""


def open_transaction(log: UnifiedLog, partition: PartitionId, producer_id: int) -> OpenTransaction | None:
    """Return the transaction of a producer that is open in the log, or None."""
    found = log.open_transaction(producer_id)
    return None if found is None else _with_first_batch(log, partition, found)


def open_transactions(log: UnifiedLog, partition: PartitionId) -> list[OpenTransaction]:
    """Return the transactions that are open in the log."""
    return [_with_first_batch(log, partition, each) for each in log.open_transactions()]


def write_markers(log: UnifiedLog, leader_epoch: int, markers: Sequence[PendingMarker]) -> int:
    """Append those markers whose transactions are open in the log; return how many.

    The log has the others already, or it has no batch of their transactions.
    """
    written = 0
    for marker in markers:
        found = open_transaction(log, marker.partition, marker.producer_id)
        if found is not None and _is_of(marker, found, is_cut=log.log_start_offset > 0):
            _append(
                log,
                leader_epoch,
                encode_end_marker(
                    commits=marker.commits,
                    producer_id=marker.producer_id,
                    producer_epoch=marker.marker_epoch,
                    coordinator_epoch=marker.coordinator_epoch,
                    timestamp=marker.ended_ms,
                ),
            )
            written += 1
    return written


def abort(log: UnifiedLog, leader_epoch: int, unknown: OpenTransaction, now_ms: int) -> bool:
    """Abort a transaction that the catalog does not know, if it is still open; return whether it was.

    If its first batch was deleted meanwhile, the catalog must be asked again: the transaction may have been
    verified with a later batch.
    """
    found = log.open_transaction(unknown.producer_id)
    if found is None or _with_first_batch(log, unknown.partition, found) != unknown:
        return False
    _append(
        log,
        leader_epoch,
        encode_end_marker(
            commits=False,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            coordinator_epoch=max(found.coordinator_epoch, 0),
            timestamp=now_ms,
        ),
    )
    return True


def _with_first_batch(log: UnifiedLog, partition: PartitionId, found: OpenTxn) -> OpenTransaction:
    epoch, sequence = found.producer_epoch, UNKNOWN_SEQUENCE
    try:
        first = log.read(found.first_offset, 1, Isolation.LOG_END)
    except OffsetOutOfRangeError:  # below the log start offset
        pass
    else:
        header = read_header(first.data)
        if header.base_offset == found.first_offset:
            epoch, sequence = header.producer_epoch, header.base_sequence
    return OpenTransaction(partition, found.producer_id, epoch, sequence, found.first_offset)


def _is_of(marker: PendingMarker, found: OpenTransaction, *, is_cut: bool) -> bool:
    """Return True if the open transaction is that of the marker.

    If the beginning of the log was deleted, the transaction may have begun there. A recovery or a move of the
    log then finds it open from its first remaining batch on.
    """
    if found.producer_epoch != marker.producer_epoch:
        return False
    if found.first_sequence in {marker.first_sequence, UNKNOWN_SEQUENCE}:
        return True
    return is_cut and marker.first_sequence < found.first_sequence


def _append(log: UnifiedLog, leader_epoch: int, marker: bytes) -> None:
    """Append a marker, and show it to readers."""
    log.append_as_leader(marker, leader_epoch, origin=AppendOrigin.COORDINATOR, flush=False)
    log.update_high_watermark(log.log_end_offset)
