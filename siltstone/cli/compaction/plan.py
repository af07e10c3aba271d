"""`siltstone plan`: show the jobs that compaction would plan now; it changes nothing."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from core.clock import DAY_MS
from core.quantities import count, human_bytes
from planner.plan import Verdict
from planner.planner import plan
from siltstone.cli.compaction.quarantine import candidate_fields, print_candidates
from siltstone.cli.options import json_option, with_settings
from siltstone.compaction.unfinished_jobs import describe_jobs, job_fields, unfinished_jobs
from siltstone.console import emit_json, report_console, table
from siltstone.context import open_context
from spark_jobs.write_amplification import INGESTED, REWRITTEN, TopicBytes, amplification_fields, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from catalog.model import Job
    from planner.plan import JobScore, PartitionDecision, Plan, PlannedJob
    from siltstone.settings.configuration import Settings


@click.command()
@click.option(
    "--explain", metavar="TOPIC", help="Show the decision for every partition of TOPIC, with the reason."
)
@click.option("--force", is_flag=True, help="Plan as siltstone compact --force does.")
@json_option
@with_settings()
def command(settings: Settings, *, explain: str | None, force: bool, as_json: bool) -> None:
    """Show the compaction jobs that would be planned now, with the reasons.

    Nothing is changed; siltstone compact plans and runs the jobs.
    """
    with open_context(settings, check_binding=False, create=False) as context:
        planned = plan(
            context.catalog, context.clock, replace(settings.planner, force=force), explain=explain
        )
        jobs = unfinished_jobs(context)
        candidates = context.catalog.quarantine.list()
        recent = context.catalog.jobs.recent_amplification(DAY_MS)
    if as_json:
        report = plan_report(planned, jobs, explain)
        emit_json({**report, **_amplification_report(recent), **candidate_fields(candidates)})
    else:
        print_plan(planned, jobs, settings.maintenance_settings().takeover_ms, explain)
        _print_amplification(recent, explain)
        print_candidates(candidates)


def plan_report(planned: Plan, jobs: Sequence[Job], explain: str | None = None) -> dict[str, Any]:
    """Return a plan and the unfinished jobs as one JSON object."""
    decisions = planned.decisions if explain is None else planned.explain(explain)
    return {
        "now_ms": planned.now_ms,
        "jobs": [_planned_job_fields(job) for job in planned.jobs],
        "deferred": planned.deferred,
        "unfinished_jobs": job_fields(jobs, planned.now_ms),
        "decisions": [_decision_fields(each) for each in decisions],
    }


def print_plan(planned: Plan, jobs: Sequence[Job], takeover_ms: int, explain: str | None = None) -> None:
    """Print unfinished jobs, planned jobs, then the partitions that wait (or those of one topic) and why."""
    console = report_console()
    for sentence in describe_jobs(jobs, planned.now_ms, takeover_ms):
        console.print(sentence, markup=False, soft_wrap=True)
    if not planned.jobs:
        console.print("Nothing more to compact." if jobs else "Nothing to compact.")
    for number, job in enumerate(planned.jobs, 1):
        console.print(
            f"Job {number} ({job.kind.value}): {count(len(job.inputs), 'file')}, "
            f"{human_bytes(job.input_bytes)}, {count(len(job.partitions), 'partition')}",
            style="bold",
            markup=False,
        )
        console.print(f"  {job.reason}", markup=False)
        console.print(f"  {_gain(job.score)}", markup=False)
        if job.wait is not None:
            console.print(f"  siltstone compact --watch waits for {job.wait}", markup=False)
    if planned.deferred:
        jobs_left = count(planned.deferred, "more job")
        console.print(f"{jobs_left} deferred by the hourly budget.", markup=False)
    if explain is not None:
        shown = planned.explain(explain)
    else:
        shown = tuple(each for each in planned.decisions if each.verdict is Verdict.WAIT)
    if shown:
        title = "Waiting" if explain is None else explain
        console.print(table(title, "partition", "decision", ">dirty ratio", "reason", rows=map(_row, shown)))


def _amplification_report(recent: Mapping[str, int]) -> dict[str, Any]:
    """Return the write amplification of the last day, over all topics and by topic."""
    topics = TopicBytes()
    topics.add(recent)
    total = amplification_fields(recent.get(INGESTED, 0), recent.get(REWRITTEN, 0))
    return {"last_day": {**total, "topics": topics.as_dict()}}


def _print_amplification(recent: Mapping[str, int], explain: str | None) -> None:
    """Print the write amplification of the last day, over all topics or of one."""
    suffix, where = ("", "") if explain is None else (f"/{explain}", f" of {explain}")
    ingested, rewritten = recent.get(INGESTED + suffix, 0), recent.get(REWRITTEN + suffix, 0)
    if ingested or rewritten:
        words = amplification_in_words(ingested, rewritten)
        report_console().print(f"Write amplification{where} in the last day: {words}.", markup=False)


def amplification_in_words(ingested: int, rewritten: int) -> str:
    """Describe how much was rewritten for what was ingested."""
    amplification = ratio(ingested, rewritten)
    amounts = f"{human_bytes(rewritten)} written for {human_bytes(ingested)} ingested"
    return amounts if amplification is None else f"{amplification:.2f}; {amounts}"


def _gain(score: JobScore) -> str:
    gain = f"{human_bytes(score.reclaimed_bytes)} reclaimed and {count(score.reads_saved, 'read')} saved"
    cost = f"{human_bytes(score.rewritten_bytes)} rewritten, ${score.nanodollars / 1e9:.6f} of requests"
    return f"Expected: {gain} for {cost}"


def _row(decision: PartitionDecision) -> tuple[object, ...]:
    job = "" if decision.job is None else f", job {decision.job + 1}"
    return (
        f"{decision.topic_name}-{decision.partition}",
        f"{decision.verdict.value}{job}",
        f"{decision.dirty_ratio:.2f}",
        decision.reason,
    )


def _planned_job_fields(job: PlannedJob) -> dict[str, Any]:
    return {
        "kind": job.kind.value,
        "reason": job.reason,
        "input_files": len(job.inputs),
        "input_bytes": job.input_bytes,
        "taken_bytes": job.taken_bytes,
        "watcher_waits_for": None if job.wait is None else asdict(job.wait),
        "expected": {
            "reclaimed_bytes": job.score.reclaimed_bytes,
            "reads_saved": job.score.reads_saved,
            "rewritten_bytes": job.score.rewritten_bytes,
            "moved_bytes": job.score.moved_bytes,
            "dollars": job.score.nanodollars / 1e9,
            "score": job.score.gain_per_byte,
            "overdue": job.score.overdue,
        },
        "partitions": [
            {
                "topic": each.topic_name,
                "partition": each.partition,
                "deduplicate": each.deduplicate,
                "base_offset": each.base_offset,
                "upper_offset": each.upper_offset,
            }
            for each in job.partitions
        ],
    }


def _decision_fields(decision: PartitionDecision) -> dict[str, Any]:
    return {
        "topic": decision.topic_name,
        "partition": decision.partition,
        "verdict": decision.verdict.value,
        "reason": decision.reason,
        "job": decision.job,
        "first_dirty_offset": decision.first_dirty_offset,
        "dirty_ratio": decision.dirty_ratio,
        "clean_bytes": decision.clean_bytes,
        "cleanable_bytes": decision.cleanable_bytes,
    }
