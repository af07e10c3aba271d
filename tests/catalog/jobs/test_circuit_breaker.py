"""Faults of the environment: back-off of jobs, and the pause of compaction that several drivers share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.jobs.circuit_breaker import (
    FAILURES,
    FIRST_PAUSE_MS,
    MAX_CLASSES,
    OWN_FAULTS,
    SILENT_DRIVER,
    is_due,
)
from catalog.jobs.repository import MAX_DEATHS
from catalog.model import JobState, PartitionId
from core.clock import ManualClock
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from catalog.jobs.circuit_breaker import BackOff
    from catalog.model import Job
    from core.clock import Clock
    from tests.catalog.scene import Scene

EXPIRED = "StoreAccessError"


def submit(scene: Scene, count: int, topic_name: str = "t", files: int = 1) -> None:
    """Submit jobs with `files` files each."""
    topic = scene.topic(topic_name, partitions=count)
    for partition in range(count):
        for _ in range(files):
            scene.commit(topic, run_of(5), partition=partition)
        scene.submitted(scene.extents(topic, partition))


def claim(scene: Scene, limit: int = 100, driver: str = "a driver") -> list[Job]:
    """Claim jobs for a driver."""
    return scene.catalog.jobs.claim(driver, limit)


def fault(
    scene: Scene, job: Job, error: str = EXPIRED, *, died: bool = False, session_lost: bool = False
) -> BackOff:
    assert job.attempt_id is not None
    return scene.catalog.jobs.back_off(
        job.spec.job_id,
        job.attempt_id,
        error=error,
        reason=f"{error}: renew the token",
        died=died,
        session_lost=session_lost,
    )


def kill_drivers(scene: Scene, clock: ManualClock) -> None:
    """Let all running jobs be silent for so long that they are released."""
    clock.advance(61)
    scene.catalog.jobs.release_expired(60_000, 0)


def claim_probe(scene: Scene, clock: ManualClock) -> list[Job]:
    """Wait for the end of a pause, and claim what may run then."""
    pause = scene.catalog.circuit_breaker.pause()
    assert pause is not None
    assert pause.error == SILENT_DRIVER
    clock.advance((pause.not_before_ms - clock.now_ms()) / 1000)
    return claim(scene)


def complete(scene: Scene, job: Job) -> None:
    scene.catalog.jobs.complete(scene.result(job))


@dataclass
class Workers:
    """Workers of one driver with `slots` task slots; an attempt takes `attempt_seconds`."""

    scene: Scene
    clock: ManualClock
    slots: int = 100
    attempt_seconds: int = 0

    def run(self, hours: int, deadly: Collection[UUID]) -> None:
        """Run what can be claimed for some hours; the jobs in `deadly` kill their workers."""
        end_ms = self.clock.now_ms() + hours * 3_600_000
        while self.clock.now_ms() < end_ms:
            if jobs := claim(self.scene, self.slots):
                self.clock.advance(self.attempt_seconds)
                self._finish(jobs, deadly)
            else:
                self.clock.advance(600)

    def _finish(self, jobs: list[Job], deadly: Collection[UUID]) -> None:
        """Complete jobs or report deaths; after a pause has begun, release the others, as a driver does."""
        paused = False
        for job in jobs:
            assert job.attempt_id is not None
            if paused:
                self.scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
            elif job.spec.job_id in deadly:
                paused = fault(self.scene, job, "WorkerDiedError", died=True).pause is not None
            else:
                complete(self.scene, job)


@pytest.fixture
def manual_clock(clock: Clock) -> ManualClock:
    assert isinstance(clock, ManualClock)
    return clock


def test_a_job_waits_longer_after_each_fault_and_no_file_is_suspected(
    scene: Scene, manual_clock: ManualClock
) -> None:
    submit(scene, 1)
    waits = []
    for _ in range(12):
        (job,) = claim(scene)
        assert fault(scene, job).released
        assert (claim(scene), scene.catalog.jobs.claimable()) == ([], 0)
        waiting = scene.catalog.jobs.get(job.spec.job_id)
        assert (waiting.state, waiting.failure) == (JobState.SUBMITTED, f"{EXPIRED}: renew the token")
        waits.append((waiting.not_before_ms - manual_clock.now_ms()) // 1000)
        manual_clock.advance(waits[-1])

    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]
    assert scene.catalog.jobs.claimable() == 1
    assert scene.catalog.quarantine.list() == []
    assert scene.catalog.circuit_breaker.pause() is None  # one job alone is no sign of a common cause


def test_nothing_waits_for_a_time_that_a_wrong_clock_has_set(
    scene: Scene, manual_clock: ManualClock, catalog_url: str
) -> None:
    """The server's clock was a day ahead when jobs failed and compaction was paused."""
    submit(scene, FAILURES + 1)
    faulty = [fault(scene, job) for job in claim(scene, FAILURES)]
    assert faulty[-1].pause is not None
    for table in ("jobs", "compaction_breaker"):
        with psycopg.connect(catalog_url) as connection:
            connection.execute(f"UPDATE {table} SET not_before_ms = not_before_ms + 86400000")

    pause = scene.catalog.circuit_breaker.pause()
    assert pause is not None
    assert is_due(pause, manual_clock.now_ms())
    (probe,) = claim(scene)
    complete(scene, probe)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE jobs SET not_before_ms = %s", (manual_clock.now_ms() + 86_400_000,))
    assert scene.catalog.jobs.claimable() == FAILURES
    assert len(claim(scene)) == FAILURES


