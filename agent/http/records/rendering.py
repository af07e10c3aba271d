"""Render fetched records as JSON, one record per line, and send the response.

Rendering runs in a pool, slice by slice, so that one large response does not delay others. The memory of the
response is reserved until the client has received it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response
from typing_extensions import override

from agent.http.records.text_or_base64 import put_bytes
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.types import Receive, Scope, Send

    from agent.read.fetch_memory import FetchMemory, HeldRecords
    from agent.read.fetch_result import FetchResult
    from agent.runtime.work_pool import WorkPool
    from catalog.model import AbortedTransaction
    from object_format.record_batch.records import Record

# Bounds of one slice: some milliseconds of rendering.
_SLICE_RECORDS = 1_000
_SLICE_BYTES = 256 * 1024
# About what the server buffers before it waits for the client.
_SENT_AT_ONCE = 64 * 1024


@dataclass(slots=True)
class _Page:
    """The size of a response so far. The first record may exceed `max_bytes`."""

    max_records: int
    max_bytes: int
    records: int = 0
    size: int = 0
    next_offset: int = -1

    def line(self, record: Record) -> bytes | None:
        """Return the next line, or None if the page is full."""
        if self.records >= self.max_records:
            return None
        line = orjson.dumps(_as_json(record))
        if self.records and self.size + len(line) > self.max_bytes:
            return None
        self.records += 1
        self.size += len(line)
        self.next_offset = record.offset + 1
        return line


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


class RecordsRendering:
    """Incremental rendering of the records from `from_offset` on; at least one record if there is any.

    Call `step` until it returns False, then `pieces`. The steps may run in any thread, one at a time. Control
    batches are skipped. If all fetched records fit, the response's `next_offset` is that of the fetch.
    Otherwise it follows the last record of the response.
    """

    def __init__(
        self, topic: str, fetched: FetchResult, *, from_offset: int, max_records: int, max_bytes: int
    ) -> None:
        self._topic = topic
        self._fetched = fetched
        self._page = _Page(max_records, max_bytes)
        self._records = _records(fetched.batches, from_offset)
        self._slices: list[bytes] = []
        self._is_complete = False

    @property
    def size(self) -> int:
        """Bytes of the lines so far."""
        return self._page.size

    def limit(self, more_bytes: int) -> None:
        """Render at most `more_bytes` more, if that is less than before."""
        self._page.max_bytes = min(self._page.max_bytes, self._page.size + more_bytes)

    def step(self) -> bool:
        """Render a slice of the records. Return True if there may be more."""
        lines: list[bytes] = []
        size = 0
        is_open = True
        while is_open and len(lines) < _SLICE_RECORDS and size < _SLICE_BYTES:
            record = next(self._records, None)
            line = None if record is None else self._page.line(record)
            if line is None:
                self._is_complete = record is None
                is_open = False
            else:
                lines.append(line)
                size += len(line)
        if lines:
            self._slices.append(b",\n".join(lines))
        return is_open

    def pieces(self) -> list[bytes]:
        """Return the response in pieces. A piece is at most a slice or one record."""
        head = {
            "topic": self._topic,
            "partition": self._fetched.partition,
            "log_start_offset": self._fetched.log_start_offset,
            "high_watermark": self._fetched.high_watermark,
            "next_offset": self._fetched.next_offset if self._is_complete else self._page.next_offset,
        }
        # The records come last, one per line, to be readable in a terminal.
        pieces = [orjson.dumps(head)[:-1], b',"records":[']
        for number, lines in enumerate(self._slices):
            pieces += (b",\n" if number else b"\n", lines)
        pieces.append(b"\n]}\n" if self._slices else b"]}\n")
        return pieces


def _records(runs: Sequence[bytearray | memoryview], from_offset: int) -> Iterator[Record]:
    for run in runs:
        for columns in decode_batches(run):
            for record in columns.records():
                if record.offset >= from_offset:
                    yield record


class PendingResponse(Response):
    """Response to a read of records that renders and sends its body in one call.

    It reserves `fetched_bytes` of `budget` while it renders, and the lines that it has rendered, then the
    size of the body until the body is sent. The body gets a share of the free memory, but at least one
    record. An error, or a client that disconnects or stalls, ends the call and releases the memory.
    `BusyError` is raised before anything is sent if the body does not fit in the budget.
    """

    media_type = "application/json"

    def __init__(
        self, rendering: RecordsRendering, *, fetched_bytes: int, budget: FetchMemory, pool: WorkPool
    ) -> None:
        super().__init__()
        self._rendering: RecordsRendering | None = rendering
        self._fetched_bytes = fetched_bytes
        self._budget = budget
        self._pool = pool

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Render the body and send it piece by piece, as fast as the client reads."""
        with self._budget.reserving(self._fetched_bytes), self._budget.holding() as lines:
            pieces = await self._render(lines)
        size = sum(map(len, pieces))
        self.headers["content-length"] = str(size)
        with self._budget.reserving_response(size):
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            for piece in pieces:
                for start in range(0, len(piece), _SENT_AT_ONCE):
                    body = piece[start : start + _SENT_AT_ONCE]
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            # The server accepts this when its buffer is short again.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _render(self, lines: HeldRecords) -> list[bytes]:
        """Render the page slice by slice, and reserve each slice as soon as its size is known.

        Responses take turns in the pool, so many pages may be rendered in part, however few threads there
        are. Each slice is therefore planned with what the slices of all others leave.
        """
        rendering, self._rendering = self._rendering, None  # releases the fetched bytes after rendering
        assert rendering is not None
        is_open = True
        while is_open:
            rendering.limit(self._budget.share)
            is_open = await self._pool.run(rendering.step)
            size = rendering.size - lines.size
            # The body may take the place of the fetched bytes.
            if size > self._budget.free + self._fetched_bytes:
                raise self._budget.rejection(size)
            lines.add_unchecked(size)
        return rendering.pieces()


def drop_unread(
    runs: Sequence[bytearray | memoryview], aborted: Sequence[AbortedTransaction]
) -> list[memoryview]:
    """Return the runs without control batches, and without transactional ones in their producers' ranges."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for each in aborted:
        ranges.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
    kept: list[memoryview] = []
    for run in runs:
        view, start, end = memoryview(run), 0, 0
        for position, header in iter_headers(run):
            end = position + header.size
            is_aborted = header.is_transactional and any(
                first <= header.base_offset <= last for first, last in ranges.get(header.producer_id, ())
            )
            if is_aborted or header.is_control:
                kept.append(view[start:position])
                start = end
        kept.append(view[start:end])
    return [run for run in kept if len(run)]
