"""The memory of a task does not depend on the number or the size of its inputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catalog.jobs.json_format import write_spec
from catalog.model import PartitionId
from core.clock import ManualClock
from core.ids import SeededIds
from object_format.codecs.codec import MAX_DECOMPRESSED_BATCH_BYTES, Codec
from object_store.local.store import LocalStore
from tests.spark_jobs.memory.dense_batch import DenseCase, write_dense_batch
from tests.spark_jobs.memory.measured_job import SPEC, TABLE_BYTES
from tests.spark_jobs.memory.sparse_section import write_sparse_section
from tests.spark_jobs.reference_log import BatchToWrite, ReferenceLog

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
LONG_SECTION_MIB = int(os.environ.get("LONG_SECTION_MIB", "2048"))
"""Size of the generated section; a longer run uses `LONG_SECTION_MIB=10240`."""

ALLOWED_BYTES = TABLE_BYTES + (256 << 20)
HALF_OF_THE_LARGEST = MAX_DECOMPRESSED_BATCH_BYTES // 2 - 100


@dataclass(frozen=True)
class Case:
    """`files` inputs; each has a section of `batches` batches for each of `partitions` partitions."""

    files: int
    batches: int
    records: int
    value_bytes: int
    partitions: int = 1
    codec: Codec = Codec.NONE
    random: bool = False


SPARSE_RECORDS = int(os.environ.get("SPARSE_RECORDS", "40000"))
"""Records that are far apart; a longer run uses `SPARSE_RECORDS=2000000`."""

SPARSE_GAP = 70_000  # more offsets than one container of a Roaring bitmap covers

WARM_UP = Case(1, 1, 5, 150, partitions=2)
CASES = {
    "one input with sections of 1 KiB": Case(1, 1, 5, 150, partitions=50),
    "200 inputs with sections of 1 KiB": Case(200, 1, 5, 150, partitions=4),
    "one input with a large section": Case(1, 40, 1000, 2000),
    "200 inputs with sections of 1 MB": Case(200, 2, 100, 5000),
    "the largest batch": Case(2, 1, 2, HALF_OF_THE_LARGEST),
    "the largest compressed batch": Case(3, 1, 2, HALF_OF_THE_LARGEST, codec=Codec.ZSTD),
    "compressed sections that keep most records": Case(20, 12, 100, 6000, codec=Codec.ZSTD, random=True),
    "more keys than the table holds": Case(4, 2, 25_000, 0),
}

SHUFFLED_CASES = {
    "200 inputs with sections of 1 KiB",
    "one input with a large section",
    "the largest batch",
    "more keys than the table holds",
}


def write_inputs(directory: Path, case: Case) -> Path:
    """Write the files of a case and the specification of the job over them."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(directory, ids), clock, ids)
    topic = log.create_topic("compact")
    make_value = ids.random_bytes if case.random else bytes
    made = 0
    for _ in range(case.files):
        sections = {}
        for partition in range(case.partitions):
            sections[PartitionId(topic, partition)] = [
                BatchToWrite(
                    tuple(
                        (1000, b"key-%012d" % each, make_value(case.value_bytes), ())
                        for each in range(first, first + case.records)
                    ),
                    case.codec,
                )
                # Half of the keys occur again, so that batches have both survivors and obsolete records.
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


class Measuring:
    """A process that forks another one for each job; it has loaded all modules."""

    def __init__(self, directory: Path) -> None:
        self._report = directory / "report.json"
        self._log = directory / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_jobs.memory.measured_job"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(
        self, plan: str, warm_up: Path, case: Path | int, allowed: int = ALLOWED_BYTES
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return the counts of a job and the most memory that each kind of its tasks took.

        Repeat the run if it took too much while kernels were compiled: the compiler's memory is not a task's.
        """
        while True:
            compiled_before = compiled_kernels()
            report = self._run(plan, str(warm_up), str(case), allowed)
            is_within_limit = report is not None and max(report["used"].values()) <= allowed
            if is_within_limit or compiled_kernels() == compiled_before:
                break
        assert report is not None, self._log.read_text()
        return report["counts"], report["used"]

    def _run(self, *job: str | int) -> dict[str, dict[str, int]] | None:
        """Return the report of a job; None if its process failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*job, str(self._report)]) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "0\n":
            return None
        report: dict[str, dict[str, int]] = json.loads(self._report.read_text())
        return report

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def measuring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measuring]:
    """Provide the process for the tests of this module."""
    process = Measuring(tmp_path_factory.mktemp("measuring"))
    yield process
    process.close()


