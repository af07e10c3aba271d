"""Samples of two servers that get the same load alternately, their figures, and a table of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.beside_kafka.servers import KAFKA, SILTSTONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.beside_kafka.load import Load
    from benchmarks.beside_kafka.servers import Server


@dataclass(frozen=True, slots=True)
class Sample:
    """A load, the processor seconds of the server meanwhile, and the share of all cores that had no work."""

    load: Load
    cpu_seconds: float
    counters: Mapping[str, float] = field(default_factory=dict)
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The samples of both servers with one load, and the least ratio that is wanted.

    `unit` is `MB/s` or `tx/s`, where more is better, or `s`, where less is. `limit` is about the best
    possible value.
    """

    part: str
    case: Mapping[str, Any]
    samples: Mapping[str, Sequence[Sample]]
    goal: float | None = None
    unit: str = "MB/s"
    limit: float | None = None
    failure: str = ""

    def figures(self) -> dict[str, Any]:
        """Return medians, spreads, and the ratio to Kafka as plain values."""
        row: dict[str, Any] = {"part": self.part, "case": dict(self.case), "unit": self.unit}
        if self.failure:
            return {**row, "failure": self.failure}
        for name, samples in self.samples.items():
            row[name] = self._summary(samples)
        ours, theirs = row[SILTSTONE]["median"], row[KAFKA]["median"]
        ratio = theirs / ours if self.unit == "s" else ours / theirs
        row["ratio"] = round(ratio, 2)
        if self.limit:
            most = theirs / self.limit if self.unit == "s" else self.limit / theirs
            row |= {"limit": round(self.limit, 3), "ratio_of_limit": round(most, 2)}
        if self.goal is not None:
            row |= {"goal": self.goal, "met": ratio >= self.goal}
        parts = [each.counters for each in self.samples[SILTSTONE] if each.counters]
        if parts:
            row["siltstone_means"] = _medians(parts)
        return row

    def _summary(self, samples: Sequence[Sample]) -> dict[str, Any]:
        values = [self._value(each.load) for each in samples]
        gigabytes = [each.load.megabytes / 1000 for each in samples]
        return {
            "median": round(median(values), 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
            "p50_ms": _median([each.load.p50_ms for each in samples]),
            "p99_ms": _median([each.load.p99_ms for each in samples]),
            "cpu_seconds": round(median(each.cpu_seconds for each in samples), 3),
            "cpu_seconds_per_gb": _median(
                [
                    each.cpu_seconds / size if size else None
                    for each, size in zip(samples, gigabytes, strict=True)
                ]
            ),
            "idle": _median([each.idle for each in samples]),
            "cpu_ms_per_transaction": _median(
                [
                    each.cpu_seconds * 1000 / each.load.transactions if each.load.transactions else None
                    for each in samples
                ]
            ),
            "requests": _medians([each.load.requests for each in samples]),
            "samples": [asdict(each.load) for each in samples],
        }

    def _value(self, load: Load) -> float:
        if self.unit == "s":
            return load.seconds
        return (load.transactions if self.unit == "tx/s" else load.megabytes) / max(load.seconds, 1e-9)


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(median(each[name] for each in found), 2) for name in found[0]}


def _median(values: Sequence[float | None]) -> float | None:
    """Return the rounded median, None if there are no values."""
    found = [each for each in values if each is not None]
    return round(median(found), 2) if found else None


def alternate(
    servers: Sequence[Server], rounds: int, load: Callable[[Server, int], Load]
) -> dict[str, list[Sample]]:
    """Apply a load to the servers alternately; the load gets the number of the round."""
    samples: dict[str, list[Sample]] = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers:
            samples[server.name].append(measured(server, load, number))
    return samples


def measured(server: Server, load: Callable[[Server, int], Load], number: int) -> Sample:
    """Apply a load to a server once."""
    counters, cpu = server.counters(), server.cpu_seconds()
    begin, idle = perf_counter(), _idle_seconds()
    found = load(server, number)
    idle = (_idle_seconds() - idle) / (perf_counter() - begin) / (psutil.cpu_count() or 1)
    cpu = server.cpu_seconds() - cpu
    return Sample(found, cpu, _means(counters, server.counters()), min(idle, 1.0))


def _idle_seconds() -> float:
    """Return how long the cores of this machine have had no work, also while they waited for a disk."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


_HISTOGRAMS = ("buffer", "put", "commit")


def _means(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return mean milliseconds of the parts of an ingestion file, and the number and size of files."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    files = grown("siltstone_ingestion_put_seconds_count")
    if not files:
        return {}
    ends = grown("siltstone_ended_transactions_total")
    found = {
        f"{part}_ms": grown(f"siltstone_ingestion_{part}_seconds_sum")
        / max(grown(f"siltstone_ingestion_{part}_seconds_count"), 1.0)
        * 1000
        for part in _HISTOGRAMS
    }
    if ends:
        found["statements_per_end"] = grown("end_statements") / ends
    return {**found, "files": files}


_COLUMNS = (
    "load",
    "Kafka",
    "Siltstone",
    "ratio",
    "goal",
    "Kafka p50, p99 ms",
    "Siltstone p50, p99 ms",
    "Kafka CPU",
    "Siltstone CPU",
    "Kafka, Siltstone idle cores",
)
_NAMES = {
    "clients": "{} clients",
    "partitions": "{} partitions",
    "record_bytes": "{} B",
    "put_delay_ms": "PUT +{} ms",
}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        f"| {' | '.join(_COLUMNS)} |",
        f"|---|{'---:|' * (len(_COLUMNS) - 1)}",
    ]
    lines += [_line(row) for row in rows]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    what = ", ".join(_NAMES.get(name, "{}").format(value) for name, value in row["case"].items())
    if "failure" in row:
        return f"| {what} | {row['failure']} {'| ' * (len(_COLUMNS) - 2)}|"
    goal = f"{row['goal']}, {'met' if row['met'] else 'missed'}" if "goal" in row else ""
    goal += f"; possible: about {row['ratio_of_limit']}" if "limit" in row else ""
    if (statements := row.get("siltstone_means", {}).get("statements_per_end")) is not None:
        goal += f"; {statements} statements an EndTxn"
    cells = [what]
    cells += [_spread(row[name], row["unit"]) for name in (KAFKA, SILTSTONE)]
    cells += [f"{row['ratio']:.2f}", goal]
    cells += [
        ", ".join(
            _number(row[name][which], 0) for which in ("p50_ms", "p99_ms") if row[name][which] is not None
        )
        for name in (KAFKA, SILTSTONE)
    ]
    cells += [_cpu(row[name]) for name in (KAFKA, SILTSTONE)]
    idle = [row[name]["idle"] for name in (KAFKA, SILTSTONE)]
    cells.append(", ".join(f"{each:.0%}" for each in idle if each is not None))
    return f"| {' | '.join(cells)} |"


def _cpu(figures: Mapping[str, Any]) -> str:
    """Return the processor time of a server for each transaction or GB."""
    if (milliseconds := figures["cpu_ms_per_transaction"]) is not None:
        return f"{milliseconds:.1f} ms/tx"
    seconds = figures["cpu_seconds_per_gb"]
    return "" if seconds is None else f"{seconds:.1f} s/GB"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _spread(figures: Mapping[str, Any], unit: str) -> str:
    digits = 2 if unit == "s" else 1
    low, high = f"{figures['min']:.{digits}f}", f"{figures['max']:.{digits}f}"
    return f"{figures['median']:.{digits}f} ({low} to {high}) {unit}"
