"""What one task takes does not depend on the number or the size of its inputs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bedrock.clock import ManualClock
from bedrock.ids import SeededIds
from catalog.job_json import write_spec
from catalog.model import PartitionId
from object_format.codecs import MAX_DECOMPRESSED_BATCH_BYTES, Codec
from object_store.local import LocalStore
from tests.spark_jobs.memory_child import SPEC
from tests.spark_jobs.model_log import BatchToWrite, ModelLog

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TABLE_BYTES = 4 << 20
ALLOWED_BYTES = TABLE_BYTES + (256 << 20)
HALF_OF_THE_LARGEST = MAX_DECOMPRESSED_BATCH_BYTES // 2 - 100


@dataclass(frozen=True)
class Case:
    """`files` inputs, each with a section of `batches` batches in each of `partitions` partitions."""

    files: int
    batches: int
    records: int
    value_bytes: int
    partitions: int = 1
    codec: Codec = Codec.NONE


WARM = Case(1, 1, 5, 150, partitions=2)
CASES = {
    "one input with sections of 1 KiB": Case(1, 1, 5, 150, partitions=50),
    "200 inputs with sections of 1 KiB": Case(200, 1, 5, 150, partitions=4),
    "one input with a large section": Case(1, 100, 1000, 2000),
    "200 inputs with sections of 1 MB": Case(200, 2, 100, 5000),
    "the largest batch": Case(2, 1, 2, HALF_OF_THE_LARGEST),
    "the largest compressed batch": Case(3, 1, 2, HALF_OF_THE_LARGEST, codec=Codec.ZSTD),
    "more keys than the table takes": Case(4, 2, 100_000, 0),
}


def write_inputs(directory: Path, case: Case) -> Path:
    """The case's files, and the job over them."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ModelLog(LocalStore(directory, ids), clock, ids)
    topic = log.create_topic("compact")
    value = bytes(case.value_bytes)
    made = 0
    for _ in range(case.files):
        sections = {}
        for partition in range(case.partitions):
            sections[PartitionId(topic, partition)] = [
                BatchToWrite(
                    tuple(
                        (1000, b"key-%012d" % each, value, ()) for each in range(first, first + case.records)
                    ),
                    case.codec,
                )
                # Half of the keys come again, so that batches are mixed.
                for first in range(made // 2, (made + case.batches * case.records) // 2, case.records // 2)
            ][: case.batches]
            made += case.batches * case.records
        log.ingest(sections, block_target=256 << 10)
    (directory / SPEC).write_bytes(write_spec(log.job(table_bytes=TABLE_BYTES)))
    return directory


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # hundreds of megabytes


@pytest.mark.parametrize("name", CASES)
def test_a_task_stays_within_its_table_and_256_mib(name: str, directory: Path) -> None:
    """Over an idle worker: by its peak, and with no more address space than that to grow into."""
    case = CASES[name]
    directories = [write_inputs(directory / "warm", WARM), write_inputs(directory / "case", case)]

    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark_jobs.memory_child", *directories, str(ALLOWED_BYTES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["taken_bytes"] <= ALLOWED_BYTES
    assert told["peak_rss_bytes"] >= told["idle_bytes"]
    assert told["table_bytes"] <= TABLE_BYTES
    assert told["get_requests"] == 2 * case.files
    assert told["records_in"] == case.files * case.partitions * case.batches * case.records
    assert (told["keys_outside_table"] > 0) is ("table" in name)
    if name == "the largest batch":
        assert told["largest_buffer_bytes"] > 2 * HALF_OF_THE_LARGEST
