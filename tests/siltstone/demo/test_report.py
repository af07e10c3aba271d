from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from rich.console import Console

from siltstone.demo.report import DemoReport, TopicFigures, render
from spark_jobs.report import CompactionReport

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = [
    "input",
    "produced",
    "refused_keyless",
    "ingestion_files",
    "compacted_files",
    "compaction",
    "read_back",
    "mismatches",
    "differences",
    "bytes",
    "seconds",
    "seconds_by_phase",
    "data_dir",
    "object_store",
]
COMPACTION_FIELDS = [
    "jobs",
    "jobs_completed",
    "input_files",
    "input_files_read_once",
    "input_files_cut",
    "stretches",
    "stretches_read_once",
    "get_requests",
    "resumes",
    "retries",
    "partitions",
    "records_in",
    "records_out",
    "records_dropped",
    "records_aborted",
    "records_invalid",
    "tombstones_dropped",
    "keys",
    "keys_outside_table",
    "bytes_in",
    "bytes_out",
    "merged_bytes_saved",
    "compacted_files",
    "compacted_bytes",
    "shuffled_jobs",
    "shares",
    "buckets",
    "shuffle_bytes",
    "table_bytes",
    "largest_buffer_bytes",
    "peak_rss_bytes",
    "seconds",
    "cut_files",
    "failures",
    "get_requests_per_input_file",
    "index_reads",
    "ingested_bytes",
    "rewritten_bytes",
    "topics",
    "write_amplification",
]


def topic(name: str, rejected: int) -> TopicFigures:
    return TopicFigures(
        name=name,
        partitions=3,
        policy="compact",
        rows=10,
        accepted=10 - rejected,
        rejected=rejected,
        read_back=5,
        expected=5,
        bytes_before=1000,
        bytes_after=400,
    )


def demo_report(object_store: str = "file:///store") -> DemoReport:
    compaction = CompactionReport(jobs=1, input_files=2, byte_ranges=4, byte_ranges_read_once=1)
    return DemoReport(
        flights=topic("flights", rejected=2),
        weather=topic("weather", rejected=0),
        first_rejection=None,
        ingestion_files=2,
        compacted_files=1,
        compaction=compaction,
        differences=0,
        seconds={"input": 0.1234, "agent": 1.0},
        data_dir=Path("data"),
        object_store=object_store,
        program="siltstone",
        options="",
    )


@pytest.fixture
def report() -> Mapping[str, object]:
    fields: Mapping[str, object] = orjson.loads(orjson.dumps(demo_report().as_dict()))
    return fields


def test_programs_find_the_same_fields_in_every_version(report: Mapping[str, object]) -> None:
    assert list(report) == FIELDS
    compaction = report["compaction"]
    assert isinstance(compaction, dict)
    assert set(compaction) == set(COMPACTION_FIELDS)
    assert (compaction["stretches"], compaction["stretches_read_once"]) == (4, 1)


def test_figures_of_both_topics_are_summed(report: Mapping[str, object]) -> None:
    assert report["refused_keyless"] == 2
    assert report["produced"] == {"flights": 8, "weather": 10}
    assert report["bytes"] == {"before": 2000, "after": 800}
    assert (report["seconds"], report["seconds_by_phase"]) == (1.123, {"input": 0.123, "agent": 1.0})


def test_the_place_of_the_data_is_named_once() -> None:
    """The object store is usually inside the data directory."""

    def page(object_store: str) -> str:
        console = Console(width=200, record=True, file=StringIO())
        console.print(render(demo_report(object_store)))
        return console.export_text()

    assert "The data is kept in data. Other" in page(Path("data/objects").absolute().as_uri())
    assert "The data is kept in data and s3://logs/demo. Other" in page("s3://logs/demo")
    assert "The data is kept in data and file:///" in page(Path("data-of-others").absolute().as_uri())
