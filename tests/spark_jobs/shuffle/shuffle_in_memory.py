"""The stages of the shuffle plan with lists instead of Spark."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from catalog.model import JobResult
from core.clock import SystemClock
from spark_jobs.shuffle.query import unite_results
from spark_jobs.shuffle.rows import (
    BlobRow,
    SurvivorRow,
    read_blob_rows,
    read_survivor_rows,
    write_blob_rows,
    write_survivor_rows,
)
from spark_jobs.shuffle.stages import ShareInput, StageContext, cut_share, judge_buckets, write_share
from spark_jobs.task.entry import PackedJob
from spark_jobs.transport import pack_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import JobSpec
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from spark_jobs.report import JobFailure
    from spark_jobs.shuffle.plan import ShufflePlan


def run_in_memory(
    spec: JobSpec, plan: ShufflePlan, open_task_store: Callable[[], ObjectStore], ids: Ids
) -> JobResult:
    """Run all tasks in sequence, each with its own store; encode the rows that pass between them."""
    context = StageContext(spec=spec, plan=plan, clock=SystemClock(), check=lambda: None)
    attempt_id = ids.new_uuid()
    to_judge: defaultdict[int, list[BlobRow]] = defaultdict(list)
    for share in range(len(plan.shares)):
        store = open_task_store()
        for row in read_blob_rows(write_blob_rows(cut_share(context, share, store))):
            to_judge[row.judge].append(row)
        store.close()
    to_write: defaultdict[int, list[SurvivorRow]] = defaultdict(list)
    for rows in to_judge.values():
        rows.sort(key=lambda row: (row.kind, row.number, -row.first_offset))
        for survivors in read_survivor_rows(write_survivor_rows(judge_buckets(context, rows))):
            to_write[survivors.share].append(survivors)
    results: list[tuple[int, JobResult | JobFailure]] = []
    for share in range(len(plan.shares)):
        share_input = ShareInput()
        for survivors in to_write[share]:
            share_input.add(survivors)
        store = open_task_store()
        results.append((share, write_share(context, share, share_input, store, attempt_id, ids)))
        store.close()
    merged = unite_results(PackedJob(spec.job_id, attempt_id, pack_spec(spec)), plan, results)
    assert isinstance(merged, JobResult)
    return merged
