"""Both passes over a large batch, in a process with the memory limit of a task.

`tests/spark_jobs/memory` measures whole tasks, with batches of every codec.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
TABLE_BYTES = 4 << 20
ALLOWED_BYTES = TABLE_BYTES + (256 << 20)
RECORDS = 100
SIZE = 100 << 20

CHILD = """
import json, resource, sys
from pathlib import Path
from object_format.dedupe import KeyTable, SurvivorFinder, filter_batches

def run(path, table):
    data = Path(path).read_bytes()
    finder = SurvivorFinder(table, bytes(16), reaches_log_start=True, now_ms=0)
    finder.begin_section(unique_keys=False)
    finder.feed(data, offset_shift=0)
    finder.end_section()
    survivors = finder.finish()
    written = filter_batches(data, survivors, offset_shift=0, leader_epoch=0, delete_horizon_ms=None)
    return {"records_out": written.record_count, "size": written.size}

warm, case, table_bytes, allowed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
run(warm, KeyTable(4096))
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + allowed
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(json.dumps(run(case, KeyTable(table_bytes))))
"""


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "case"
    (tmp_path / "case").unlink()  # about 100 MB


def batch(size: int) -> bytes:
    """Return records of incompressible noise; all but one of them survive."""
    count = RECORDS
    keys = [b"0", *(b"%d" % i for i in range(count))]
    noise = np.random.default_rng(1).bytes(size - 10_000)
    each = len(noise) // count
    values = [noise[i * each : (i + 1) * each] for i in range(count)]
    return encode_batch([1] * len(keys), keys, [b"", *values])


def test_a_batch_of_100_mib_fits_into_256_mib_besides_the_table(path: Path) -> None:
    warm = path.with_name("warm")
    warm.write_bytes(batch(200_000))
    data = batch(SIZE)
    path.write_bytes(data)
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(warm), str(path), str(TABLE_BYTES), str(ALLOWED_BYTES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["records_out"] == RECORDS
    assert report["size"] > 0.99 * len(data) > 0.98 * SIZE
