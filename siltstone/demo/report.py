"""Report of the demo, as one JSON object for programs and as a page for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from core.quantities import count, human_bytes
from siltstone.console import table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from spark_jobs.report import CompactionReport

MAX_VALUE_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFigures:
    """Records of one topic in each step, and the bytes of its extents before and after compaction."""

    name: str
    partitions: int
    policy: str
    rows: int
    accepted: int
    rejected: int
    read_back: int
    expected: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRead:
    """Sample record with its position."""

    topic: str
    partition: int
    offset: int
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Results of the demo; `seconds` are by phase, in order."""

    flights: TopicFigures
    weather: TopicFigures
    first_rejection: str | None
    ingestion_files: int
    compacted_files: int
    compaction: CompactionReport
    differences: int
    examples: list[str] = field(default_factory=list)
    samples: list[SampleRead] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    data_dir: Path
    object_store: str
    program: str
    options: str

    def as_dict(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "input": {"flights": self.flights.rows, "weather": self.weather.rows},
            "produced": {"flights": self.flights.accepted, "weather": self.weather.accepted},
            "refused_keyless": self.flights.rejected,
            "ingestion_files": self.ingestion_files,
            "compacted_files": self.compacted_files,
            "compaction": _compaction_fields(self.compaction),
            "read_back": {"flights": self.flights.read_back, "weather": self.weather.read_back},
            "mismatches": self.differences,
            "differences": self.examples,
            "bytes": {
                "before": self.flights.bytes_before + self.weather.bytes_before,
                "after": self.flights.bytes_after + self.weather.bytes_after,
            },
            "seconds": round(sum(self.seconds.values()), 3),
            "seconds_by_phase": {name: round(value, 3) for name, value in self.seconds.items()},
            "data_dir": str(self.data_dir),
            "object_store": self.object_store,
        }


def _compaction_fields(report: CompactionReport) -> dict[str, Any]:
    # Programs read the demo's fields by name: these two keep their earlier names.
    fields = report.as_dict()
    fields["stretches"] = fields.pop("byte_ranges")
    fields["stretches_read_once"] = fields.pop("byte_ranges_read_once")
    return fields


def render(report: DemoReport) -> RenderableType:
    """Return the page for people."""
    return Group(
        Panel(_summary(report), title="A year of flights, from producer to consumer", title_align="left"),
        _topics(report),
        _rejections(report),
        _result(report),
        _samples(report),
        _timings(report),
        _next_steps(report),
    )


def _summary(report: DemoReport) -> RenderableType:
    compaction = report.compaction
    accepted = report.flights.accepted + report.weather.accepted
    read = report.flights.read_back + report.weather.read_back
    before = report.flights.bytes_before + report.weather.bytes_before
    after = report.flights.bytes_after + report.weather.bytes_after
    rows = (
        ("produced over Kafka", f"{accepted:,} records", "flights and weather interleaved, in file order"),
        (
            "written by the agent",
            count(report.ingestion_files, "ingestion file"),
            f"{human_bytes(before)} of batches",
        ),
        (
            "read by Spark",
            f"{compaction.get_requests:,} GETs",
            f"{compaction.gets_in_words()}, counted at the object store",
        ),
        (
            "written by Spark",
            count(report.compacted_files, "compacted file"),
            f"{human_bytes(after)}, {compaction.records_in:,} records in, {compaction.records_out:,} out",
        ),
        ("read back over Kafka", f"{read:,} records", "from offset 0 of every partition"),
    )
    return table(None, "step", ">what", "how", rows=rows)


def _topics(report: DemoReport) -> RenderableType:
    return table(
        "Topics",
        "topic",
        "cleanup.policy",
        ">partitions",
        ">rows",
        ">accepted",
        ">rejected",
        ">read back",
        ">before",
        ">after",
        rows=(
            (
                each.name,
                each.policy,
                each.partitions,
                each.rows,
                each.accepted,
                each.rejected,
                each.read_back,
                human_bytes(each.bytes_before),
                human_bytes(each.bytes_after),
            )
            for each in (report.flights, report.weather)
        ),
    )


def _rejections(report: DemoReport) -> RenderableType:
    if report.first_rejection is None:
        return Text("Every row had a key; nothing was rejected.\n")
    return Text(
        f"{report.flights.rejected:,} flights have no tail number. A compacted topic needs keys, so the\n"
        f"agent rejected these records and no others:\n  {report.first_rejection}\n"
    )


def _result(report: DemoReport) -> RenderableType:
    if report.differences == 0:
        return Text(
            f"✓ Every record matches the independent oracle: "
            f"{report.flights.read_back:,} flights, the last of\n"
            f"  each tail number, and {report.weather.read_back:,} hours of weather, each with the expected\n"
            "  key, value, offset and timestamp.\n",
            style="bold green",
        )
    shown = "\n".join(f"  {each}" for each in report.examples)
    total = count(report.differences, "difference")
    return Text(f"✗ {total} from the oracle, for example:\n{shown}\n", style="bold red")


def _samples(report: DemoReport) -> RenderableType:
    if not report.samples:
        return Text("")
    lines = ["To read some records yourself, start an agent (the agent of the demo has stopped):\n"]
    lines.append(f"  {report.program} agent {report.options}\n")
    for sample in report.samples:
        where = f"-p {sample.partition} -o {sample.offset} -c 1"
        lines.append(f"  {report.program} consume {sample.topic} -b 127.0.0.1:9092 {where}\n")
        value = sample.value if len(sample.value) <= MAX_VALUE_SHOWN else f"{sample.value[:MAX_VALUE_SHOWN]}…"
        lines.append(f"    offset {sample.offset:,}  {sample.key}  {value}\n")
    return Text("".join(lines))


def _timings(report: DemoReport) -> RenderableType:
    phases = "  ".join(f"{name} {seconds:.1f} s" for name, seconds in report.seconds.items())
    return Text(f"{sum(report.seconds.values()):.1f} s in total: {phases}\n", style="dim")


def _next_steps(report: DemoReport) -> RenderableType:
    store_is_inside = report.object_store.startswith(f"{report.data_dir.absolute().as_uri()}/")
    places = f"{report.data_dir}" if store_is_inside else f"{report.data_dir} and {report.object_store}"
    return Text(
        f"The data is kept in {places}. Other commands to try:\n"
        f"  {report.program} topics describe flights {report.options}\n"
        f"  {report.program} plan {report.options}\n"
        f"  {report.program} fsck --deep {report.options}\n"
    )
