"""Rounds of a scaled model: append the records of a round, plan with the real policy, and apply the jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cost_model.engine.compaction import JobExpansion, apply_job
from cost_model.engine.counts import Counts
from cost_model.engine.job_formulas import RealSystem
from cost_model.engine.outcome import scaled
from cost_model.engine.scaled_model import MODEL_PARTITIONS, ScaledModel, scaled_model_of
from cost_model.engine.simulated_log import Arrival
from cost_model.engine.snapshot import snapshot_of
from cost_model.rates.steady_rates import arrival_probability, stored_bytes_per_second
from planner.plan import JobKind
from planner.policy import make_plan
from planner.snapshot import Spent

if TYPE_CHECKING:
    from catalog.model import PartitionId
    from cost_model.rates.steady_rates import SteadyRates
    from cost_model.workload.definition import Workload
    from planner.plan import PlannedJob
    from planner.settings import PlannerSettings

_MAX_PLANS_PER_ROUND: Final = 4
_MAX_STEPS: Final = 300
_WARM_UP_SECONDS: Final = 30 * 86_400.0
_MERGED_ROUNDS: Final = 1.5


@dataclass(slots=True, kw_only=True)
class ModelRun:
    """State of one scaled model from round to round.

    `merged_within_round` is added to the counts of each round: the merging of files that are written and
    merged within it. `merging` sums the counts of merging jobs that take at most `max_merge_bytes` of the
    model. `pending_records` are fractions of records that have not been appended yet. `backlog_bytes` are
    bytes that planned jobs still have to read or write.
    """

    model: ScaledModel
    rates: SteadyRates
    seconds: float
    expansion: JobExpansion
    merged_within_round: Counts = field(default_factory=Counts)
    small_files: float = 1.0
    merging: Counts = field(default_factory=Counts)
    max_merge_bytes: float = float("inf")
    pending_records: dict[PartitionId, float] = field(default_factory=dict)
    file_allowance: float = 0.0
    backlog_bytes: float = 0.0
    dead_bytes: float = 0.0

    @property
    def stored_share(self) -> float:
        """Share of the model's topics in all bytes that agents store."""
        return sum(map(stored_bytes_per_second, self.model.classes)) / self.rates.stored_bytes

    def append_round(self, begun_ms: int, now_ms: int, counts: Counts | None = None) -> None:
        """Append one file with the records of a round; a fraction of a record waits for the next round.

        If `counts` is given, the clustering jobs for these records are counted.
        """
        log = self.model.log
        arrivals: dict[PartitionId, Arrival] = {}
        for key, part in log.partitions.items():
            due = self.pending_records.get(key, 0.0) + part.topic.records_per_second * self.seconds
            records = int(due)
            self.pending_records[key] = due - records
            if records:
                pieces = log.scale.dilation
                rows = max(1.0, pieces * arrival_probability(part.topic, self.seconds / pieces))
                arrivals[key] = Arrival(records=records, rows=rows)
                if counts is not None and self.expansion.real is not None:
                    self.expansion.real.count_clustering(part, rows, self.seconds, counts)
        if arrivals:
            log.append(arrivals, begun_ms, now_ms)

    def compact(self, now_ms: int, counts: Counts) -> None:
        """Plan and apply jobs, as far as the planner and the tasks keep up."""
        spent = Spent()
        max_files = self._max_files()
        for _ in range(_MAX_PLANS_PER_ROUND):
            if self.backlog_bytes > 0:
                return
            waiting = len(self.model.log.ingestion)
            snapshot = snapshot_of(
                self.model.log, now_ms, self.model.settings, spent=spent, max_files=max_files
            )
            plan = make_plan(snapshot, self.model.settings)
            for job in plan.jobs:
                self._run_job(job, now_ms, counts)
                spent = Spent(
                    moved_bytes=spent.moved_bytes + job.score.moved_bytes,
                    nanodollars=spent.nanodollars + job.score.nanodollars,
                )
            if not plan.jobs:
                break
            if max_files is not None:
                taken = waiting - len(self.model.log.ingestion)
                max_files, self.file_allowance = max_files - taken, self.file_allowance - taken

    def _max_files(self) -> int | None:
        """Return how many waiting files the planner takes in this round; None if it takes all."""
        if self.rates.capacity == 1:
            return None
        self.file_allowance += self.rates.capacity
        return int(self.file_allowance)

    def _run_job(self, job: PlannedJob, now_ms: int, counts: Counts) -> None:
        before = counts.copy()
        apply_job(self.model.log, job, now_ms, counts, self.expansion)
        done = counts.since(before)
        self.backlog_bytes += done.read_bytes + done.written_bytes
        if job.kind is JobKind.MERGING and job.taken_bytes <= self.max_merge_bytes:
            self.merging = self.merging.plus(done)

    def drain_backlog(self, capacity_bytes: float) -> None:
        """Subtract the bytes that tasks move in a round; 0 means that tasks are unlimited."""
        self.backlog_bytes = max(0.0, self.backlog_bytes - capacity_bytes) if capacity_bytes else 0.0

    def record_dead_files(self) -> None:
        """Record the size of the files that lost their last extent in this round."""
        dead = self.model.log.take_dead_files()
        self.dead_bytes = self.model.log.scale.thinning * sum(file.view.size for file in dead)

    @property
    def compacted_objects(self) -> float:
        """Number of objects with compacted data."""
        return sum(file.objects for file in self.model.log.files.values())


