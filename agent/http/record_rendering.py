"""Records as JSON, one on each line: what a reader of the HTTP API gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from agent.http.text_or_base64 import put_bytes
from object_format.records import decode_batches

if TYPE_CHECKING:
    from agent.read_path import FetchResult
    from object_format.records import Record


@dataclass(slots=True)
class _Page:
    """The lines of one answer, within a number of records and (but for the first record) of bytes."""

    max_records: int
    max_bytes: int
    lines: list[bytes]
    size: int = 0
    next_offset: int = -1

    def add(self, record: Record) -> bool:
        """Add a record unless the page is full."""
        line = orjson.dumps(_as_json(record))
        if self.lines and (len(self.lines) >= self.max_records or self.size + len(line) > self.max_bytes):
            return False
        self.lines.append(line)
        self.size += len(line)
        self.next_offset = record.offset + 1
        return True


def _as_json(record: Record) -> dict[str, object]:
    body: dict[str, object] = {"offset": record.offset, "timestamp": record.timestamp}
    put_bytes(body, "key", record.key)
    put_bytes(body, "value", record.value)
    headers = []
    for name, value in record.headers:
        header: dict[str, object] = {"key": name}
        put_bytes(header, "value", value)
        headers.append(header)
    body["headers"] = headers
    return body


def render_records(
    topic: str, fetched: FetchResult, *, from_offset: int, max_records: int, max_bytes: int
) -> bytes:
    """The answer to a read from `from_offset`; at least one record if there is any.

    Control batches hold no records of a producer and are passed over. `next_offset` is where to go on: behind
    the last record that is given, or, when all that was fetched is given, behind what was fetched.
    """
    page = _Page(max_records, max_bytes, [])
    is_whole = all(_add_run(page, run, from_offset) for run in fetched.batches)
    head = {
        "topic": topic,
        "partition": fetched.partition,
        "log_start_offset": fetched.log_start_offset,
        "high_watermark": fetched.high_watermark,
        "next_offset": fetched.next_offset if is_whole else page.next_offset,
    }
    # The records come last, one on each line, for those who read this in a terminal.
    opening = orjson.dumps(head)[:-1] + b',"records":['
    if page.lines:
        return opening + b"\n" + b",\n".join(page.lines) + b"\n]}\n"
    return opening + b"]}\n"


def _add_run(page: _Page, run: bytearray, from_offset: int) -> bool:
    """Add the records of one run of batches; False when the page is full."""
    for columns in decode_batches(run):
        for record in columns.records():
            if record.offset >= from_offset and not page.add(record):
                return False
    return True