def compiled_kernels() -> set[Path]:
    """Return the kernels in numba's cache, which no process compiles again."""
    directories = [
        ROOT / directory
        for directory in ("object_format", "spark_jobs", os.environ.get("NUMBA_CACHE_DIR", ""))
    ]
    return {cached for directory in directories if directory != ROOT for cached in directory.rglob("*.nbc")}


@pytest.mark.parametrize("name", CASES)
def test_each_task_stays_within_its_table_and_256_mib(
    name: str, directory: Path, measuring: Measuring
) -> None:
    """Both the peak of a task and its address space grow by no more than that over an idle worker.

    The shuffle plan has tasks of three kinds, which are measured separately.
    """
    case = CASES[name]
    warm_up, inputs = write_inputs(directory / "warm", WARM_UP), write_inputs(directory / "case", case)
    records = case.files * case.partitions * case.batches * case.records

    counts, used = measuring.run("task", warm_up, inputs)

    assert max(used.values()) <= ALLOWED_BYTES
    assert counts["table_bytes"] <= TABLE_BYTES
    assert counts["get_requests"] == 2 * case.files - counts["input_files_read_once"]
    assert counts["records_in"] == records
    assert (counts["keys_outside_table"] > 0) is ("table" in name)
    assert counts["peak_rss_bytes"] >= max(used.values())
    if name == "the largest batch":
        assert counts["largest_buffer_bytes"] > 2 * HALF_OF_THE_LARGEST
    if case.random:  # the early filter had memory for some sections only
        assert 0 < counts["input_files_read_once"] < case.files
        assert counts["largest_buffer_bytes"] > 56 << 20
    else:
        assert counts["input_files_read_once"] == 0

    if name not in SHUFFLED_CASES:
        return
    counts, used = measuring.run("shuffle", warm_up, inputs)

    assert used.keys() == {"cut", "judge", "write"}
    assert max(used.values()) <= ALLOWED_BYTES
    assert counts["table_bytes"] <= TABLE_BYTES
    assert counts["records_in"] == records
    assert counts["keys_outside_table"] == 0
    assert counts["peak_rss_bytes"] >= max(used.values())


def write_noise(directory: Path, codec: Codec) -> Path:
    """Write the largest batch, which loses one of 100 records, and files that the early filter can handle."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(directory, ids), clock, ids)
    partition = PartitionId(log.create_topic("compact"), 0)

    def noise(first: int, count: int, size: int) -> BatchToWrite:
        keys = [first, *range(first, first + count)]
        return BatchToWrite(
            tuple((1000, b"key-%012d" % key, ids.random_bytes(size), ()) for key in keys), codec
        )

    log.ingest({partition: [noise(0, 99, MAX_DECOMPRESSED_BATCH_BYTES // 100 - 100)]}, block_target=256 << 10)
    for first in (1000, 2000, 3000):
        few = [noise(each, 10, 180 << 10) for each in range(first, first + 100, 10)]
        log.ingest({partition: few}, block_target=256 << 10)
    (directory / SPEC).write_bytes(write_spec(log.job(table_bytes=TABLE_BYTES)))
    return directory


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_the_largest_incompressible_batch_stays_within_the_limit(
    codec: Codec, directory: Path, measuring: Measuring
) -> None:
    """The data is as large when it is stored, decompressed, filtered and compressed again."""
    warm_up, case = write_inputs(directory / "warm", WARM_UP), write_noise(directory / "case", codec)

    counts, used = measuring.run("task", warm_up, case)

    assert max(used.values()) <= ALLOWED_BYTES
    assert counts["records_in"] - counts["records_out"] == 1 + 30
    assert counts["bytes_out"] > MAX_DECOMPRESSED_BATCH_BYTES * 0.95
    assert counts["input_files_read_once"] == 0  # the early filter gave its memory back


def write_sparse(directory: Path) -> Path:
    """Write a compacted and a copied partition with few old records each, and new records."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(directory, ids), clock, ids)
    partitions = [PartitionId(log.create_topic(policy), 0) for policy in ("compact", "delete")]
    for partition in partitions:
        write_sparse_section(log, partition, SPARSE_RECORDS, SPARSE_GAP)
    news = [(1000, b"%016d" % each, b"", ()) for each in range(0, SPARSE_RECORDS, 100)]
    log.ingest({partition: [BatchToWrite(tuple(news))] for partition in partitions})
    (directory / SPEC).write_bytes(write_spec(log.job(table_bytes=TABLE_BYTES)))
    return directory


