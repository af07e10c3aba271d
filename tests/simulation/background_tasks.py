"""Processes that do not write: planners, workers, garbage collection, readers, an operator.

Their decisions are those of the product: `plan_and_submit`, `run_compaction`, `collect_garbage`, the catalog.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from typing_extensions import override

from catalog.invariants import bounds_never_go_back
from catalog.model import PartitionId
from core.errors import FatalError, SiltstoneError
from maintenance.garbage_collection import collect_garbage
from planner.planner import plan_and_submit
from spark_jobs.task.compaction_task import TaskHooks, run_compaction
from tests.catalog.scene import advance_log_start
from tests.simulation.environment import CONFIRM_MS, GRACE_MS, LEASE_MS, SimulatedAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import Job, PartitionState
    from catalog.open import Catalog
    from object_store.interface import ObjectStore
    from tests.simulation.environment import Environment

P = ParamSpec("P")
T = TypeVar("T")

#: Time for which a reader may use extents that it has looked up, as a fraction of the grace period.
READER_GRACE_SHARE: Final = 0.9
#: Interval of `watch_silence`. Without faults, a gap of 10 s would count as an outage of the catalog.
WATCH_SECONDS: Final = 6.0
#: Probability that an action of the operator waits for a running job.
DURING_JOB_PROBABILITY: Final = 0.6


class BackgroundTask:
    """A process that repeats one action until it is stopped; a crashed process is restarted.

    Actions happen at random times. With `aligned` they happen at multiples of the interval, so that the
    actions of several such processes coincide.
    """

    def __init__(
        self,
        env: Environment,
        name: str,
        mean_seconds: float,
        action: Callable[[BackgroundTask], None],
        *,
        aligned: bool = False,
    ) -> None:
        self.env, self.name = env, name
        self._mean_seconds, self._action, self._aligned = mean_seconds, action, aligned
        self.stopping = False
        self.idle_at_change = -1
        self._begin()

    def _begin(self) -> None:
        self.process, network = self.env.process(self.name)
        self.catalog: Catalog = network.catalog(self.env.catalog)
        self.store: ObjectStore = self.env.store(network)

    async def run(self) -> None:
        """Repeat the action until the task is stopped."""
        while not self.stopping:
            await asyncio.sleep(self._pause())
            await self.once()

    def _pause(self) -> float:
        rng = self.env.rng
        if not self._aligned:
            return rng.expovariate(1 / self._mean_seconds)
        return self._mean_seconds - self.env.fibers.now % self._mean_seconds + rng.expovariate(10)

    async def once(self) -> None:
        """Run the action once; ignore errors that a real process logs and survives."""
        if self.process.dead:
            self._begin()
        try:
            await self.env.fibers.run(lambda: self._action(self), self.process)
        except asyncio.CancelledError:
            if not self.process.dead:
                raise
        except FatalError as error:  # the catalog has found a defect
            self.env.violations.append(f"{self.name} must get no fatal error: {error}")
        except SiltstoneError:
            pass
        except Exception as error:  # noqa: BLE001  # a real process would end
            self.env.violations.append(f"{self.name} must not fail: {type(error).__name__}: {error}")


def plan(task: BackgroundTask) -> None:
    """Release expired jobs, and plan unless nothing has changed since the last plan without jobs."""
    env = task.env
    if task.catalog.jobs.release_expired(LEASE_MS, CONFIRM_MS):
        env.faults.changes += 1
    changes = env.faults.changes
    if task.idle_at_change != changes:
        submission = plan_and_submit(task.catalog, env.clock, env.ids, env.rules.planner)
        task.idle_at_change = -1 if submission.jobs or submission.lost else changes


def work(task: BackgroundTask) -> None:
    """Claim two jobs and run them, as Spark tasks do, in the order of their ids.

    Does nothing if nothing has changed since no job was found, which only saves time.
    """
    changes = task.env.faults.changes
    if task.idle_at_change == changes:
        return
    claimed = task.catalog.jobs.claim(task.name, 2)
    if not claimed:
        task.idle_at_change = changes
    for job in sorted(claimed, key=lambda each: each.spec.job_id):
        _run_job(task, job)


class _Inline(Executor):
    """Makes each call at once, because a fiber cannot be continued in another thread."""

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the caller of `result` gets it
            future.set_exception(error)
        return future


def _run_job(task: BackgroundTask, job: Job) -> None:
    attempt_id = job.attempt_id
    assert attempt_id is not None
    hooks = TaskHooks(progress=lambda _done, _total: task.catalog.jobs.heartbeat(job.spec.job_id, attempt_id))
    env = task.env
    env.running_jobs += 1
    try:
        result = run_compaction(
            job.spec,
            task.store,
            attempt_id=attempt_id,
            clock=env.clock,
            ids=env.ids,
            hooks=hooks,
            reader=_Inline(),
        )
        task.catalog.jobs.complete(result)
    except SiltstoneError:
        task.catalog.jobs.release(job.spec.job_id, attempt_id)
        raise
    finally:
        env.running_jobs -= 1


def collect(task: BackgroundTask) -> None:
    """Run retention and garbage collection."""
    collect_garbage(task.catalog, task.store, task.env.clock, task.env.rules.garbage)


def read(task: BackgroundTask) -> None:
    """Look up extents, and read their objects as late as a reader may."""
    env = task.env
    if not env.topics:
        return
    topic = env.rng.choice(env.topics)
    partition = env.rng.randrange(topic.partition_count)
    states = env.catalog.topics.states([PartitionId(topic.topic_id, partition)])
    if not states:
        return
    extents = env.catalog.extents.from_offset(topic.topic_id, partition, states[0].log_start_offset)
    env.fibers.pause(env.rng.random() * READER_GRACE_SHARE * GRACE_MS / 1000)
    gone = {extent.object_name for extent in extents} - env.bucket.objects.keys()
    env.violations += [f"grace outlives readers: {name} was deleted under one" for name in sorted(gone)]


class BoundsChecker:
    """Checks that no offset bound of a partition ever decreases."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._last: dict[PartitionId, PartitionState] = {}

    def check(self) -> None:
        """Compare all partitions with the last check."""
        for size in self._env.catalog.planning.partition_sizes():
            before = self._last.get(size.partition_id)
            if before is not None:
                self._env.violations += [str(each) for each in bounds_never_go_back(before, size.state)]
            self._last[size.partition_id] = size.state


