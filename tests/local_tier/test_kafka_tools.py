"""Kafka's own DumpLogSegments reads every kind of file that a log writes, and reports the same content."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from local_tier.config import LogConfig
from local_tier.producers.producer_state_entry import AppendOrigin
from object_format.codecs.codec import Codec
from object_format.record_batch.records import encode_batch
from tests.fixtures import kafka_tools
from tests.local_tier.batches import batch, marker
from tests.local_tier.logs import SMALL, LogHarness, crash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from local_tier.log.unified_log import UnifiedLog

DENSE = replace(SMALL, segment_bytes=1500, index_interval_bytes=100)


def written(harness: LogHarness) -> UnifiedLog:
    """Return a log with several segments, all codecs, transactions, epochs and a recovered tail."""
    log = harness.open(DENSE)
    for i in range(12):
        log.append_as_leader(batch(0, 3, size=90, producer=(7, 2, 3 * i), timestamp=5_000 + i), i // 5)
    for codec in Codec:
        log.append_as_leader(encode_batch([6_000, 5_500], [b"a", None], [b"v" * 50, None], codec=codec), 3)
    for producer, abort in ((8, True), (9, False), (10, True)):
        log.append_as_leader(batch(0, 2, producer=(producer, 0, 0), transactional=True), 3)
        log.append_as_leader(
            marker(0, producer=(producer, 0), abort=abort), 3, origin=AppendOrigin.COORDINATOR
        )
    log.append_as_leader(batch(0, 2, producer=(11, 0, 0), transactional=True), 4)
    log.flush()
    crash(log)
    with log.active_segment.path.open("ab") as file:
        file.write(b"torn")
    log = harness.open(DENSE)
    log.update_config(LogConfig(segment_index_bytes=1200, log_append_time=True))
    log.append_as_leader(batch(0, 2), 5)
    return log


class Dump:
    """The output of Kafka's tool by file."""

    def __init__(self, paths: list[Path]) -> None:
        files = ",".join(map(str, paths))
        self.text = kafka_tools.run(
            "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", files
        )
        self.by_file = {
            Path(part.split("\n", 1)[0]): part for part in re.split(r"(?m)^Dumping ", self.text)[1:]
        }

    def values(self, path: Path, *names: str) -> list[tuple[int, ...]]:
        """Return the values of those names in each line that has all of them."""
        pattern = ".*?".join(rf"\b{name}: (-?\d+)" for name in names)
        return [tuple(map(int, found)) for found in re.findall(pattern, self.by_file[path])]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[UnifiedLog, list[Path], Dump]]:
    """Start Java once for all files."""
    harness = LogHarness(tmp_path_factory.mktemp("kafka"))
    log = written(harness)
    log.close()
    kinds = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    paths = sorted(path for path in harness.directory.iterdir() if path.suffix in kinds)
    assert {path.suffix for path in paths} == kinds
    dump = Dump(paths)
    log = harness.open(DENSE, clean=True)
    yield log, paths, dump
    log.close()


def test_kafka_finds_nothing_wrong(scene: tuple[UnifiedLog, list[Path], Dump]) -> None:
    """It reports no mismatch of indexes and batches, no invalid batch, and no wrong order."""
    _, paths, dump = scene
    assert set(dump.by_file) == set(paths)
    complaints = (
        r"(?im)^.*(mismatch|out of order|corrupt|invalid|error|isvalid: false|could not|exception).*$"
    )
    assert re.findall(complaints, dump.text) == []


def test_kafka_reads_our_batches_and_index_entries(scene: tuple[UnifiedLog, list[Path], Dump]) -> None:
    """All batches and entries are compared."""
    log, _, dump = scene
    assert len(log.segments) > 2
    offset = 0
    for segment in log.segments:
        batches = dump.values(segment.path, "baseOffset", "lastOffset", "position", "size")
        for base, last, _, _ in batches:
            assert base == offset
            offset = last + 1
        assert sum(size for *_, size in batches) == segment.size
        index, times = segment.offset_index, segment.time_index
        entries = [tuple(index.entry(slot)) for slot in range(index.entries)]
        assert dump.values(index.path, "offset", "position") == entries
        stamps = [tuple(times.entry(slot)) for slot in range(times.entries)]
        assert dump.values(times.path, "timestamp", "offset") == stamps
    assert offset == log.log_end_offset


def test_kafka_reads_our_transactions_and_producers(scene: tuple[UnifiedLog, list[Path], Dump]) -> None:
    """Aborted transactions are in their index, and each producer is in the newest snapshot."""
    log, paths, dump = scene
    aborted = [
        found
        for path in paths
        if path.suffix == ".txnindex"
        for found in dump.values(path, "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    ]
    assert aborted == [tuple(entry) for entry in log.collect_aborted(0, log.log_end_offset)]
    assert [entry[0] for entry in aborted] == [8, 10]
    newest = max(path for path in paths if path.suffix == ".snapshot")
    assert int(newest.stem) == log.log_end_offset
    found = dump.values(newest, "producerId", "producerEpoch", "lastSequence", "lastOffset")
    known = log._producer_states.producers
    assert {entry[0]: entry[1:] for entry in found} == {
        producer_id: (state.producer_epoch, state.last_sequence, state.last_offset)
        for producer_id, state in known.items()
    }
    assert set(known) == {7, 8, 9, 10, 11}
