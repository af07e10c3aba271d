"""How fast whole compaction jobs run on Spark: `local[2]`, with a driver of 1 GiB.

    python -m benchmarks.spark_compact [--quick] [--json] [--only PART …]
        [--records N] [--keys N] [--table-mib N]

`jobs` runs as many one-task jobs as there are cores, each over a partition in ingestion files of 8 MiB: from
a local directory, uncompressed and with LZ4, and from an S3 server on loopback (moto, which is slow: these
figures show how jobs behave, not their possible speed). Bytes are those of the stored input. `shuffle` is one
job whose keys are distributed to buckets, with a table of 16 MiB. `survivors` runs its first two stages only,
from reading to bitmaps, as the median of three runs; `whole` is the complete job. `--records`, `--keys` and
`--table-mib` apply to it. Seconds are wall-clock time in a warm session: each of its Python workers has run a
task of the kind. `survivors_processor_seconds` are those of Java and all workers. Phases are seconds of all
tasks together. `share_of_time` refers to both cores during the whole run: reading objects, codecs, kernels,
and writing objects. The remainder is Spark, checksums and blocks, and Python.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from benchmarks.parts.dedupe_data import Case, Section, make_sections
from benchmarks.parts.measuring import machine, processor_seconds_of_children
from catalog.model import Extent, FileKind, Job, JobInput, JobPartition, JobSpec, JobState
from core.clock import SystemClock
from core.ids import SystemIds
from object_format.codecs.codec import Codec
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.names import ingestion_name
from object_store.open import StoreConfig, open_store
from spark_jobs.compact import run_jobs
from spark_jobs.session.spark_session import SparkSettings, spark_session
from spark_jobs.shuffle.plan import PlanChoice, plan_shuffle
from spark_jobs.shuffle.query import StageFunctions, survivors_of
from spark_jobs.task.entry import PackedJob
from spark_jobs.transport import pack_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from uuid import UUID

    from pyspark.sql import SparkSession

    from catalog.jobs.circuit_breaker import BackOff
    from catalog.model import JobResult
    from object_store.interface import ObjectStore
    from spark_jobs.report import CompactionReport

CORES = 2
PHASES = ("find_survivors", "write", "complete")
PARTS = ("read_objects", "decompress", "kernels", "compress", "write_objects")
TABLE_BYTES = 128 << 20
SHUFFLE_TABLE_BYTES = 16 << 20
_NOW = 1_700_000_100_000
_JOB = Case(keys=500_000, records=2_000_000)
_QUICK_JOB = Case(keys=100_000, records=400_000)
_S3_JOB = Case(keys=100_000, records=400_000)
_SHUFFLE = Case(keys=5_000_000, records=20_000_000, value_bytes=16)
_QUICK_SHUFFLE = Case(keys=250_000, records=1_000_000, value_bytes=16)
_WARM_SHUFFLE = _QUICK_SHUFFLE
"""In several shares, so that every worker gets one."""

_ROUNDS = 3
_PARTS = ("jobs_local", "jobs_lz4", "shuffle", "jobs_s3")
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark"}


@dataclass
class Results:
    """Stub of the catalog that accepts all results."""

    results: list[JobResult] = field(default_factory=list)

    def heartbeat(self, job_id: UUID, attempt_id: UUID) -> None:
        """Ignore the heartbeat."""

    def complete(self, result: JobResult, spec: JobSpec) -> None:
        """Remember the result, so that its files can be deleted."""
        del spec
        self.results.append(result)

    def fail(self, job_id: UUID, attempt_id: UUID, reason: str, *, suspects: Collection[UUID] = ()) -> None:
        """End the benchmark."""
        del suspects
        raise AssertionError(f"attempt {attempt_id} at job {job_id}: {reason}")

    def back_off(
        self,
        job_id: UUID,
        attempt_id: UUID,
        *,
        error: str,
        reason: str,
        died: bool = False,
        session_lost: bool = False,
    ) -> BackOff:
        """End the benchmark."""
        raise AssertionError(
            f"attempt {attempt_id} at job {job_id}: {error}: {reason} ({died=}, {session_lost=})"
        )

    def release(self, job_id: UUID, attempt_id: UUID) -> None:
        """End the benchmark."""
        raise AssertionError(f"attempt {attempt_id} at job {job_id} was given back")


class Bench:
    """A Spark session and an object store."""

    def __init__(self, spark: SparkSession, config: StoreConfig) -> None:
        self.spark = spark
        self.config = config
        self.clock = SystemClock()
        self.ids = SystemIds(self.clock)
        self.store = open_store(config, self.clock, self.ids)

    def job(self, case: Case, table_bytes: int = TABLE_BYTES) -> Job:
        """Return a claimed job over a new partition with written files."""
        topic_id = self.ids.new_uuid()
        session_id = self.ids.new_uuid()
        sections = make_sections(case)
        ends = [*(section.shift for section in sections[1:]), case.records]
        inputs = [
            write_file(self.store, section, end - section.shift, topic_id, session_id, self.ids.new_uuid())
            for section, end in zip(sections, ends, strict=True)
        ]
        partition = JobPartition(
            topic_id=topic_id,
            partition=0,
            topic_name="benchmark",
            cleanup_policy="compact",
            compression_type="producer",
            deduplicate=True,
            reaches_log_start=True,
            base_offset=0,
            upper_offset=case.records,
            delete_retention_ms=1000,
        )
        spec = JobSpec(
            job_id=self.ids.new_uuid(),
            created_ms=_NOW,
            now_ms=_NOW,
            hash_seed=bytes(range(16)),
            table_bytes=table_bytes,
            reason="a benchmark",
            inputs=tuple(inputs),
            partitions=(partition,),
        )
        return Job(
            spec=spec,
            state=JobState.RUNNING,
            attempt_id=self.ids.new_uuid(),
            application_id="benchmark",
            heartbeat_ms=None,
            attempts=1,
            failure=None,
            counts={},
        )

    def run(self, jobs: list[Job], plan: PlanChoice) -> tuple[CompactionReport, float]:
        """Run jobs and delete their outputs."""
        book = Results()
        begin = time.perf_counter()
        report = run_jobs(
            self.spark,
            jobs,
            store=self.config,
            book=book,
            clock=self.clock,
            ids=self.ids,
            plan=plan,
        )
        seconds = time.perf_counter() - begin
        names = [file.object_name for result in book.results for file in result.files]
        self.store.delete(names, purpose=Purpose.GC)
        return report, seconds

    def survivors(self, job: Job) -> tuple[float, float]:
        """Run the first two stages of the shuffle plan; return wall-clock and processor seconds."""
        plan = plan_shuffle(job.spec)
        packed = PackedJob(job.spec.job_id, self.ids.new_uuid(), pack_spec(job.spec))
        found = survivors_of(self.spark, StageFunctions(self.config, packed, plan), plan)
        processor, begin = processor_seconds_of_children(), time.perf_counter()
        found.selectExpr("sum(length(data))").collect()
        return time.perf_counter() - begin, processor_seconds_of_children() - processor


def write_file(
    store: ObjectStore, section: Section, records: int, topic_id: UUID, session_id: UUID, file_id: UUID
) -> JobInput:
    """Write an ingestion file with one section."""
    pieces: list[bytes | memoryview] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.INGESTION, file_id=file_id, writer_id=session_id, created_ms=_NOW, sink=pieces.append
    )
    writer.begin_section(topic_id, 0)
    for block in section.blocks:
        writer.append(block, stable=True)
    entry = writer.end_section(
        base_offset=0, last_offset=records - 1, record_count=records, min_timestamp=_NOW, max_timestamp=_NOW
    )
    summary = writer.finish()
    name = ingestion_name(session_id, file_id)
    store.put(name, pieces, purpose=Purpose.INGEST)
    extent = Extent(
        topic_id=topic_id,
        partition=0,
        base_offset=section.shift,
        last_offset=section.shift + records - 1,
        record_count=records,
        min_timestamp=_NOW,
        max_timestamp=_NOW,
        file_id=file_id,
        object_name=name,
        file_kind=FileKind.INGESTION,
        position=entry.data_position,
        length=entry.data_length,
        index_position=0,
        index_length=0,
        offset_shift=section.shift,
        leader_epoch=0,
        unique_keys=False,
        committed_ms=_NOW,
    )
    return JobInput(file_id=file_id, object_name=name, size=summary.size, extents=(extent,))


def figures(report: CompactionReport, input_bytes: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a run."""
    assert not report.failures, report.failures
    return {
        "seconds": seconds,
        "mb_per_s": input_bytes / seconds / 1e6,
        "records_per_s": report.records_in / seconds,
        "input_files": report.input_files,
        "get_requests": report.get_requests,
        "get_requests_per_input_file": report.get_requests_per_input_file,
        "peak_rss_bytes": report.peak_rss_bytes,
        "keys": report.keys,
        "keys_outside_table": report.keys_outside_table,
        "table_bytes": report.table_bytes,
        "largest_buffer_bytes": report.largest_buffer_bytes,
        "phases": {name: report.seconds.get(name, 0.0) for name in PHASES},
        "share_of_time": {name: report.seconds.get(name, 0.0) / (CORES * seconds) for name in PARTS},
    }


