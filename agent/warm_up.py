"""Warm-up: calls the kernels of both paths once before clients connect.

The first kernel of a process starts numba's runtime, which takes half a second of CPU time and keeps the GIL,
so that no heartbeat is processed. The first call of any kernel also waits for kernels that are being compiled
in the same process, which may take minutes if nothing is cached and a compaction runs in the process. The
event loop must therefore not be the first to call a kernel.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
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
from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.errors import InvalidRecordError
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from object_format.record_batch.append_rules import validate_append
from object_format.record_batch.headers import patch_offsets, trim_batches
from object_format.record_batch.records import Record, encode_records

_NO_ID = UUID(int=0)


def warm_up() -> None:
    """Pass batches of several kinds through both paths, in memory. Blocking."""
    records = [Record(0, 1, b"key", b"value")]
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
    count_items(b"{}")
    FetchParser(1).read(memoryview(bytearray(1)), 0, 12)
    parser = ProduceParser(1)
    parser.read(memoryview(bytearray(1)), 0, is_flexible=True, by_id=False)
    parser.decompress_quickly(memoryview(bytearray(1)), np.empty(1, np.uint8))
    parser.decompress_all(memoryview(bytearray(1)), np.empty(1, np.uint8))
    validate_decompressed(readable(bytes(BATCH_OVERHEAD)), readable(b""), np.zeros(COLUMNS, np.int64))
