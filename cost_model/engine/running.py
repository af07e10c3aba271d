"""A cell that runs: records arrive in rounds, the real policy plans, its jobs are carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cost_model.engine.build import CELL_PARTITIONS, Cell, cell_of
from cost_model.engine.cleanings import Stream
from cost_model.engine.compaction import Rhythm, apply
from cost_model.engine.counts import Counts
from cost_model.engine.outcome import scaled
from cost_model.engine.scaled_model import Arrival
from cost_model.engine.steady_state import presence, stored_bytes_per_second
from cost_model.engine.views import snapshot_of
from planner.plan import JobKind
from planner.policy import make_plan
from planner.snapshot import Spent

if TYPE_CHECKING:
    from catalog.model import PartitionId
    from cost_model.engine.steady_state import Front
    from cost_model.workload.workload import Workload
    from planner.plan import PlannedJob
    from planner.settings import PlannerSettings

_PLANS_OF_A_ROUND: Final = 4
_MAX_STEPS: Final = 300
_WARM_SECONDS: Final = 30 * 86_400.0
_WITHIN_A_ROUND: Final = 1.5


@dataclass(slots=True, kw_only=True)
class Running:
    """A cell, with what does not fit into whole numbers or into a round.

    `within` is what merging within a round adds to each round; `merging` collects what merging jobs did, of
    up to `merging_below` bytes of the cell. `debt_bytes` are what jobs have still to move.
    """

    cell: Cell
    front: Front
    seconds: float
    rhythm: Rhythm
    within: Counts = field(default_factory=Counts)
    small_files: float = 1.0
    merging: Counts = field(default_factory=Counts)
    merging_below: float = float("inf")
    credits: dict[PartitionId, float] = field(default_factory=dict)
    allowed: float = 0.0
    debt_bytes: float = 0.0
    died_bytes: float = 0.0

    @property
    def stored_share(self) -> float:
        """Its part of all that agents store."""
        return sum(map(stored_bytes_per_second, self.cell.classes)) / self.front.stored_bytes

    def arrive(self, begun_ms: int, now_ms: int, counts: Counts | None = None) -> None:
        """One file with a round's records; what is less than a record waits for the next round.

        Counts how the news of the round are sorted.
        """
        log = self.cell.log
        arrivals: dict[PartitionId, Arrival] = {}
        for key, part in log.parts.items():
            due = self.credits.get(key, 0.0) + part.topic.records_per_second * self.seconds
            records = int(due)
            self.credits[key] = due - records
            if records:
                pieces = log.scale.dilation
                rows = max(1.0, pieces * presence(part.topic, self.seconds / pieces))
                arrivals[key] = Arrival(records=records, rows=rows)
                if counts is not None and self.rhythm.stream is not None:
                    self.rhythm.stream.sort(part, rows, self.seconds, counts)
        if arrivals:
            log.append(arrivals, begun_ms, now_ms)

    def compact(self, now_ms: int, counts: Counts) -> None:
        """Plan and carry out, while planners and tasks keep up."""
        spent = Spent()
        most = self._most_files()
        for _ in range(_PLANS_OF_A_ROUND):
            if self.debt_bytes > 0:
                return
            waiting = len(self.cell.log.ingestion)
            snapshot = snapshot_of(self.cell.log, now_ms, self.cell.settings, spent=spent, most_files=most)
            plan = make_plan(snapshot, self.cell.settings)
            for job in plan.jobs:
                self._carry_out(job, now_ms, counts)
                spent = Spent(
                    moved_bytes=spent.moved_bytes + job.score.moved_bytes,
                    nanodollars=spent.nanodollars + job.score.nanodollars,
                )
            if not plan.jobs:
                break
            if most is not None:
                taken = waiting - len(self.cell.log.ingestion)
                most, self.allowed = most - taken, self.allowed - taken

    def _most_files(self) -> int | None:
        """How many of the waiting files the planner takes in this round; None where it keeps up."""
        if self.front.capacity == 1:
            return None
        self.allowed += self.front.capacity
        return int(self.allowed)

    def _carry_out(self, job: PlannedJob, now_ms: int, counts: Counts) -> None:
        before = counts.copy()
        apply(self.cell.log, job, now_ms, counts, self.rhythm)
        done = counts.since(before)
        self.debt_bytes += done.read_bytes + done.written_bytes
        if job.kind is JobKind.MERGING and job.taken_bytes <= self.merging_below:
            self.merging = self.merging.plus(done)

    def work_off(self, capacity_bytes: float) -> None:
        """What tasks move in a round; 0 stands for as much as there is."""
        self.debt_bytes = max(0.0, self.debt_bytes - capacity_bytes) if capacity_bytes else 0.0

    def bury(self) -> None:
        """Note what died in this round."""
        died = self.cell.log.take_died()
        self.died_bytes = self.cell.log.scale.thinning * sum(file.view.size for file in died)

    @property
    def compacted_objects(self) -> float:
        """How many objects hold compacted files."""
        return sum(file.objects for file in self.cell.log.files.values())


def running_cell(
    workload: Workload,
    front: Front,
    settings: PlannerSettings,
    round_seconds: float,
    *,
    compacted: bool,
    cell_partitions: int = CELL_PARTITIONS,
) -> Running | None:
    """The cell of one kind of topics, ready to run in rounds of so many seconds; None without such topics."""
    found = []
    for seconds in (round_seconds, front.job_seconds):
        cell = cell_of(
            workload, front, settings, seconds, compacted=compacted, cell_partitions=cell_partitions
        )
        if cell is None:
            return None
        _set_lifetimes(cell)
        rhythm = Rhythm(
            pieces=max(1.0, seconds / front.job_seconds),
            max_job_bytes=settings.max_job_input_bytes,
            stream=_stream(workload, front, settings, cell),
        )
        found.append(Running(cell=cell, front=front, seconds=seconds, rhythm=rhythm))
    running, fine = found
    _merge_within(running, fine)
    return running


def _set_lifetimes(cell: Cell) -> None:
    """How many extents come until the first of them expires; of what is cleaned, the cleaning will tell."""
    for part in cell.log.parts.values():
        expires = part.rules.expires_after_ms
        if expires is not None:
            part.lifetime = max(1.0, part.arrivals_per_second * expires / 1000)


def _stream(workload: Workload, front: Front, settings: PlannerSettings, cell: Cell) -> Stream:
    ingested = min(settings.max_plan_files / front.files * front.extents, settings.max_plan_extents / 2)
    room = settings.max_plan_extents * 3 / 4 - ingested
    return Stream(
        settings=settings,
        partitions=float(sum(each.partition_count for each in cell.classes)),
        look_seconds=max(workload.planning_seconds, front.job_seconds),
        job_seconds=front.job_seconds,
        file_seconds=front.job_seconds * cell.outputs,
        job_bytes=front.job_bytes,
        job_files=front.files * front.job_seconds,
        clustering_room=max(room, settings.max_plan_extents / 8),
    )


def _merge_within(running: Running, fine: Running) -> None:
    """Find out what merging adds within a round, by running some jobs' score one by one.

    Merges of more than a round's bytes are left to the rounds, unless one of these stands for many.
    """
    outputs = running.cell.outputs
    if outputs < 2 or fine.seconds >= running.seconds:
        return
    steps = min(_MAX_STEPS, round(2 * outputs) + 2 * fine.cell.settings.merge_fan_in)
    stored = sum(map(stored_bytes_per_second, running.cell.classes))
    if running.cell.log.scale.dilation == 1:
        fine.merging_below = _WITHIN_A_ROUND * stored * running.seconds / fine.cell.log.scale.thinning
    warm_ms = round(_WARM_SECONDS * 1000)
    if any(part.rules.compacted for part in fine.cell.log.parts.values()):
        seconds, fine.seconds = fine.seconds, _WARM_SECONDS
        fine.arrive(0, warm_ms)
        fine.compact(warm_ms, Counts())
        fine.seconds, fine.merging, fine.debt_bytes = seconds, Counts(), 0.0
    small = 0.0
    for step in range(steps):
        begun_ms = warm_ms + round(step * fine.seconds * 1000)
        now_ms = warm_ms + round((step + 1) * fine.seconds * 1000)
        fine.arrive(begun_ms, now_ms)
        fine.cell.log.expire(now_ms)
        fine.debt_bytes = 0.0
        fine.compact(now_ms, Counts())
        full = fine.cell.settings.full_bytes
        small += sum(file.objects for file in fine.cell.log.files.values() if file.live_bytes < full)
    jobs = running.seconds / running.front.job_seconds
    running.within = scaled(fine.merging, jobs / steps)
    running.small_files = small / steps