def test_jobs_that_fail_alike_pause_all_drivers(scene: Scene, manual_clock: ManualClock) -> None:
    submit(scene, 6)
    jobs = claim(scene, 4)
    outcomes = [fault(scene, job) for job in jobs[:FAILURES]]

    assert [each.pause is not None for each in outcomes] == [False, False, True]
    assert claim(scene) == []  # two jobs were never claimed
    late = fault(scene, jobs[FAILURES])
    assert late.pause == outcomes[-1].pause == scene.catalog.circuit_breaker.pause()
    assert late.pause is not None
    assert (late.pause.error, late.pause.jobs) == (EXPIRED, 3)
    assert late.pause.not_before_ms == manual_clock.now_ms() + FIRST_PAUSE_MS


def test_one_probe_decides_whether_compaction_continues(scene: Scene, manual_clock: ManualClock) -> None:
    """A failed probe doubles the pause, and the next probe is another job. A success ends it for all jobs."""
    submit(scene, 5)
    for job in claim(scene, FAILURES):
        fault(scene, job)
    pauses: list[float] = []
    probes: list[Job] = []
    for _ in range(3):
        pause = scene.catalog.circuit_breaker.pause()
        assert pause is not None
        pauses.append((pause.not_before_ms - manual_clock.now_ms()) // 1000)
        manual_clock.advance(pauses[-1] - 0.001)
        assert claim(scene) == []
        manual_clock.advance(0.001)
        (probe,) = claim(scene)
        assert claim(scene) == []  # another driver
        running = scene.catalog.circuit_breaker.pause()
        assert running is not None
        assert running.is_probing
        probes.append(probe)
        if len(probes) < 3:
            fault(scene, probe, "AnotherError")

    complete(scene, probes[-1])

    assert pauses == [60, 120, 240]
    assert len({probe.spec.job_id for probe in probes}) == 3
    assert scene.catalog.circuit_breaker.pause() is None
    assert (scene.catalog.jobs.claimable(), len(claim(scene))) == (4, 4)


@dataclass
class BrokenJobs:
    """Three jobs that always fail, among others that succeed; `paused` counts the pauses that began."""

    scene: Scene
    clock: ManualClock
    died: bool
    paused: int = 0
    job_ids: frozenset[UUID] = frozenset()

    def run(self, rounds: int) -> None:
        """Run all jobs that can be claimed, with a new one in each round."""
        submit(self.scene, 3)
        self.job_ids = frozenset(each.spec.job_id for each in self.scene.catalog.jobs.list())
        for number in range(rounds):
            submit(self.scene, 1, f"topic-{number}")
            pause = self.scene.catalog.circuit_breaker.pause()
            self.clock.advance(3600 if pause is None else (pause.not_before_ms - self.clock.now_ms()) / 1000)
            while jobs := claim(self.scene):
                self._finish(jobs)

    def _finish(self, jobs: list[Job]) -> None:
        """Let jobs succeed or fail; after a pause has begun, release the others, as a driver does."""
        paused = False
        for job in jobs:
            assert job.attempt_id is not None
            if paused:
                self.scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
            elif job.spec.job_id in self.job_ids:
                paused = fault(self.scene, job, died=self.died).pause is not None
                self.paused += paused
            else:
                complete(self.scene, job)


def test_jobs_that_always_fail_do_not_pause_compaction_again_and_again(
    scene: Scene, manual_clock: ManualClock
) -> None:
    """In the end they wait for an hour after each failure, and the others run meanwhile."""
    broken = BrokenJobs(scene, manual_clock, died=False)

    broken.run(30)

    assert broken.paused == OWN_FAULTS
    assert scene.catalog.circuit_breaker.pause() is None
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == 30
    waiting = [scene.catalog.jobs.get(each).not_before_ms for each in broken.job_ids]
    assert waiting == [manual_clock.now_ms() + 3_600_000] * 3
    assert scene.catalog.quarantine.list() == []


def test_jobs_that_always_kill_their_workers_are_found_in_spite_of_pauses(
    scene: Scene, manual_clock: ManualClock
) -> None:
    broken = BrokenJobs(scene, manual_clock, died=True)

    broken.run(30)

    assert {scene.catalog.jobs.get(each).state for each in broken.job_ids} == {JobState.FAILED}
    assert {each.job_id for each in scene.catalog.quarantine.list()} == broken.job_ids
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == 30


@pytest.mark.parametrize(("jobs", "files"), [(4, 1), (3, 4)])
def test_an_environment_that_kills_every_worker_costs_no_file(
    scene: Scene, manual_clock: ManualClock, jobs: int, files: int
) -> None:
    """Probes go on, in turn. After the repair, all jobs complete, although one worker dies once more."""
    submit(scene, jobs, files=files)
    job_ids = {each.spec.job_id for each in scene.catalog.jobs.list()}
    workers = Workers(scene, manual_clock)

    workers.run(60, job_ids)

    assert scene.catalog.quarantine.list() == []
    waiting = scene.catalog.jobs.list([JobState.SUBMITTED])
    assert {each.spec.job_id for each in waiting} == job_ids
    assert min(each.attempts for each in waiting) > MAX_DEATHS
    assert scene.catalog.circuit_breaker.pause() is not None

    manual_clock.advance(3600)
    (probe,) = claim(scene)
    complete(scene, probe)
    manual_clock.advance(3600)
    (unlucky, *others) = claim(scene)
    assert fault(scene, unlucky, "WorkerDiedError", died=True).released
    for job in others:
        complete(scene, job)
    workers.run(2, deadly=())
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == jobs
    assert scene.catalog.quarantine.list() == []


def test_a_job_that_still_kills_its_workers_after_an_outage_is_found(
    scene: Scene, manual_clock: ManualClock
) -> None:
    """Its deaths count from the first job on that completes. The others complete meanwhile."""
    submit(scene, 4)
    jobs = scene.catalog.jobs.list()
    deadly = jobs[2]
    workers = Workers(scene, manual_clock)
    workers.run(60, {each.spec.job_id for each in jobs})

    workers.run(12, {deadly.spec.job_id})

    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == 3
    (found,) = scene.catalog.quarantine.list(quarantined=True)
    assert found.file_id == deadly.spec.inputs[0].file_id


@pytest.mark.parametrize(("jobs", "slots", "attempt_seconds"), [(2, 100, 0), (4, 1, 300)])
def test_two_jobs_that_die_often_are_no_proof_against_their_files(
    scene: Scene, manual_clock: ManualClock, jobs: int, slots: int, attempt_seconds: int
) -> None:
    """There is no third job, or the driver has one slot, and the two are due again before the third runs."""
    submit(scene, jobs)
    workers = Workers(scene, manual_clock, slots, attempt_seconds)

    workers.run(60, {each.spec.job_id for each in scene.catalog.jobs.list()})

    assert scene.catalog.quarantine.list() == []
    assert scene.catalog.circuit_breaker.pause() is not None
    workers.run(4, deadly=())
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == jobs
    assert scene.catalog.quarantine.list() == []


def test_one_of_two_jobs_that_still_dies_when_the_other_completes_is_found(
    scene: Scene, manual_clock: ManualClock
) -> None:
    submit(scene, 2)
    deadly, other = scene.catalog.jobs.list()
    workers = Workers(scene, manual_clock)
    workers.run(60, {deadly.spec.job_id, other.spec.job_id})

    workers.run(12, {deadly.spec.job_id})

    assert scene.catalog.jobs.get(other.spec.job_id).state is JobState.COMPLETED
    (found,) = scene.catalog.quarantine.list(quarantined=True)
    assert found.file_id == deadly.spec.inputs[0].file_id


def test_drivers_that_die_with_two_jobs_are_no_proof_against_their_files(
    scene: Scene, manual_clock: ManualClock
) -> None:
    submit(scene, 2)
    for _ in range(4 * MAX_DEATHS):
        claim(scene)
        kill_drivers(scene, manual_clock)
        manual_clock.advance(3600)
        scene.catalog.jobs.release_expired(60_000, 0)

    assert scene.catalog.quarantine.list() == []
    for _ in range(2):
        (job,) = claim(scene)
        complete(scene, job)
    assert scene.catalog.circuit_breaker.pause() is None


def test_a_lost_session_during_a_pause_is_no_death(scene: Scene, manual_clock: ManualClock) -> None:
    """Otherwise a few worker deaths would be enough later on."""
    submit(scene, 3)
    for job in claim(scene):
        fault(scene, job)
    for _ in range(3 * OWN_FAULTS):
        manual_clock.advance(3600)
        lose_session(scene, claim(scene))
    manual_clock.advance(3600)
    (probe,) = claim(scene)
    complete(scene, probe)
    manual_clock.advance(3600)

    assert len(claim(scene)) == 2  # a job whose processes have died twice would run alone


def lose_session(scene: Scene, jobs: list[Job]) -> None:
    """Report that Spark was lost while these jobs ran."""
    for job in jobs:
        fault(scene, job, "SparkUnavailableError", session_lost=True)


def test_a_job_that_ends_every_session_holds_up_no_other(scene: Scene, manual_clock: ManualClock) -> None:
    """It waits longer each time, and runs alone from the second time on. No file is suspected."""
    submit(scene, 6)
    killer = claim(scene)[2].spec.job_id
    lose_session(scene, scene.catalog.jobs.list())
    together: list[int] = []
    waits: list[int] = []
    while len(waits) < 10:
        assert scene.catalog.circuit_breaker.pause() is None
        while jobs := claim(scene):
            together.append(len(jobs))
            if killer in {each.spec.job_id for each in jobs}:
                lose_session(scene, jobs)
                waits.append(scene.catalog.jobs.get(killer).not_before_ms - manual_clock.now_ms())
            else:
                for job in jobs:
                    complete(scene, job)
        manual_clock.advance(waits[-1] / 1000 if waits else 10)
    assert together == [6] + [1] * 14
    assert waits[-1] == 3_600_000
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == 5
    assert scene.catalog.quarantine.list() == []


def test_a_probe_whose_session_is_lost_has_failed(scene: Scene, manual_clock: ManualClock) -> None:
    submit(scene, 3)
    for job in claim(scene):
        fault(scene, job)
    manual_clock.advance(60)
    lose_session(scene, claim(scene))

    pause = scene.catalog.circuit_breaker.pause()
    assert pause is not None
    assert pause.not_before_ms == manual_clock.now_ms() + 2 * FIRST_PAUSE_MS


def test_all_jobs_can_run_as_soon_as_a_long_outage_is_over(scene: Scene, manual_clock: ManualClock) -> None:
    """Each of them has failed so often that its own faults could be the reason."""
    submit(scene, 3)
    for job in claim(scene):
        fault(scene, job)
    for _ in range(4 * OWN_FAULTS):
        pause = scene.catalog.circuit_breaker.pause()
        assert pause is not None
        manual_clock.advance((pause.not_before_ms - manual_clock.now_ms()) / 1000)
        (probe,) = claim(scene)
        fault(scene, probe)
    manual_clock.advance(3600)
    (probe,) = claim(scene)
    complete(scene, probe)

    assert scene.catalog.circuit_breaker.pause() is None
    assert len(claim(scene)) == 2


def test_a_probe_whose_driver_dies_is_replaced(scene: Scene, manual_clock: ManualClock) -> None:
    submit(scene, 3)
    for job in claim(scene):
        fault(scene, job)
    manual_clock.advance(60)
    assert len(claim(scene)) == 1
    kill_drivers(scene, manual_clock)

    assert claim(scene) == []  # the probe has failed
    manual_clock.advance(120)
    assert len(claim(scene)) == 1


def test_drivers_that_die_in_a_row_pause_compaction(scene: Scene, manual_clock: ManualClock) -> None:
    """The environment may kill them, so no file is suspected, however long it does. Probes take turns."""
    submit(scene, 4)
    deaths = 0
    while scene.catalog.circuit_breaker.pause() is None:
        assert claim(scene)
        kill_drivers(scene, manual_clock)
        deaths += 1
    assert deaths <= MAX_DEATHS
    probes: list[UUID] = []
    for _ in range(4 * MAX_DEATHS):
        probes += [each.spec.job_id for each in claim_probe(scene, manual_clock)]
        kill_drivers(scene, manual_clock)
    assert scene.catalog.quarantine.list() == []
    assert sorted(Counter(probes).values()) == [MAX_DEATHS] * 4

    (probe,) = claim_probe(scene, manual_clock)
    complete(scene, probe)
    assert scene.catalog.circuit_breaker.pause() is None
    while jobs := claim(scene):
        for job in jobs:
            complete(scene, job)
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == 4


def test_drivers_with_one_slot_that_die_run_other_jobs_too(scene: Scene, manual_clock: ManualClock) -> None:
    """The oldest job is claimed first, and would be the only one that has died."""
    submit(scene, 4)
    for _ in range(4 * MAX_DEATHS):
        claim(scene, 1)
        kill_drivers(scene, manual_clock)
        manual_clock.advance(3600)

    assert scene.catalog.quarantine.list() == []
    pause = scene.catalog.circuit_breaker.pause()
    assert pause is not None
    assert pause.error == SILENT_DRIVER
    for _ in range(4):
        (job,) = claim(scene, 1)
        complete(scene, job)
    assert scene.catalog.quarantine.list() == []


def test_the_oldest_job_that_kills_drivers_with_one_slot_is_found(
    scene: Scene, manual_clock: ManualClock
) -> None:
    """Once it has died twice, another job runs before each of its attempts."""
    submit(scene, 4)
    (killer,) = claim(scene, 1)
    kill_drivers(scene, manual_clock)
    order = []
    while jobs := claim(scene, 1):
        order.append(jobs[0].spec.job_id == killer.spec.job_id)
        if order[-1]:
            kill_drivers(scene, manual_clock)
        else:
            complete(scene, jobs[0])

    assert order == [True, False, True, False, True, False, True]
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == 3
    (found,) = scene.catalog.quarantine.list(quarantined=True)
    assert found.file_id == killer.spec.inputs[0].file_id


def test_the_job_that_kills_its_driver_is_found_among_others(scene: Scene, manual_clock: ManualClock) -> None:
    """All jobs of the driver are lost with it. They run alone from then on, and the others are completed."""
    submit(scene, 6)
    killer = claim(scene)[3]
    kill_drivers(scene, manual_clock)
    while jobs := claim(scene):
        if killer.spec.job_id in {each.spec.job_id for each in jobs}:
            kill_drivers(scene, manual_clock)
        else:
            for job in jobs:
                complete(scene, job)
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == 5
    (found,) = scene.catalog.quarantine.list()
    assert found.file_id == killer.spec.inputs[0].file_id


def test_a_driver_that_claims_while_jobs_run_gets_no_second_suspect(
    scene: Scene, manual_clock: ManualClock
) -> None:
    """It claims for free slots, again and again. Only the file of the job that kills drivers is suspected."""
    submit(scene, 6)
    (killer,) = claim(scene, 1)
    together: list[int] = []
    while running := [killer] if not together else claim(scene, 2):
        while more := claim(scene, 2):
            running += more
        together.append(len(running))
        if killer.spec.job_id in {each.spec.job_id for each in running}:
            kill_drivers(scene, manual_clock)
        else:
            for job in running:
                complete(scene, job)
    assert together[:2] == [6, 6]
    assert set(together[2:]) == {1}
    assert scene.catalog.jobs.counts()[JobState.COMPLETED] == 5
    (found,) = scene.catalog.quarantine.list()
    assert found.file_id == killer.spec.inputs[0].file_id


def test_a_suspect_waits_until_its_driver_has_no_other_job(scene: Scene, manual_clock: ManualClock) -> None:
    """Jobs that are not suspected go on. Another driver runs the next suspect at the same time."""
    submit(scene, 2)
    first, second = (each.spec.job_id for each in claim(scene))
    kill_drivers(scene, manual_clock)
    assert len(claim(scene)) == 2
    kill_drivers(scene, manual_clock)
    submit(scene, 3, "later")

    (alone,) = claim(scene, driver="one")
    (other,) = claim(scene, driver="two")
    assert [each.spec.job_id for each in (alone, other)] == [first, second]
    assert claim(scene, driver="one") == claim(scene, driver="two") == []
    complete(scene, other)
    (running,) = claim(scene, 1, driver="two")
    assert alone.attempt_id is not None
    scene.catalog.jobs.release(first, alone.attempt_id)
    assert first not in {each.spec.job_id for each in claim(scene, driver="two")}
    (alone,) = claim(scene, driver="one")
    assert alone.spec.job_id == first
    assert running.spec.job_id != first


def test_a_probe_runs_alone_in_its_driver(scene: Scene, manual_clock: ManualClock) -> None:
    """Otherwise the death of the driver could be the fault of its other jobs."""
    submit(scene, 6)
    others = claim(scene, 1)
    for job in claim(scene, FAILURES, driver="another"):
        fault(scene, job)
    manual_clock.advance(60)

    assert claim(scene) == []
    complete(scene, others[0])
    assert scene.catalog.circuit_breaker.pause() is None


def test_only_failures_of_one_class_since_the_last_success_and_disjoint_inputs_count(scene: Scene) -> None:
    submit(scene, 8)
    jobs = claim(scene)
    for job, error in zip(jobs[:4], ["one", "one", "two", "three"], strict=True):
        assert fault(scene, job, error).pause is None
    complete(scene, jobs[4])
    assert fault(scene, jobs[5], "one").pause is None
    assert fault(scene, jobs[6], "one").pause is None
    assert fault(scene, jobs[7], "one").pause is not None


def test_an_environment_that_fails_in_two_ways_pauses_compaction(scene: Scene) -> None:
    """Failures of another class in between are no success."""
    submit(scene, 6)
    jobs = claim(scene)
    errors = ["one", "two"] * 3
    outcomes = [fault(scene, job, error).pause for job, error in zip(jobs, errors, strict=True)]
    assert outcomes[:4] == [None] * 4
    assert outcomes[4] is not None
    assert (outcomes[4].error, outcomes[4].jobs) == ("one", 3)
    assert outcomes[5] == outcomes[4]


def test_the_last_classes_of_errors_are_remembered(scene: Scene) -> None:
    submit(scene, MAX_CLASSES + 6)
    jobs = iter(claim(scene))
    classes = [f"class {number}" for number in range(MAX_CLASSES + 2)]
    for error in classes:
        assert fault(scene, next(jobs), error).pause is None
    for error in (classes[0], classes[0], classes[-1]):  # the first of `classes` was forgotten
        assert fault(scene, next(jobs), error).pause is None
    assert fault(scene, next(jobs), classes[-1]).pause is not None


def test_a_job_that_fails_alike_again_counts_once_whatever_failed_in_between(
    scene: Scene, manual_clock: ManualClock
) -> None:
    submit(scene, 2)
    for error in ("one", "two") * 4:
        for job in claim(scene):
            assert fault(scene, job, error).pause is None
        manual_clock.advance(3600)


def test_jobs_that_share_a_file_count_once(scene: Scene) -> None:
    topic = scene.topic(partitions=4)
    scene.catalog.commits.commit(
        scene.file({PartitionId(topic.topic_id, each): [run_of(5)] for each in range(4)})
    )
    for partition in range(4):
        scene.submitted(scene.extents(topic, partition))
    jobs = claim(scene)

    assert len(jobs) == 4
    assert [fault(scene, job).pause for job in jobs] == [None] * 4


def test_an_operator_can_end_a_pause(scene: Scene) -> None:
    submit(scene, 4)
    for job in claim(scene, 3):
        fault(scene, job)

    assert scene.catalog.circuit_breaker.reset()

    assert not scene.catalog.circuit_breaker.reset()
    assert len(claim(scene)) == 4


def test_repeated_deaths_suspect_all_files_of_a_job(scene: Scene, manual_clock: ManualClock) -> None:
    """Stops and faults of the environment are no deaths."""
    topic = scene.topic()
    for _ in range(3):
        scene.commit(topic, run_of(5))
    scene.submitted(scene.extents(topic))
    for died in [True, False, True, True, False, False, True]:
        (job,) = claim(scene)
        assert job.attempt_id is not None
        scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
        (job,) = claim(scene)
        assert fault(scene, job, died=died).released
        manual_clock.advance(3600)
    assert scene.catalog.quarantine.list() == []

    (job,) = claim(scene)
    outcome = fault(scene, job, died=True)

    assert not outcome.released
    assert scene.catalog.jobs.get(job.spec.job_id).state is JobState.FAILED
    candidates = scene.catalog.quarantine.list()
    assert [(each.max_files, each.quarantined_ms) for each in candidates] == [(2, None)] * 3
    assert MAX_DEATHS == 5


def test_only_the_file_that_is_proven_to_be_corrupt_is_suspected(scene: Scene) -> None:
    """It is quarantined if it fails a second time, without other files."""
    topic = scene.topic()
    for _ in range(64):
        scene.commit(topic, run_of(1))
    job = scene.claimed(scene.extents(topic))
    assert job.attempt_id is not None
    corrupt = job.spec.inputs[40].file_id

    scene.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a checksum", suspects=[corrupt])

    (candidate,) = scene.catalog.quarantine.list()
    assert (candidate.file_id, candidate.max_files, candidate.quarantined_ms) == (corrupt, 1, None)
    again = scene.claimed([each for each in scene.extents(topic) if each.file_id == corrupt])
    assert again.attempt_id is not None
    scene.catalog.jobs.fail(again.spec.job_id, again.attempt_id, "a checksum", suspects=[corrupt])
    (candidate,) = scene.catalog.quarantine.list(quarantined=True)
    assert candidate.file_id == corrupt


def test_one_failure_of_a_file_alone_is_no_reason_for_quarantine(scene: Scene) -> None:
    """The store may have returned a wrong response once. A second job fails for another reason."""
    topic = scene.topic()
    scene.commit(topic, run_of(1))
    file_id = scene.extents(topic)[0].file_id

    def fail() -> None:
        job = scene.claimed(scene.extents(topic))
        assert job.attempt_id is not None
        for _ in range(2):  # the first response was lost
            scene.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a checksum", suspects=[file_id])

    fail()
    (candidate,) = scene.catalog.quarantine.list()
    assert (candidate.max_files, candidate.failures, candidate.quarantined_ms) == (1, 1, None)

    again = scene.claimed(scene.extents(topic))
    assert again.attempt_id is not None
    scene.catalog.jobs.fail(again.spec.job_id, again.attempt_id, "the log has changed")
    assert scene.catalog.quarantine.list() == [candidate]

    fail()
    (candidate,) = scene.catalog.quarantine.list(quarantined=True)
    assert candidate.failures == 2


def test_a_fault_that_is_reported_twice_counts_once(scene: Scene) -> None:
    """The response to the first report was lost."""
    submit(scene, 1)
    (job,) = claim(scene)
    assert fault(scene, job).released
    waiting = scene.catalog.jobs.get(job.spec.job_id)

    assert not fault(scene, job).released

    assert scene.catalog.jobs.get(job.spec.job_id) == waiting


@pytest.mark.parametrize("stored", [4, None])
def test_a_job_of_another_version_is_left_for_its_drivers(
    scene: Scene, catalog_url: str, stored: int | None
) -> None:
    """A job of an earlier release has its version only in the specification."""
    submit(scene, 2)
    with psycopg.connect(catalog_url) as connection:
        connection.execute(
            "UPDATE jobs SET spec = jsonb_set(spec::jsonb, '{version}', '4')::json, spec_version = %s"
            " WHERE sequence = (SELECT min(sequence) FROM jobs)",
            [stored],
        )

    assert len(claim(scene)) == 1
    assert scene.catalog.jobs.counts()[JobState.SUBMITTED] == 1
