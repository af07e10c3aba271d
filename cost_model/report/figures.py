"""Figures and curves of a simulation, listed once for tables, JSON and documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from core.quantities import human_bytes
from cost_model.report.bill import Bill, kafka_bill, siltstone_bill

if TYPE_CHECKING:
    from collections.abc import Callable

    from cost_model.engine.counts import Sample
    from cost_model.engine.outcome import Outcome
    from cost_model.rates.steady_rates import SteadyRates
    from cost_model.report.prices import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: its name in JSON, its label, how it is computed and how it is formatted."""

    name: str
    label: str
    of: Callable[[Outcome], float]
    write: Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A value that is plotted over time."""

    name: str
    label: str
    of: Callable[[Sample], float]
    write: Callable[[float], str]


def human_count(number: float) -> str:
    """Return a large number in short form, such as 1.70 billion."""
    for limit, unit in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= limit:
            return f"{number / limit:,.2f} {unit}"
    return f"{number:,.0f}"


def _ratio(number: float) -> str:
    return f"{number:.2f}"


def _mean(name: str, label: str, write: Callable[[float], str]) -> Figure:
    return Figure(name=name, label=label, of=lambda outcome: outcome.mean(name), write=write)


def _month(name: str, label: str, write: Callable[[float], str] = human_count) -> Figure:
    return Figure(
        name=f"{name}_per_month",
        label=label,
        of=lambda outcome: float(getattr(outcome.month, name)),
        write=write,
    )


FIGURES: Final = (
    _mean("live_bytes", "live data", human_bytes),
    _mean("stored_bytes", "stored in the object store", human_bytes),
    _mean("objects", "objects", human_count),
    _mean("extents", "extents", human_count),
    _mean("rows", "catalog rows", human_count),
    _mean("rows_per_gib", "catalog rows per GiB of live data", human_count),
    _mean("dirty_ratio", "dirty ratio of compacted topics", _ratio),
    Figure(
        name="write_amplification",
        label="write amplification (all bytes written / bytes written by agents)",
        of=lambda outcome: outcome.write_amplification,
        write=_ratio,
    ),
    Figure(
        name="compaction_read_amplification",
        label="bytes read by jobs / bytes written by agents",
        of=lambda outcome: outcome.compaction_reads,
        write=_ratio,
    ),
    _mean("read_amplification", "read amplification (live bytes / live bytes if all were clean)", _ratio),
    _mean("waiting_files", "backlog: ingestion files", human_count),
    _mean("open_bytes", "backlog: bytes that jobs still have to move", human_bytes),
    _month("ingested_bytes", "per month: bytes written by agents", human_bytes),
    _month("written_bytes", "per month: bytes written by jobs", human_bytes),
    _month("cleaned_bytes", "… of these by cleaning", human_bytes),
    _month("merged_bytes", "… of these by merging", human_bytes),
    _month("ingestion_jobs", "per month: ingestion jobs"),
    _month("cleaning_jobs", "per month: cleaning jobs"),
    _month("merging_jobs", "per month: merging jobs"),
    _month("clustering_jobs", "per month: clustering jobs"),
    _month("put_ingest", "per month: PUT by agents"),
    _month("put_compaction", "per month: PUT of objects of one part by jobs"),
    _month("multipart_create", "per month: multipart uploads by jobs"),
    _month("multipart_part", "per month: parts of these uploads"),
    _month("get_compaction", "per month: GET by jobs"),
    _month("get_fetch", "per month: GET for consumers"),
    _month("list_gc", "per month: LIST"),
    _month("delete_calls", "per month: DELETE calls"),
    _month("deleted_objects", "per month: deleted objects"),
)

CURVES: Final = (
    Curve(name="stored_bytes", label="stored", of=lambda sample: sample.stored_bytes, write=human_bytes),
    Curve(name="objects", label="objects", of=lambda sample: sample.objects, write=human_count),
    Curve(name="extents", label="extents", of=lambda sample: sample.extents, write=human_count),
    Curve(name="rows", label="catalog rows", of=lambda sample: sample.rows, write=human_count),
    Curve(
        name="rows_per_gib", label="rows per GiB", of=lambda sample: sample.rows_per_gib, write=human_count
    ),
    Curve(name="dirty_ratio", label="dirty ratio", of=lambda sample: sample.dirty_ratio, write=_ratio),
    Curve(
        name="read_amplification",
        label="read amplification",
        of=lambda sample: sample.read_amplification,
        write=_ratio,
    ),
    Curve(
        name="waiting_files", label="waiting files", of=lambda sample: sample.waiting_files, write=human_count
    ),
    Curve(
        name="open_bytes", label="backlog of bytes", of=lambda sample: sample.open_bytes, write=human_bytes
    ),
)


def amplification_over_time(outcome: Outcome) -> list[tuple[float, float, float]]:
    """Return, for each interval between samples, its end in days and two amplifications.

    They are the write amplification, and the bytes that jobs read per byte that agents write.
    """
    points = []
    for before, after, sample in zip(outcome.history, outcome.history[1:], outcome.samples[1:], strict=False):
        added = after.since(before)
        if added.ingested_bytes:
            written = 1 + added.written_bytes / added.ingested_bytes
            points.append((sample.day, written, added.read_bytes / added.ingested_bytes))
    return points


def bills(outcome: Outcome, prices: Prices) -> tuple[Bill, ...]:
    """Return the bills of all systems that are compared."""
    return (
        siltstone_bill(outcome, prices, express=False),
        siltstone_bill(outcome, prices, express=True),
        kafka_bill(outcome, prices, follower_fetching=False),
        kafka_bill(outcome, prices, follower_fetching=True),
    )


def rates_text(rates: SteadyRates) -> str:
    """Return sentences about what agents write and what one ingestion job takes."""
    return (
        f"Agents write {rates.files:,.1f} files per second with {rates.extents:,.0f} extents and "
        f"{rates.stored_bytes / 1e6:,.1f} MB. One ingestion job takes the files of {rates.job_seconds:.2f} s."
    )


def policy_report(outcome: Outcome, prices: Prices) -> dict[str, Any]:
    """Return the results of one policy as a JSON object."""
    return {
        "policy": outcome.policy,
        "days": outcome.days,
        "exact": outcome.exact,
        "figures": {figure.name: figure.of(outcome) for figure in FIGURES},
        "steady_rates": {
            "files_per_second": outcome.rates.files,
            "extents_per_second": outcome.rates.extents,
            "stored_bytes_per_second": outcome.rates.stored_bytes,
            "job_seconds": outcome.rates.job_seconds,
            "planner_capacity": outcome.rates.capacity,
        },
        "dollars_per_month": [
            {
                "system": bill.name,
                "dollars": bill.dollars,
                "terms": [
                    {"term": line.term, "calculation": line.calculation, "dollars": line.dollars}
                    for line in bill.lines
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
