"""The figures of a simulation by name, each with how people read it; one list for tables, JSON and docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from core.quantities import human_bytes
from cost_model.report.bill import Bill, kafka_bill, siltstone_bill

if TYPE_CHECKING:
    from collections.abc import Callable

    from cost_model.engine.counts import Sample
    from cost_model.engine.outcome import Outcome
    from cost_model.report.prices import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: its name in JSON, its words, how it is found, and how it is written."""

    name: str
    words: str
    of: Callable[[Outcome], float]
    write: Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Something that is plotted over time."""

    name: str
    words: str
    of: Callable[[Sample], float]
    write: Callable[[float], str]


def many(number: float) -> str:
    """A large number as people read it: 1.7 billion."""
    for limit, unit in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= limit:
            return f"{number / limit:,.2f} {unit}"
    return f"{number:,.0f}"


def _ratio(number: float) -> str:
    return f"{number:.2f}"


def _mean(name: str, words: str, write: Callable[[float], str]) -> Figure:
    return Figure(name=name, words=words, of=lambda outcome: outcome.mean(name), write=write)


def _month(name: str, words: str, write: Callable[[float], str] = many) -> Figure:
    return Figure(
        name=f"{name}_per_month",
        words=words,
        of=lambda outcome: float(getattr(outcome.month, name)),
        write=write,
    )


FIGURES: Final = (
    _mean("live_bytes", "data alive", human_bytes),
    _mean("stored_bytes", "stored in the object store", human_bytes),
    _mean("objects", "objects", many),
    _mean("extents", "extents", many),
    _mean("rows", "rows of the catalog", many),
    _mean("rows_per_gib", "rows of the catalog per GiB alive", many),
    _mean("dirty_ratio", "dirty part of compacted topics", _ratio),
    Figure(
        name="write_amplification",
        words="write amplification: bytes written / by agents",
        of=lambda outcome: outcome.write_amplification,
        write=_ratio,
    ),
    Figure(
        name="compaction_read_amplification",
        words="bytes read by jobs / written by agents",
        of=lambda outcome: outcome.compaction_reads,
        write=_ratio,
    ),
    _mean("read_amplification", "read amplification: bytes alive / if all were clean", _ratio),
    _mean("waiting_files", "backlog: ingestion files", many),
    _mean("open_bytes", "backlog: bytes that jobs have to move", human_bytes),
    _month("ingested_bytes", "a month: bytes written by agents", human_bytes),
    _month("written_bytes", "a month: bytes written by jobs", human_bytes),
    _month("cleaned_bytes", "… of these by cleaning alone", human_bytes),
    _month("merged_bytes", "… of these by merging", human_bytes),
    _month("ingestion_jobs", "a month: ingestion jobs"),
    _month("cleaning_jobs", "a month: cleaning jobs"),
    _month("merging_jobs", "a month: merging jobs"),
    _month("clustering_jobs", "a month: clustering jobs"),
    _month("put_ingest", "a month: PUT by agents"),
    _month("multipart_create", "a month: multipart uploads by jobs"),
    _month("multipart_part", "a month: parts of these"),
    _month("get_compaction", "a month: GET by jobs"),
    _month("get_fetch", "a month: GET for consumers"),
    _month("list_gc", "a month: LIST"),
    _month("delete_calls", "a month: DELETE calls"),
    _month("deleted_objects", "a month: objects deleted"),
)

CURVES: Final = (
    Curve(name="stored_bytes", words="stored", of=lambda sample: sample.stored_bytes, write=human_bytes),
    Curve(name="objects", words="objects", of=lambda sample: sample.objects, write=many),
    Curve(name="extents", words="extents", of=lambda sample: sample.extents, write=many),
    Curve(name="rows", words="catalog rows", of=lambda sample: sample.rows, write=many),
    Curve(name="rows_per_gib", words="rows per GiB", of=lambda sample: sample.rows_per_gib, write=many),
    Curve(name="dirty_ratio", words="dirty part", of=lambda sample: sample.dirty_ratio, write=_ratio),
    Curve(
        name="read_amplification",
        words="read amplification",
        of=lambda sample: sample.read_amplification,
        write=_ratio,
    ),
    Curve(name="waiting_files", words="files waiting", of=lambda sample: sample.waiting_files, write=many),
    Curve(name="open_bytes", words="bytes to move", of=lambda sample: sample.open_bytes, write=human_bytes),
)


def amplification_over_time(outcome: Outcome) -> list[tuple[float, float, float]]:
    """Days, write amplification and read amplification of jobs, between each two samples."""
    found = []
    for before, after, sample in zip(outcome.history, outcome.history[1:], outcome.samples[1:], strict=False):
        step = after.since(before)
        if step.ingested_bytes:
            written = 1 + step.written_bytes / step.ingested_bytes
            found.append((sample.day, written, step.read_bytes / step.ingested_bytes))
    return found


def bills(outcome: Outcome, prices: Prices) -> tuple[Bill, ...]:
    """What the workload costs in a month, in each of the ways that are compared."""
    return (
        siltstone_bill(outcome, prices, express=False),
        siltstone_bill(outcome, prices, express=True),
        kafka_bill(outcome, prices, follower_fetching=False),
        kafka_bill(outcome, prices, follower_fetching=True),
    )


def facts(outcome: Outcome, prices: Prices) -> dict[str, Any]:
    """One policy as a part of a JSON object."""
    return {
        "policy": outcome.policy,
        "days": outcome.days,
        "exact": outcome.exact,
        "figures": {figure.name: figure.of(outcome) for figure in FIGURES},
        "front": {
            "files_per_second": outcome.front.files,
            "extents_per_second": outcome.front.extents,
            "stored_bytes_per_second": outcome.front.stored_bytes,
            "job_seconds": outcome.front.job_seconds,
            "planner_capacity": outcome.front.capacity,
        },
        "dollars_per_month": [
            {
                "system": bill.name,
                "dollars": bill.dollars,
                "terms": [
                    {"term": line.term, "how": line.how, "dollars": line.dollars} for line in bill.lines
                ],
            }
            for bill in bills(outcome, prices)
        ],
        "days_of_samples": [sample.day for sample in outcome.samples],
        "series": {curve.name: [curve.of(sample) for sample in outcome.samples] for curve in CURVES},
        "amplification": [
            {"day": day, "write": write, "compaction_read": read}
            for day, write, read in amplification_over_time(outcome)
        ],
    }
