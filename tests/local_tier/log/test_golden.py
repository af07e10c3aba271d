"""A partition directory that was written once and must always open. Every byte of it is described here.

`write_golden` created it, and must still write the same bytes.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import crc32c
import pytest

from local_tier.config import LogConfig
from local_tier.log.unified_log import Isolation
from local_tier.producers.producer_state_entry import AppendOrigin
from tests.local_tier.batches import batch, marker, offsets_of
from tests.local_tier.logs import LogHarness

if TYPE_CHECKING:
    from local_tier.log.unified_log import UnifiedLog

GOLDEN = Path(__file__).parent / "golden"
CONFIG = LogConfig(segment_bytes=420, segment_index_bytes=120, index_interval_bytes=100)
TOPIC = UUID("0191d2c8-7b00-7000-8000-0123456789ab")


def write_golden(root: Path) -> UnifiedLog:
    """Write two segments: an idempotent producer, an aborted and an open transaction, two leader epochs."""
    log = LogHarness(root).open(CONFIG, topic_id=TOPIC)
    log.append_as_leader(batch(0, 2, timestamp=1_000, producer=(7, 1, 40)), 0)
    log.append_as_leader(batch(0, 1, timestamp=3_000, producer=(8, 0, 0), transactional=True), 0)
    log.append_as_leader(batch(0, 1, timestamp=2_000), 3)
    log.append_as_leader(
        marker(0, producer=(8, 0), abort=True, timestamp=3_500), 3, origin=AppendOrigin.COORDINATOR
    )
    log.append_as_leader(batch(0, 2, timestamp=4_000), 3)
    log.append_as_leader(batch(0, 1, timestamp=5_000, producer=(9, 0, 5), transactional=True), 3)
    return log


def header(
    base: int,
    size: int,
    epoch: int,
    crc: int,
    attributes: int,
    times: tuple[int, int],
    stamp: tuple[int, ...],
) -> bytes:
    """Return a batch header of 61 bytes. `stamp` is producer id, epoch, base sequence and record count."""
    count = stamp[3]
    return struct.pack(
        ">qiibIhiqqqhii", base, size - 12, epoch, 2, crc, attributes, count - 1, *times, *stamp[:3], count
    )


def checked(
    base: int, epoch: int, attributes: int, times: tuple[int, int], stamp: tuple[int, ...], records: bytes
) -> bytes:
    """Return a whole batch. Its checksum covers the bytes after it."""
    size = 61 + len(records)
    covered = header(base, size, epoch, 0, attributes, times, stamp)[21:] + records
    return header(base, size, epoch, crc32c.crc32c(covered), attributes, times, stamp)[:21] + covered


def record(delta: int, key: bytes, value: bytes) -> bytes:
    """Return a record: length, attributes, time and offset deltas (both `delta`), key, value, no headers."""
    body = bytes((0, 2 * delta, 2 * delta, 2 * len(key))) + key + bytes((2 * len(value),)) + value + b"\0"
    return bytes((2 * len(body),)) + body


NONE = (-1, -1, -1)
PLAIN, TRANSACTIONAL, CONTROL = 0, 0x10, 0x30
TWO = record(0, b"0", bytes(10)) + record(1, b"1", bytes(10))
ONE = record(0, b"0", bytes(10))
ABORT = record(0, struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 0))
FIRST = [
    checked(0, 0, PLAIN, (1_000, 1_001), (7, 1, 40, 2), TWO),
    checked(2, 0, TRANSACTIONAL, (3_000, 3_000), (8, 0, 0, 1), ONE),
    checked(3, 3, PLAIN, (2_000, 2_000), (*NONE, 1), ONE),
    checked(4, 3, CONTROL, (3_500, 3_500), (8, 0, -1, 1), ABORT),
]
SECOND = [
    checked(5, 3, PLAIN, (4_000, 4_001), (*NONE, 2), TWO),
    checked(7, 3, TRANSACTIONAL, (5_000, 5_000), (9, 0, 5, 1), ONE),
]


def snapshot(*producers: tuple[int, ...]) -> bytes:
    """Return a snapshot: version, checksum, count, and 46 bytes per producer."""
    body = struct.pack(">i", len(producers)) + b"".join(struct.pack(">qhiqiqiq", *p) for p in producers)
    return struct.pack(">hI", 1, crc32c.crc32c(body)) + body


SEVEN = (7, 1, 41, 1, 1, 1_001, -1, -1)
EIGHT = (8, 0, 0, 2, 0, 3_500, 0, -1)
NINE = (9, 0, 5, 7, 0, 5_000, -1, 7)

FILES = {
    "00000000000000000000.log": b"".join(FIRST),
    # an entry after more than 100 bytes: at the third batch, after 97 + 79 bytes; none after 79 more
    "00000000000000000000.index": struct.pack(">ii", 3, len(FIRST[0] + FIRST[1])),
    # the largest timestamp up to offset 3 is at offset 2; the roll adds that of the segment
    "00000000000000000000.timeindex": struct.pack(">qiqi", 3_000, 2, 3_500, 4),
    "00000000000000000000.txnindex": struct.pack(">hqqqq", 0, 8, 2, 4, 5),
    "00000000000000000005.log": b"".join(SECOND),
    "00000000000000000005.index": b"",
    "00000000000000000005.timeindex": struct.pack(">qi", 5_000, 2),
    "00000000000000000005.snapshot": snapshot(SEVEN, EIGHT),
    "00000000000000000008.snapshot": snapshot(SEVEN, EIGHT, NINE),
    "leader-epoch-checkpoint": b"0\n2\n0 0\n3 3\n",
    "partition.metadata": b"version: 0\ntopic_id: AZHSyHsAcACAAAEjRWeJqw",
}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_golden_file_has_the_described_bytes(name: str) -> None:
    """Files are compared byte by byte."""
    assert (GOLDEN / "orders-0" / name).read_bytes() == FILES[name]


def test_all_golden_files_are_described() -> None:
    """There are no other files."""
    assert set(contents(GOLDEN / "orders-0")) == set(FILES)


def test_the_same_appends_write_the_same_bytes(tmp_path: Path) -> None:
    """The format has not changed."""
    write_golden(tmp_path).close()
    assert contents(tmp_path / "orders-0") == FILES


@pytest.mark.parametrize("clean", [True, False])
def test_the_golden_directory_opens(tmp_path: Path, *, clean: bool) -> None:
    """Everything is there after a clean shutdown and after a crash."""
    harness = LogHarness(tmp_path)
    shutil.copytree(GOLDEN / "orders-0", harness.directory)
    log = harness.open(CONFIG, clean=clean)
    log.update_high_watermark(8)
    assert log.topic_id == TOPIC
    assert [segment.base_offset for segment in log.segments] == [0, 5]
    assert (log.log_end_offset, log.last_stable_offset) == (8, 7)
    assert log.leader_epochs == ((0, 0), (3, 3))
    assert log.last_records_of_producers() == {7: (1, 1), 8: (2, 0), 9: (7, 0)}
    read = log.read(0, 10_000, Isolation.TXN_COMMITTED)
    assert offsets_of(read.data) == [0, 1, 2, 3, 4]
    assert [(a.producer_id, a.first_offset) for a in read.aborted] == [(8, 2)]
    assert log.offset_for_timestamp(3_000) == (3_000, 2)
    assert log.offset_of_max_timestamp() == (5_000, 7)
    log.close()
