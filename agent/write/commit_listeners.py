"""Small parts of the agent that want to hear of every committed file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.runtime.metrics import AgentMetrics
    from agent.write.ingestion_file import SealedFile
    from catalog.model import SectionResult


class AppendCounting:
    """Counts what was appended, and what the catalog refused."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics

    def committed(self, sealed: SealedFile, results: Sequence[SectionResult]) -> None:
        """Count by runs: what is refused or a duplicate was not appended."""
        for section, result in zip(sealed.commit.sections, results, strict=True):
            outcomes = list(zip(section.runs, result.runs, strict=True))
            appended = [run for run, done in outcomes if done.refusal is None and not done.duplicate]
            self._metrics.appended_records.inc(sum(run.record_count for run in appended))
            if len(appended) == len(outcomes):
                self._metrics.appended_bytes.inc(section.length)
            for _, done in outcomes:
                if done.refusal is not None:
                    self._metrics.refused_runs.labels(done.refusal.value).inc()