def measure_jobs(bench: Bench, case: Case) -> dict[str, Any]:
    """Run as many jobs as there are cores."""
    bench.run([bench.job(replace(case, keys=1000, records=4000)) for _ in range(CORES)], PlanChoice.TASK)
    jobs = [bench.job(case) for _ in range(CORES)]
    report, seconds = bench.run(jobs, PlanChoice.TASK)
    return {"jobs": CORES, "records": CORES * case.records, **figures(report, _size(jobs), seconds)}


def measure_shuffle(bench: Bench, case: Case, table_bytes: int) -> dict[str, Any]:
    """Run one job with a shuffle."""
    bench.run([bench.job(_WARM_SHUFFLE)], PlanChoice.SHUFFLE)
    job = bench.job(case, table_bytes)
    rounds = [bench.survivors(job) for _ in range(_ROUNDS)]
    survivors = statistics.median(seconds for seconds, _ in rounds)
    report, seconds = bench.run([job], PlanChoice.SHUFFLE)
    assert report.keys == case.keys
    return {
        "records": case.records,
        "table_bytes": table_bytes,
        "shares": report.shares,
        "buckets": report.buckets,
        "shuffle_bytes": report.shuffle_bytes,
        "survivors_seconds": survivors,
        "survivors_processor_seconds": statistics.median(processor for _, processor in rounds),
        "survivors_records_per_s": case.records / survivors,
        "whole": figures(report, _size([job]), seconds),
    }