async def run_operator(env: Environment, bounds: BoundsChecker) -> None:
    """Delete records, change settings, or delete a topic: some of these, at random times."""
    rng = env.rng
    actions = [_delete_records, _change_settings, _delete_topic]
    for action in rng.sample(actions, rng.randint(0, 3)):
        await asyncio.sleep(rng.expovariate(1 / 15))
        if rng.random() < DURING_JOB_PROBABILITY:
            await _wait_for_running_job(env)
        bounds.check()
        action(env)


async def _wait_for_running_job(env: Environment) -> None:
    """Wait until a job is running, for half a minute at most. Changes during a job are the hardest cases."""
    for _ in range(60):
        if env.running_jobs:
            await asyncio.sleep(env.rng.random())
            return
        await asyncio.sleep(0.5)


def _delete_records(env: Environment) -> None:
    (topic,) = env.rng.sample(env.topics, 1)
    partition = env.rng.randrange(topic.partition_count)
    (state,) = env.catalog.topics.states([PartitionId(topic.topic_id, partition)])
    offset = env.rng.randint(state.log_start_offset, state.high_watermark)
    advance_log_start(env.catalog.retention, topic.topic_id, partition, offset)
    env.faults.trace.append(f"operator DeleteRecords {topic.name}-{partition} {offset}")


def _change_settings(env: Environment) -> None:
    (topic,) = env.rng.sample(env.topics, 1)
    ratio = env.rng.choice(("0", "0.9"))
    env.catalog.topics.alter_config(topic.name, {"min.cleanable.dirty.ratio": ratio})
    env.faults.trace.append(f"operator {topic.name} min.cleanable.dirty.ratio={ratio}")


def _delete_topic(env: Environment) -> None:
    if len(env.topics) > 1:
        topic = env.rng.choice(env.topics)
        env.topics.remove(topic)
        env.catalog.topics.delete(topic.name)
        env.faults.trace.append(f"operator deletes {topic.name}")


async def watch_silence(env: Environment) -> None:
    """Mark and fence silent sessions and attempts without faults, until cancelled.

    It is the maintenance of an idle agent. It also shows that the catalog is reachable: otherwise the stalls
    of all other processes would look like an outage, in which no session is fenced.
    """
    garbage = env.rules.garbage
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        env.catalog.sessions.fence_silent(garbage.session_silence_ms, garbage.fence_confirm_ms)
        if env.catalog.jobs.release_expired(LEASE_MS, CONFIRM_MS):
            env.faults.changes += 1


async def restart_crashed_agents(env: Environment) -> None:
    """Replace each crashed agent within a second."""
    while True:
        await asyncio.sleep(1)
        for index, agent in enumerate(env.agents):
            if agent.process.dead:
                await agent.crash()
                env.agents[index] = SimulatedAgent(env, f"{agent.process.name}'")
                await env.agents[index].start()
