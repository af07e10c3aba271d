"""Warm-up: calls the kernels of both paths once before clients connect.

The first kernel of a process starts numba's runtime, which takes half a second of CPU time and keeps the GIL,
so that no heartbeat is processed. The first call of any kernel also waits for kernels that are being compiled
in the same process, which may take minutes if nothing is cached and a compaction runs in the process. The
event loop must therefore not be the first to call a kernel.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np

from agent.http.transport.json_size import count_items
from agent.kafka.fast_path.fetch_parser import FetchParser
from agent.kafka.fast_path.produce_parser import COLUMNS, ProduceParser, validate_decompressed
from agent.write.ingestion_buffer import OpenFile, Piece
from agent.write.ingestion_file import seal
from agent.write.pending_append import PendingAppend
from agent.write.validation import ValidatedBatch, append_rules_of
from catalog.config.values import TopicConfig
from core.clock import SystemClock
from core.ids import SystemIds
from local_tier.config import LogConfig
from local_tier.files.file_system import RealFileSystem
from local_tier.log.log_loader import open_log
from local_tier.log.unified_log import Isolation
from local_tier.topic_partition import TopicPartition
from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.errors import InvalidRecordError
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from object_format.record_batch.append_rules import validate_append
from object_format.record_batch.headers import patch_offsets, trim_batches
from object_format.record_batch.records import Record, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_ID: Final = UUID(int=0)
_READ_BYTES: Final = 1 << 20
_RECORD: Final = Record(0, 1, b"key", b"value")


def warm_up() -> None:
    """Pass batches of several kinds through both paths, in memory. Blocking."""
    records = [_RECORD]
    rules = append_rules_of(TopicConfig())
    file = OpenFile()
    for partition, codec in enumerate((Codec.NONE, Codec.LZ4)):
        data, summaries = validate_append("nowhere", encode_records(records, codec=codec), rules, now_ms=1)
        batches = tuple(ValidatedBatch.of(summary) for summary in summaries)
        pending = PendingAppend(len(batches))
        piece = Piece(data=data, batches=batches, pending=pending, first_batch=0)
        file.add(_NO_ID, partition, piece)
        seal(file, file_id=_NO_ID, session_id=_NO_ID, created_ms=1)
        patch_offsets(data, 0, 0)
        trim_batches(data, first_offset=0)
    validate_append("nowhere", encode_records(records), replace(rules, append_time=True), now_ms=1)
    with suppress(InvalidRecordError):
        keyless = encode_records([Record(0, 1, None, b"value")])
        validate_append("nowhere", keyless, replace(rules, require_keys=True), now_ms=1)
    _append_to_a_local_log()
    count_items(b"{}")
    FetchParser(1).read(memoryview(bytearray(1)), 0, 12)
    parser = ProduceParser(1)
    parser.read(memoryview(bytearray(1)), 0, is_flexible=True, by_id=False)
    parser.decompress_quickly(memoryview(bytearray(1)), np.empty(1, np.uint8))
    parser.decompress_all(memoryview(bytearray(1)), np.empty(1, np.uint8))
    validate_decompressed(readable(bytes(BATCH_OVERHEAD)), readable(b""), np.zeros(COLUMNS, np.int64))


class _NoScheduler:
    """Drops the work that a log schedules for later."""

    def schedule_once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> None:
        """Ignore the task."""


def _append_to_a_local_log() -> None:
    """Append as a leader and as the tail cache does, close, recover and read, in a temporary directory."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="siltstone-warm-up-") as directory:
        opening = partial(
            open_log,
            RealFileSystem(),
            Path(directory),
            LogConfig(),
            topic_partition=TopicPartition("warm-up", 0),
            clock=clock,
            ids=SystemIds(clock),
            scheduler=_NoScheduler(),
            on_failure=_ignore,
            log_start_offset=0,
            recovery_point=0,
            had_clean_shutdown=False,
        )
        log = opening()
        for offset in (0, 2):
            log.append_as_leader(bytearray(encode_records([_RECORD])), 0)
            log.append_as_follower(encode_records([replace(_RECORD, offset=offset + 1)]))
        log.close()
        log = opening()
        log.read(0, _READ_BYTES, Isolation.LOG_END)
        log.close()


def _ignore(*_: object) -> None:
    """Take a failure that cannot occur here."""
