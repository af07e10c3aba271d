"""Control batches, rendered from the catalog's rows: no object has their bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    from catalog.model import ControlBatch, Extent

_KEY: Final = struct.Struct(">hh")  # version, type
_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch
_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1
_NO_SEQUENCE: Final = -1


def render_control_batch(extent: Extent, control: ControlBatch) -> bytes:
    """Return the control batch of an extent, as Kafka's coordinator writes it (EndTransactionMarker).

    The epoch of the coordinator is the leader epoch in which the transaction ended.
    """
    return encode_batch(
        [extent.committed_ms],
        [_KEY.pack(_VERSION, _COMMIT if control.commits else _ABORT)],
        [_VALUE.pack(_VERSION, extent.leader_epoch)],
        base_offset=extent.base_offset,
        leader_epoch=extent.leader_epoch,
        producer=(control.producer_id, control.producer_epoch, _NO_SEQUENCE),
        is_transactional=True,
        is_control=True,
    )
