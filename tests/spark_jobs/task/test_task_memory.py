"""What one task takes does not depend on the number or the size of its inputs."""

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
from tests.spark_jobs.model_log import BatchToWrite, ModelLog
from tests.spark_jobs.task.dense_log import DenseCase, write_dense
from tests.spark_jobs.task.memory_child import SPEC, TABLE_BYTES
from tests.spark_jobs.task.sparse_section import keep_sparse

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
#: A longer run: LONG_SECTION_MIB=10240
LONG_SECTION_MIB = int(os.environ.get("LONG_SECTION_MIB", "2048"))
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
    random: bool = False


SPARSE_RECORDS = 40_000
SPARSE_GAP = 70_000  # more than a container of a Roaring bitmap has room for

WARM = Case(1, 1, 5, 150, partitions=2)
CASES = {
    "one input with sections of 1 KiB": Case(1, 1, 5, 150, partitions=50),
    "200 inputs with sections of 1 KiB": Case(200, 1, 5, 150, partitions=4),
    "one input with a large section": Case(1, 40, 1000, 2000),
    "200 inputs with sections of 1 MB": Case(200, 2, 100, 5000),
    "the largest batch": Case(2, 1, 2, HALF_OF_THE_LARGEST),
    "the largest compressed batch": Case(3, 1, 2, HALF_OF_THE_LARGEST, codec=Codec.ZSTD),
    "compressed sections, of which much is left": Case(20, 12, 100, 6000, codec=Codec.ZSTD, random=True),
    "more keys than the table takes": Case(4, 2, 25_000, 0),
}


SPREAD = {
    "200 inputs with sections of 1 KiB",
    "one input with a large section",
    "the largest batch",
    "more keys than the table takes",
}


def write_inputs(directory: Path, case: Case) -> Path:
    """The case's files, and the job over them."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ModelLog(LocalStore(directory, ids), clock, ids)
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


def run_child(
    plan: str, warm: Path, case: Path | int, allowed: int = ALLOWED_BYTES
) -> tuple[dict[str, int], dict[str, int]]:
    """What the tasks of a plan count, and what each kind of them took at most.

    Once more, if it was too much, where kernels were compiled meanwhile: a compiler's memory is not a task's.
    """
    while True:
        known = compiled_kernels()
        ran = subprocess.run(
            [sys.executable, "-m", "tests.spark_jobs.task.memory_child", plan, warm, str(case), str(allowed)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        told = json.loads(ran.stdout) if ran.returncode == 0 else None
        is_sufficient = told is not None and max(told["taken"].values()) <= allowed
        if is_sufficient or compiled_kernels() == known:
            break
    assert told is not None, ran.stderr
    return told["counts"], told["taken"]


def compiled_kernels() -> set[Path]:
    """Those that numba has kept, which no process compiles again."""
    rooms = [ROOT / room for room in ("object_format", "spark_jobs", os.environ.get("NUMBA_CACHE_DIR", ""))]
    return {kept for room in rooms if room != ROOT for kept in room.rglob("*.nbc")}


@pytest.mark.parametrize("name", CASES)
def test_tasks_stay_within_their_table_and_256_mib(name: str, directory: Path) -> None:
    """Over an idle worker: by their peak, and with no more address space than that to grow into.

    By either plan, of which the exact one has tasks of three kinds, each measured apart.
    """
    case = CASES[name]
    warm, inputs = write_inputs(directory / "warm", WARM), write_inputs(directory / "case", case)
    records = case.files * case.partitions * case.batches * case.records

    counts, taken = run_child("task", warm, inputs)

    assert max(taken.values()) <= ALLOWED_BYTES
    assert counts["table_bytes"] <= TABLE_BYTES
    assert counts["get_requests"] == 2 * case.files - counts["input_files_read_once"]
    assert counts["records_in"] == records
    assert (counts["keys_outside_table"] > 0) is ("table" in name)
    assert counts["peak_rss_bytes"] >= max(taken.values())
    if name == "the largest batch":
        assert counts["largest_buffer_bytes"] > 2 * HALF_OF_THE_LARGEST
    if case.random:  # some sections found room for what is left of them, and some did not
        assert 0 < counts["input_files_read_once"] < case.files
        assert counts["largest_buffer_bytes"] > 56 << 20
    else:
        assert counts["input_files_read_once"] == 0

    if name not in SPREAD:
        return
    counts, taken = run_child("shuffle", warm, inputs)

    assert taken.keys() == {"cut", "judge", "write"}
    assert max(taken.values()) <= ALLOWED_BYTES
    assert counts["table_bytes"] <= TABLE_BYTES
    assert counts["records_in"] == records
    assert counts["keys_outside_table"] == 0
    assert counts["peak_rss_bytes"] >= max(taken.values())


def write_noise(directory: Path, codec: Codec) -> Path:
    """The largest batch, of which all but one record of a hundred stays, and as much as is thinned ahead."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ModelLog(LocalStore(directory, ids), clock, ids)
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
def test_the_largest_batch_of_what_does_not_compress_takes_no_more(codec: Codec, directory: Path) -> None:
    """Stored, opened, thinned and compressed again, it is as large each time."""
    warm, case = write_inputs(directory / "warm", WARM), write_noise(directory / "case", codec)

    counts, taken = run_child("task", warm, case)

    assert max(taken.values()) <= ALLOWED_BYTES
    assert counts["records_in"] - counts["records_out"] == 1 + 30
    assert counts["bytes_out"] > MAX_DECOMPRESSED_BATCH_BYTES * 0.95
    assert counts["input_files_read_once"] == 0  # what was thinned ahead has made way