def start_model_run(
    workload: Workload,
    rates: SteadyRates,
    settings: PlannerSettings,
    round_seconds: float,
    *,
    compacted: bool,
    model_partitions: int = MODEL_PARTITIONS,
) -> ModelRun | None:
    """Return a run of the compacted topics or of the other ones; None if there are none."""
    found = []
    for seconds in (round_seconds, rates.job_seconds):
        model = scaled_model_of(
            workload, rates, settings, seconds, compacted=compacted, model_partitions=model_partitions
        )
        if model is None:
            return None
        _set_lifetimes(model)
        expansion = JobExpansion(
            jobs_per_round=max(1.0, seconds / rates.job_seconds),
            max_job_bytes=settings.max_job_input_bytes,
            real=_real_system(workload, rates, settings, model),
        )
        found.append(ModelRun(model=model, rates=rates, seconds=seconds, expansion=expansion))
    run, per_job = found
    _measure_merging_within_round(run, per_job)
    return run


def _set_lifetimes(model: ScaledModel) -> None:
    """Set how many extents arrive until the first expires; a cleaning sets it for compacted partitions."""
    for part in model.log.partitions.values():
        expires = part.rules.expires_after_ms
        if expires is not None:
            part.lifetime_arrivals = max(1.0, part.arrivals_per_second * expires / 1000)


def _real_system(
    workload: Workload, rates: SteadyRates, settings: PlannerSettings, model: ScaledModel
) -> RealSystem:
    ingested = min(settings.max_plan_files / rates.files * rates.extents, settings.max_plan_extents / 2)
    extents = settings.max_plan_extents * 3 / 4 - ingested
    return RealSystem(
        settings=settings,
        partitions=float(sum(each.partition_count for each in model.classes)),
        planning_interval_seconds=max(workload.planning_seconds, rates.job_seconds),
        job_seconds=rates.job_seconds,
        file_seconds=rates.job_seconds * model.outputs,
        job_bytes=rates.job_bytes,
        job_files=rates.files * rates.job_seconds,
        clustering_extents=max(extents, settings.max_plan_extents / 8),
    )


def _measure_merging_within_round(run: ModelRun, per_job: ModelRun) -> None:
    """Measure what merging adds within a round, by a second run with one round per ingestion job.

    Merges of more bytes than a round brings are left to the rounds, unless a round fills several large files.
    """
    outputs = run.model.outputs
    if outputs < 2 or per_job.seconds >= run.seconds:
        return
    steps = min(_MAX_STEPS, round(2 * outputs) + 2 * per_job.model.settings.merge_fan_in)
    stored = sum(map(stored_bytes_per_second, run.model.classes))
    if run.model.log.scale.dilation == 1:
        per_job.max_merge_bytes = _MERGED_ROUNDS * stored * run.seconds / per_job.model.log.scale.thinning
    warm_ms = round(_WARM_UP_SECONDS * 1000)
    if any(part.rules.compacted for part in per_job.model.log.partitions.values()):
        seconds, per_job.seconds = per_job.seconds, _WARM_UP_SECONDS
        per_job.append_round(0, warm_ms)
        per_job.compact(warm_ms, Counts())
        per_job.seconds, per_job.merging, per_job.backlog_bytes = seconds, Counts(), 0.0
    small = 0.0
    for step in range(steps):
        begun_ms = warm_ms + round(step * per_job.seconds * 1000)
        now_ms = warm_ms + round((step + 1) * per_job.seconds * 1000)
        per_job.append_round(begun_ms, now_ms)
        per_job.model.log.expire(now_ms)
        per_job.backlog_bytes = 0.0
        per_job.compact(now_ms, Counts())
        full = per_job.model.settings.full_bytes
        small += sum(file.objects for file in per_job.model.log.files.values() if file.live_bytes < full)
    jobs = run.seconds / run.rates.job_seconds
    run.merged_within_round = scaled(per_job.merging, jobs / steps)
    run.small_files = small / steps
