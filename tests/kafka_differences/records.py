"""Validation of records, look-ups of offsets, and deletion of records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from object_format.record_batch.records import encode_batch
from tests.kafka_differences.session import EARLIEST, LARGEST_TIMESTAMP, LATEST, code

if TYPE_CHECKING:
    from tests.kafka_differences.session import Session

_LATER, _MINUTE = 7_200_000, 60_000
_CRC, _MAGIC = 20, 16  # positions in a batch


def validation(s: Session) -> None:
    """Batches that are wrong, and batches that a setting of their topic rejects."""
    topic = "validation"
    s.create_topic(topic)
    s.create_topic("keyed", cleanup_policy="compact")
    s.create_topic("small", max_message_bytes="100")
    now = int(time.time() * 1000)
    s.produce("acks 2", topic, b"x", acks=2)
    s.produce("acks 1", topic, b"x", acks=1)
    s.produce("unknown partition", topic, b"x", partition=9)
    s.produce("unknown topic", "unknown", b"x")
    s.produce("invalid topic", "a b", b"x")
    s.produce("timestamp in two hours", topic, b"x", timestamp=now + _LATER)
    s.produce("timestamp of long ago", topic, b"x", timestamp=1)
    s.produce("no timestamp", topic, b"x", timestamp=-1)
    s.produce("negative timestamp", topic, b"x", timestamp=-5)
    s.produce("compacted, no key", "keyed", b"x", b"y", key=None)
    s.produce("compacted, no value", "keyed", None)
    s.produce("too large", "small", b"x" * 200)
    s.produce("not too large", "small", b"x")
    batch = encode_batch([now], [b"key"], [b"value"])
    s.produce_bytes("no bytes", topic, b"")
    s.produce_bytes("ten bytes", topic, bytes(10))
    s.produce_bytes("zeros", topic, bytes(80))
    s.produce_bytes("cut", topic, batch[:-1])
    s.produce_bytes("two batches", topic, batch + batch)
    s.produce_bytes("checksum", topic, _changed(batch, _CRC, batch[_CRC] ^ 1))
    s.produce_bytes("message format 1", topic, _changed(batch, _MAGIC, 1))
    s.fetch("what was appended", topic)


def look_ups(s: Session) -> None:
    """Offsets by timestamp, and fetches at the borders of a log."""
    topic = "look-ups"
    s.create_topic(topic)
    for timestamp in range(-7, 1):
        s.offset(f"empty, {timestamp}", topic, timestamp)
    s.fetch("fetch, empty", topic)
    first = int(time.time() * 1000) - _MINUTE
    for number, later in enumerate((0, 10, 5, 3)):
        s.produce(f"produce {number}", topic, b"x", timestamp=first + later)
    for timestamp in range(-7, 1):
        s.offset(f"four records, {timestamp}", topic, timestamp)
    for later in (0, 1, 6, 10, 11):
        s.offset(f"timestamp {later}", topic, first + later)
    s.offset("unknown partition", topic, LATEST, partition=9)
    s.offset("unknown topic", "unknown", LATEST)
    for offset in (-1, 1, 4, 5):
        s.fetch(f"fetch {offset}", topic, offset)
    s.fetch("fetch, unknown partition", topic, partition=9)
    s.fetch("fetch, unknown topic", "unknown")
    for epoch, current in ((0, -1), (5, -1), (0, 0), (0, 4)):
        asked = Struct(partition=0, leader_epoch=epoch, current_leader_epoch=current)
        topics = [Struct(topic=topic, partitions=[asked])]
        response = s.ask("offset_for_leader_epoch", 4, replica_id=-1, topics=topics)
        (end,) = response.topics[0].partitions
        step = f"end of epoch {epoch}, in {current}"
        s.saw(step, (code(end.error_code), end.leader_epoch, end.end_offset))


def deletions(s: Session) -> None:
    """DeleteRecords moves the start of a log."""
    topic = "deletions"
    s.create_topic(topic)
    s.create_topic("only-compacted", cleanup_policy="compact")
    first = int(time.time() * 1000) - _MINUTE
    for batch in range(3):
        s.produce(f"batch {batch}", topic, b"x", b"y", timestamp=first + batch)
    for offset in (-2, 99, 0, 3, 1):
        _delete(s, f"before {offset}", topic, offset)
    s.fetch("fetch before the start", topic)
    s.fetch("fetch at the start", topic, 3)
    s.offset("earliest", topic, EARLIEST)
    s.offset("first timestamp", topic, 0)
    _delete(s, "everything", topic, -1)
    s.offset("earliest of nothing", topic, EARLIEST)
    s.offset("first timestamp of nothing", topic, 0)
    s.offset("largest timestamp of nothing", topic, LARGEST_TIMESTAMP)
    _delete(s, "of a compacted topic", "only-compacted", 0)
    _delete(s, "of an unknown topic", "unknown", 0)
    _delete(s, "of an unknown partition", topic, 0, partition=9)


def _changed(batch: bytes, position: int, byte: int) -> bytes:
    """Return a batch with another byte at a position."""
    return batch[:position] + bytes([byte]) + batch[position + 1 :]


def _delete(s: Session, step: str, topic: str, offset: int, *, partition: int = 0) -> None:
    """Delete the records before an offset: code and new start of the log."""
    wanted = Struct(partition_index=partition, offset=offset)
    topics = [Struct(name=topic, partitions=[wanted])]
    (deleted,) = s.ask("delete_records", 2, timeout=60_000, topics=topics).topics[0].partitions
    s.saw(step, (code(deleted.error_code), deleted.low_watermark))
