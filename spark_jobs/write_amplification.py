"""Write amplification: how many bytes jobs write for each byte that leaves an ingestion file.

Every ingested byte leaves its ingestion file once, when a job first takes it. Later jobs write it again:
merging, clustering and cleaning. The ratio of both sums over a time is the write amplification. It is below 1
if deduplication drops more than later jobs write again.

A job's counts have both sums, also by topic for the topics with most bytes. Their names are
`ingested_bytes` and `rewritten_bytes`, with `/TOPIC` for a topic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from catalog.model import FileKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from catalog.model import JobResult, JobSpec

INGESTED: Final = "ingested_bytes"
REWRITTEN: Final = "rewritten_bytes"
MAX_TOPICS_OF_JOB: Final = 10
MAX_TOPICS: Final = 100


def with_amplification(result: JobResult, spec: JobSpec) -> JobResult:
    """Return the result of a job with the bytes that it ingested and rewrote among its counts."""
    names = {each.topic_id: each.topic_name for each in spec.partitions}
    ingested: Counter[str] = Counter()
    rewritten: Counter[str] = Counter()
    for source in spec.inputs:
        for extent in source.extents:
            if extent.file_kind is FileKind.INGESTION:
                ingested[names[extent.topic_id]] += extent.length
    for file in result.files:
        for output in file.extents:
            rewritten[names[output.topic_id]] += output.length
    counts = {INGESTED: ingested.total(), REWRITTEN: rewritten.total()}
    for topic, _ in (ingested + rewritten).most_common(MAX_TOPICS_OF_JOB):
        counts[f"{INGESTED}/{topic}"] = ingested[topic]
        counts[f"{REWRITTEN}/{topic}"] = rewritten[topic]
    return replace(result, counts={**result.counts, **counts})


@dataclass(slots=True)
class TopicBytes:
    """Ingested and rewritten bytes by topic, from the counts of jobs."""

    ingested: dict[str, int] = field(default_factory=dict)
    rewritten: dict[str, int] = field(default_factory=dict)

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the counts of a job, or sums of such counts."""
        for name, number in counts.items():
            kind, separator, topic = name.partition("/")
            if separator and kind in {INGESTED, REWRITTEN}:
                sums = self.ingested if kind == INGESTED else self.rewritten
                sums[topic] = sums.get(topic, 0) + number

    def largest(self, limit: int = MAX_TOPICS) -> list[str]:
        """Return the topics with most bytes, by descending sum."""
        return [topic for topic, _ in (Counter(self.ingested) + Counter(self.rewritten)).most_common(limit)]

    def trim(self) -> None:
        """Keep the largest topics only, twice as many as metrics show."""
        if len(self.ingested.keys() | self.rewritten.keys()) > 2 * MAX_TOPICS:
            kept = self.largest(2 * MAX_TOPICS)
            self.ingested = {topic: self.ingested.get(topic, 0) for topic in kept}
            self.rewritten = {topic: self.rewritten.get(topic, 0) for topic in kept}

    def as_dict(self) -> dict[str, dict[str, float | int | None]]:
        """Return the largest topics for JSON."""
        return {
            topic: amplification_fields(self.ingested.get(topic, 0), self.rewritten.get(topic, 0))
            for topic in self.largest()
        }


def ratio(ingested: int, rewritten: int) -> float | None:
    """Return the write amplification, or None if nothing was ingested."""
    return rewritten / ingested if ingested else None


def amplification_fields(ingested: int, rewritten: int) -> dict[str, float | int | None]:
    """Return both sums and their ratio for JSON."""
    return {INGESTED: ingested, REWRITTEN: rewritten, "write_amplification": ratio(ingested, rewritten)}