def write_sparse(directory: Path) -> Path:
    """A cleaned and a copied partition, of both of which few old records are left, and new records."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ModelLog(LocalStore(directory, ids), clock, ids)
    partitions = [PartitionId(log.create_topic(policy), 0) for policy in ("compact", "delete")]
    for partition in partitions:
        keep_sparse(log, partition, SPARSE_RECORDS, SPARSE_GAP)
    news = [(1000, b"%016d" % each, b"", ()) for each in range(0, SPARSE_RECORDS, 100)]
    log.ingest({partition: [BatchToWrite(tuple(news))] for partition in partitions})
    (directory / SPEC).write_bytes(write_spec(log.job(table_bytes=TABLE_BYTES)))
    return directory


@pytest.mark.parametrize("plan", ["task", "shuffle"])
def test_what_a_task_takes_goes_with_its_records_and_not_with_their_offsets(
    plan: str, directory: Path
) -> None:
    """In a partition that has been written to for years, each record that is left is alone for miles."""
    counts, taken = run_child(plan, write_inputs(directory / "warm", WARM), write_sparse(directory / "case"))

    assert max(taken.values()) <= TABLE_BYTES + (64 << 20)
    assert counts["records_in"] == 2 * (SPARSE_RECORDS + SPARSE_RECORDS // 100)
    assert counts["records_in"] - counts["records_out"] == SPARSE_RECORDS // 100
    assert counts["bytes_out"] < 100 * counts["records_out"]


STAMPED = DenseCase(codec=Codec.LZ4, table_bytes=128 << 20, records=3_400_000, unique_keys=True)
DENSE = {
    "lz4: each gets a horizon": ("task", STAMPED),
    "gzip: each gets a horizon": ("task", replace(STAMPED, codec=Codec.GZIP)),
    "zstd: the table is too small": ("task", DenseCase(codec=Codec.ZSTD, table_bytes=TABLE_BYTES)),
    "snappy: some go": ("shuffle", DenseCase(codec=Codec.SNAPPY, table_bytes=TABLE_BYTES, repeats=True)),
    "lz4: copied, with a gap": (
        "task",
        DenseCase(codec=Codec.LZ4, table_bytes=TABLE_BYTES, gap=True, deduplicate=False),
    ),
}


@pytest.mark.parametrize("name", DENSE)
def test_the_largest_batch_of_the_smallest_records_takes_no_more(name: str, directory: Path) -> None:
    """Nothing is held for each of its millions of records, but for what the table holds.

    The batch that gets a horizon grows by five bytes for each, to about the most that can be opened.
    """
    plan, dense = DENSE[name]
    warm, case = write_inputs(directory / "warm", WARM), write_dense(directory / "case", dense)
    allowed = dense.table_bytes + (256 << 20)

    counts, taken = run_child(plan, warm, case, allowed)

    assert max(taken.values()) <= allowed
    assert counts["records_in"] == dense.records
    assert counts["records_out"] == dense.records - (dense.records // 100 if dense.repeats else 0)
    if dense.unique_keys:
        assert counts["largest_buffer_bytes"] > 1.6 * MAX_DECOMPRESSED_BATCH_BYTES  # opened and written
    else:
        assert counts["largest_buffer_bytes"] > 0.99 * MAX_DECOMPRESSED_BATCH_BYTES


@pytest.mark.timeout(900 + LONG_SECTION_MIB // 10)
@pytest.mark.parametrize("plan", ["task", "shuffle"])
def test_a_section_many_times_the_limit_takes_no_more(plan: str, directory: Path) -> None:
    """2 GiB, or more, made up by a store as they are read; the exact plan reads them in several stretches."""
    counts, taken = run_child(plan, write_inputs(directory / "warm", WARM), LONG_SECTION_MIB)

    assert max(taken.values()) <= ALLOWED_BYTES
    assert counts["bytes_in"] > 2 * (LONG_SECTION_MIB - 1) << 20
    assert (counts["records_in"], counts["records_out"]) == (LONG_SECTION_MIB, 1)
    if plan == "shuffle":
        assert counts["get_requests"] == 2 * counts["shares"] >= 16
    else:
        assert counts["get_requests"] == 2