@pytest.mark.parametrize("plan", ["task", "shuffle"])
def test_memory_depends_on_the_number_of_records_and_not_on_their_offsets(
    plan: str, directory: Path, measuring: Measuring
) -> None:
    """After years of writes to a partition, the remaining records are far apart."""
    counts, used = measuring.run(
        plan, write_inputs(directory / "warm", WARM_UP), write_sparse(directory / "case")
    )

    assert max(used.values()) <= min(ALLOWED_BYTES, TABLE_BYTES + max(64 << 20, 128 * SPARSE_RECORDS))
    assert counts["records_in"] == 2 * (SPARSE_RECORDS + SPARSE_RECORDS // 100)
    assert counts["records_in"] - counts["records_out"] == SPARSE_RECORDS // 100
    assert counts["bytes_out"] < 100 * counts["records_out"]


WITH_HORIZONS = DenseCase(codec=Codec.LZ4, table_bytes=128 << 20, records=3_400_000, unique_keys=True)
DENSE_CASES = {
    "lz4: each record gets a delete horizon": ("task", WITH_HORIZONS),
    "gzip: each record gets a delete horizon": ("task", replace(WITH_HORIZONS, codec=Codec.GZIP)),
    "zstd: the table is too small": ("task", DenseCase(codec=Codec.ZSTD, table_bytes=TABLE_BYTES)),
    "snappy: some records are dropped": (
        "shuffle",
        DenseCase(codec=Codec.SNAPPY, table_bytes=TABLE_BYTES, repeats=True),
    ),
    "lz4: copied, with a gap in the offsets": (
        "task",
        DenseCase(codec=Codec.LZ4, table_bytes=TABLE_BYTES, gap=True, deduplicate=False),
    ),
}


@pytest.mark.parametrize("name", DENSE_CASES)
def test_the_largest_batch_of_the_smallest_records_stays_within_the_limit(
    name: str, directory: Path, measuring: Measuring
) -> None:
    """A task keeps nothing for each of the millions of records, except in the key table.

    A delete horizon adds five bytes to each record of a batch, which brings it near the largest size that can
    be read.
    """
    plan, dense = DENSE_CASES[name]
    warm_up, case = write_inputs(directory / "warm", WARM_UP), write_dense_batch(directory / "case", dense)
    allowed = dense.table_bytes + (256 << 20)

    counts, used = measuring.run(plan, warm_up, case, allowed)

    assert max(used.values()) <= allowed
    assert counts["records_in"] == dense.records
    assert counts["records_out"] == dense.records - (dense.records // 100 if dense.repeats else 0)
    if dense.unique_keys:
        assert (
            counts["largest_buffer_bytes"] > 1.6 * MAX_DECOMPRESSED_BATCH_BYTES
        )  # both the decompressed and the new batch
    else:
        assert counts["largest_buffer_bytes"] > 0.99 * MAX_DECOMPRESSED_BATCH_BYTES


@pytest.mark.timeout(900 + LONG_SECTION_MIB // 10)
@pytest.mark.parametrize("plan", ["task", "shuffle"])
def test_a_section_of_many_times_the_limit_stays_within_it(
    plan: str, directory: Path, measuring: Measuring
) -> None:
    """A store generates 2 GiB or more; the shuffle plan reads them in byte ranges that an index locates."""
    counts, used = measuring.run(plan, write_inputs(directory / "warm", WARM_UP), LONG_SECTION_MIB)

    assert max(used.values()) <= ALLOWED_BYTES
    assert counts["bytes_in"] > 2 * (LONG_SECTION_MIB - 1) << 20
    assert (counts["records_in"], counts["records_out"]) == (LONG_SECTION_MIB, 1)
    if plan == "shuffle":
        assert counts["get_requests"] == 2 * counts["shares"] >= 16
        assert counts["index_reads"] == 2 * (counts["shares"] - 1)
    else:
        assert counts["get_requests"] == 2
