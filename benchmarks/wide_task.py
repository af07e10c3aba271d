"""Processor time of a compaction task for each section of wide ingestion files, without Spark and catalog.

    python -m benchmarks.wide_task [--json] [--quick] [--rounds N] [--files N] [--partitions N] [--records N]

Agents mix many partitions in a file and close it after 250 ms, so sections are small. One job over such files
runs in this process, as in a Spark worker: it unpacks the job, runs both passes and packs the result. Half of
the keys of each section are in every file. A round runs every case once with groups of small sections, and
once without them.

- `section_us`: processor time of the task for each input section, in microseconds; the median over rounds.
- `one_by_one_us`: the same if each section is processed on its own. `ratio`: that divided by `section_us`.
- `unpack`, `find_survivors`, `write`, `complete`, `pack`: parts of `section_us`, wall-clock time for the
  middle three.
- `limit_us`: the limit, that is twice the time to read the files and to compute CRC-32C over their bytes, for
  each section. `of_limit` is `section_us` divided by `limit_us`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import crc32c
import orjson

from benchmarks.parts.measuring import machine
from catalog.model import Extent, FileKind, JobInput, JobPartition, JobSpec
from core.clock import SystemClock
from core.ids import SystemIds
from object_format.codecs.codec import Codec
from object_format.record_batch.records import encode_batch
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.names import ingestion_name
from object_store.open import StoreConfig, open_store
from spark_jobs.task.compaction_task import run_compaction
from spark_jobs.task.small_sections.plan import GroupLimits
from spark_jobs.task.small_sections.runner import DEFAULT_LIMITS
from spark_jobs.transport import pack_result, pack_spec, unpack_spec

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import JobResult
    from core.ids import Ids
    from object_store.interface import ObjectStore

_NOW: Final = 1_700_000_000_000
ONE_BY_ONE: Final = GroupLimits(bytes=0)
_VALUE_BYTES: Final = 100
_PARTS: Final = ("unpack", "find_survivors", "write", "complete", "pack")


@dataclass(frozen=True)
class Case:
    """A kind of topic; `sizes` are files, partitions of each file, and records of each section."""

    name: str
    cleanup_policy: str
    codec: Codec
    sizes: tuple[int, int, int]

    @property
    def sections(self) -> int:
        """Number of sections of all files."""
        return self.sizes[0] * self.sizes[1]


class Bench:
    """An object store with the files of one job for each case."""

    def __init__(self, directory: Path) -> None:
        self._clock = SystemClock()
        self._ids: Ids = SystemIds(self._clock)
        self._config = StoreConfig(str(directory))
        self._directory = directory

    def job(self, case: Case) -> JobSpec:
        """Write the files of a job."""
        files, partitions, records = case.sizes
        topic_id = self._ids.new_uuid()
        with closing(self._open()) as store:
            inputs = tuple(self._write_file(store, case, topic_id, number) for number in range(files))
        return JobSpec(
            job_id=self._ids.new_uuid(),
            created_ms=_NOW,
            now_ms=_NOW,
            hash_seed=bytes(range(16)),
            table_bytes=64 << 20,
            reason="a benchmark",
            inputs=inputs,
            partitions=tuple(
                JobPartition(
                    topic_id=topic_id,
                    partition=partition,
                    topic_name="wide",
                    cleanup_policy=case.cleanup_policy,
                    compression_type="producer",
                    deduplicate="compact" in case.cleanup_policy,
                    reaches_log_start=True,
                    base_offset=0,
                    upper_offset=files * records,
                    delete_retention_ms=1000,
                )
                for partition in range(partitions)
            ),
        )

    def _write_file(self, store: ObjectStore, case: Case, topic_id: UUID, number: int) -> JobInput:
        _, partitions, records = case.sizes
        session_id, file_id = self._ids.new_uuid(), self._ids.new_uuid()
        parts: list[bytes] = []
        writer = SegmentFileWriter(
            kind=SegmentKind.INGESTION,
            file_id=file_id,
            writer_id=session_id,
            created_ms=_NOW,
            sink=lambda part: parts.append(bytes(part)),
        )
        name = ingestion_name(session_id, file_id)
        extents = []
        for partition in range(partitions):
            keys = [
                b"key-%d-%d-%d" % (partition, index, number if index % 2 else 0) for index in range(records)
            ]
            writer.begin_section(topic_id, partition)
            writer.append(
                encode_batch([_NOW] * records, keys, [os.urandom(_VALUE_BYTES)] * records, codec=case.codec)
            )
            entry = writer.end_section(
                base_offset=0,
                last_offset=records - 1,
                record_count=records,
                min_timestamp=_NOW,
                max_timestamp=_NOW,
            )
            extents.append(
                Extent(
                    topic_id=topic_id,
                    partition=partition,
                    base_offset=number * records,
                    last_offset=(number + 1) * records - 1,
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
                    offset_shift=number * records,
                    leader_epoch=0,
                    unique_keys=False,
                    committed_ms=_NOW,
                )
            )
        size = writer.finish().size
        store.put(name, parts, purpose=Purpose.INGEST)
        return JobInput(file_id=file_id, object_name=name, size=size, extents=tuple(extents))

    def run(self, packed: bytes, limits: GroupLimits) -> tuple[dict[str, float], JobResult]:
        """Run the job as a task does; return the seconds of its parts. The output is deleted."""
        begin = time.process_time()
        spec = unpack_spec(packed)
        unpacked = time.process_time()
        with closing(self._open()) as store:
            result = run_compaction(
                spec,
                store,
                attempt_id=self._ids.new_uuid(),
                clock=self._clock,
                ids=self._ids,
                limits=limits,
            )
            done = time.process_time()
            pack_result(result)
            end = time.process_time()
            store.delete([file.object_name for file in result.files], purpose=Purpose.GC)
        seconds = {
            name: result.counts.get(f"{name}_ms", 0) / 1000
            for name in ("find_survivors", "write", "complete")
        }
        seconds |= {"section": end - begin, "unpack": unpacked - begin, "pack": end - done}
        return seconds, result

    def limit(self, spec: JobSpec) -> float:
        """Return the processor time to read the files twice, each time with CRC-32C over all bytes."""
        begin = time.process_time()
        for _ in range(2):
            for each in spec.inputs:
                crc32c.crc32c((self._directory / each.object_name).read_bytes())
        return time.process_time() - begin

    def _open(self) -> ObjectStore:
        return open_store(self._config, self._clock, self._ids)


def measure(cases: list[Case], rounds: int) -> dict[str, Any]:
    """Run all cases in each round, after one round that compiles kernels."""
    with tempfile.TemporaryDirectory(prefix="siltstone-wide-task-") as directory:
        bench = Bench(Path(directory))
        specs = {case: bench.job(case) for case in cases}
        packed = {case: pack_spec(spec) for case, spec in specs.items()}
        taken: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
        counts: dict[Case, dict[str, int]] = {}
        for number in range(rounds + 1):
            for case in cases:
                alone, _ = bench.run(packed[case], ONE_BY_ONE)
                seconds, result = bench.run(packed[case], DEFAULT_LIMITS)
                counts[case] = dict(result.counts)
                if number:
                    more = {"one_by_one": alone["section"], "limit": bench.limit(specs[case])}
                    taken[case].append({**seconds, **more})
    return {
        "benchmark": "wide_task",
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "rounds": rounds,
        "cases": [_figures(case, taken[case], counts[case]) for case in cases],
    }


def _figures(case: Case, taken: list[dict[str, float]], counts: dict[str, int]) -> dict[str, Any]:
    found = {
        name: round(1e6 * statistics.median(each[name] for each in taken) / case.sections, 2)
        for name in taken[0]
    }
    files, partitions, records = case.sizes
    return {
        "case": case.name,
        "files": files,
        "partitions": partitions,
        "records": records,
        "section_us": found["section"],
        "one_by_one_us": found["one_by_one"],
        "ratio": round(found["one_by_one"] / found["section"], 1),
        **{name: found[name] for name in _PARTS},
        "limit_us": found["limit"],
        "of_limit": round(found["section"] / found["limit"]) if found["limit"] else None,
        "get_requests": counts["get_requests"],
        "records_out": counts["records_out"],
        "peak_rss_bytes": counts["peak_rss_bytes"],
    }


def _print(report: dict[str, Any]) -> None:
    print(f"microseconds of a section, load {report['load']}")
    names = ("section_us", "one_by_one_us", "ratio", *_PARTS, "limit_us", "of_limit", "get_requests")
    print(f"{'':<14}" + "".join(f"{name:>15}" for name in names))
    for case in report["cases"]:
        print(f"{case['case']:<14}" + "".join(f"{case[name]:>15}" for name in names))


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="A tenth of the partitions and one round.")
@click.option("--rounds", type=int, default=5, help="Number of measured rounds.")
@click.option("--files", type=int, default=16, help="Input files of the job.")
@click.option("--partitions", type=int, default=1000, help="Sections of each file.")
@click.option("--records", type=int, default=10, help="Records of each section.")
def main(*, as_json: bool, quick: bool, rounds: int, files: int, partitions: int, records: int) -> None:
    """Run the benchmark and print the report."""
    sizes = files, partitions // 10 if quick else partitions, records
    cases = [
        Case("compact", "compact", Codec.NONE, sizes),
        Case("compact, lz4", "compact", Codec.LZ4, sizes),
        Case("delete", "delete", Codec.NONE, sizes),
    ]
    report = measure(cases, 1 if quick else rounds)
    if as_json:
        print(orjson.dumps(report).decode())
    else:
        _print(report)


if __name__ == "__main__":
    main()
