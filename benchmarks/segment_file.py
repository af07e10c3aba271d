"""How fast segment files are written and read forward, compared with memory and checksums.

    python -m benchmarks.segment_file [--quick] [--json]

Everything runs in memory, with alternating steps. Figures are medians in MB/s of batch bytes. `memcpy` (to
one buffer of a megabyte) and `crc32c` of the same bytes are the limits: a writer computes one checksum; a
reader copies once from its source and computes one checksum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import time
from typing import TYPE_CHECKING
from uuid import UUID

from crc32c import crc32c

from object_format.segment_file import ForwardReader, SegmentFileWriter, SegmentKind

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCH = struct.Struct(">qiibIhiqqqhii")
_APPEND_BYTES = 1024 * 1024


def make_batches(total: int, size: int) -> bytearray:
    """Return about `total` bytes of one-record batches of `size` bytes each."""
    data = bytearray()
    for offset in range(total // size):
        data += _BATCH.pack(offset, size - 12, 0, 2, 0, 0, 0, 1, 1, -1, -1, -1, 1)
        data += bytes(size - _BATCH.size)
    return data


def write(
    data: bytearray,
    count: int,
    sections: int,
    sink: Callable[[bytes | memoryview], object],
    *,
    stable: bool,
) -> None:
    """Write a file with the same `count` batches in each section, appended in pieces of about a megabyte."""
    writer = SegmentFileWriter(
        kind=SegmentKind.INGESTION, file_id=UUID(int=1), writer_id=UUID(int=2), created_ms=0, sink=sink
    )
    view = memoryview(data)
    size = len(data) // count
    step = max(_APPEND_BYTES // size, 1) * size
    for section in range(sections):
        writer.begin_section(UUID(int=3), section)
        for start in range(0, len(data), step):
            writer.append(view[start : start + step], stable=stable)
        writer.end_section(
            base_offset=0, last_offset=count - 1, record_count=count, min_timestamp=1, max_timestamp=1
        )
    writer.finish()


class _Memory:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._position = 0

    def readinto(self, target: memoryview, /) -> int:
        count = min(len(target), len(self._data) - self._position)
        target[:count] = self._data[self._position : self._position + count]
        self._position += count
        return count


def read(data: bytes, *, skip: bool) -> None:
    """Read the file forward, with or without accessing its blocks."""
    reader = ForwardReader(_Memory(data), name="benchmark", size=len(data))
    while reader.next_section() is not None:
        if not skip:
            for _ in reader.blocks():
                pass


def measure(total: int, size: int, sections: int, rounds: int) -> dict[str, int]:
    """Return MB/s by operation; the first round only warms up."""
    data = make_batches(total // sections, size)
    count = len(data) // size
    parts: list[bytes | memoryview] = []
    write(data, count, sections, parts.append, stable=True)
    file = b"".join(parts)
    target = memoryview(bytearray(_APPEND_BYTES))

    def memcpy() -> None:
        source = _Memory(file)
        while source.readinto(target):
            pass

    steps: dict[str, Callable[[], object]] = {
        "memcpy": memcpy,
        "crc32c": lambda: crc32c(file),
        "write_stable": lambda: write(data, count, sections, len, stable=True),
        "write_reused": lambda: write(data, count, sections, len, stable=False),
        "read": lambda: read(file, skip=False),
        "pass_over": lambda: read(file, skip=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {
        name: round(len(data) * sections / statistics.median(taken[1:]) / 1e6)
        for name, taken in seconds.items()
    }


CASES = {
    "one section, batches of 16 KiB": (16_384, 1),
    "one section, batches of 100 bytes": (100, 1),
    "1,000 sections, batches of 1 KiB": (1024, 1000),
}


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="an eighth of the bytes, fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    total, rounds = (8 * 2**20, 3) if arguments.quick else (64 * 2**20, 7)
    results = {case: measure(total, *shape, rounds) for case, shape in CASES.items()}
    if arguments.json:
        print(json.dumps({"unit": "MB/s", "bytes": total, "results": results}))
        return
    columns = list(next(iter(results.values())))
    print(f"{'MB/s':<36}" + "".join(f"{column:>14}" for column in columns))
    for case, figures in results.items():
        print(f"{case:<36}" + "".join(f"{figures[column]:>14,}" for column in columns))


if __name__ == "__main__":
    main()