def _size(jobs: list[Job]) -> int:
    return sum(job_input.size for job in jobs for job_input in job.spec.inputs)


@contextmanager
def s3_on_loopback() -> Iterator[str]:
    """Yield the address of an S3 server that stops at the end of the block."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def make_bucket(endpoint: str) -> None:
    """Create the bucket `benchmark`; moto accepts any PUT."""
    urlopen(Request(f"{endpoint}/benchmark", method="PUT"), timeout=10).close()


def measure(
    parts: Collection[str], *, quick: bool, shuffled: Case, table_bytes: int = SHUFFLE_TABLE_BYTES
) -> dict[str, Any]:
    """Return the figures of the given parts."""
    os.environ.update(_CREDENTIALS)
    result: dict[str, Any] = {"machine": machine(), "master": f"local[{CORES}]", "driver_memory": "1g"}
    settings = SparkSettings(master=f"local[{CORES}]")
    with (
        tempfile.TemporaryDirectory(prefix="siltstone-benchmark-") as directory,
        s3_on_loopback() as endpoint,
        spark_session(settings) as spark,
    ):
        local = Bench(spark, StoreConfig(str(Path(directory) / "objects")))
        job = _QUICK_JOB if quick else _JOB
        if "jobs_local" in parts:
            result["jobs_local"] = measure_jobs(local, job)
        if "jobs_lz4" in parts:
            result["jobs_lz4"] = measure_jobs(local, replace(job, codec=Codec.LZ4))
        if "shuffle" in parts:
            result["shuffle"] = measure_shuffle(local, shuffled, table_bytes)
        if "jobs_s3" in parts:
            make_bucket(endpoint)
            s3 = Bench(spark, StoreConfig("s3://benchmark/bench", endpoint=endpoint, region="us-east-1"))
            result["jobs_s3"] = measure_jobs(s3, replace(_S3_JOB, records=200_000) if quick else _S3_JOB)
    return result


def print_report(result: dict[str, Any]) -> None:
    """Print the figures for people."""
    for name in ("jobs_local", "jobs_lz4", "jobs_s3"):
        if name in result:
            _tell_run(name, result[name], result[name]["records"])
    if "shuffle" in result:
        _tell_shuffle(result["shuffle"])


def _tell_shuffle(shuffle: dict[str, Any]) -> None:
    print(
        f"shuffle: {shuffle['records']:,} records in {shuffle['shares']} shares,"
        f" {shuffle['buckets']} buckets: pass 1 to survivors"
        f" {shuffle['survivors_records_per_s'] / 1e6:.2f} M records/s,"
        f" {shuffle['survivors_processor_seconds']:.1f} s of processors"
    )
    _tell_run("shuffle, whole job", shuffle["whole"], shuffle["records"])


def _tell_run(name: str, run: dict[str, Any], records: int) -> None:
    phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in run["phases"].items())
    parts = ", ".join(f"{part} {share:.0%}" for part, share in run["share_of_time"].items())
    print(
        f"{name}: {records:,} records in {run['seconds']:.1f} s: {run['mb_per_s']:.0f} MB/s,"
        f" {run['records_per_s'] / 1e6:.2f} M records/s,"
        f" {run['get_requests_per_input_file']:.1f} GETs per file,"
        f" peak RSS {run['peak_rss_bytes'] >> 20} MiB; {phases}; {parts}"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less data")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--only", action="append", choices=_PARTS, help="run this part only (repeatable)")
    parser.add_argument("--records", type=int, help="number of records of the shuffled job")
    parser.add_argument("--keys", type=int, help="number of their keys; by default a quarter of the records")
    parser.add_argument(
        "--table-mib", type=int, default=SHUFFLE_TABLE_BYTES >> 20, help="size of its key table"
    )
    arguments = parser.parse_args()
    shuffled = _QUICK_SHUFFLE if arguments.quick else _SHUFFLE
    records = arguments.records or shuffled.records
    shuffled = replace(shuffled, records=records, keys=arguments.keys or records // 4)
    result = measure(
        arguments.only or _PARTS,
        quick=arguments.quick,
        shuffled=shuffled,
        table_bytes=arguments.table_mib << 20,
    )
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print_report(result)


if __name__ == "__main__":
    main()
