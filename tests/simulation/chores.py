"""Those who do not write: planners, workers, garbage collection, readers, an operator.

The decisions are the real ones: `plan_and_submit`, `run_compaction`, `collect_garbage`, the catalog's own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from catalog.invariants import bounds_never_go_back
from catalog.model import PartitionId
from core.errors import FatalError, SiltstoneError
from maintenance.garbage_collection import collect_garbage
from planner.planner import plan_and_submit
from spark_jobs.task.compaction_task import TaskHooks, run_compaction
from tests.simulation.world import GRACE_MS, LEASE_MS, SimulatedAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import Job, PartitionState
    from catalog.open import Catalog
    from object_store.interface import ObjectStore
    from tests.simulation.world import World

#: How long a reader may go on with what it has looked up, as a share of the grace.
READER_SHARE: Final = 0.9
#: How often what an operator does is done while a job is at work.
MEETS_A_JOB: Final = 0.6


class Chore:
    """A process that does one thing again and again until it is told to stop, dies, and is started anew.

    With `on_the_dot` it does so whenever so many seconds are full, as others of its kind: they meet.
    """

    def __init__(
        self,
        world: World,
        name: str,
        mean_seconds: float,
        deed: Callable[[Chore], None],
        *,
        on_the_dot: bool = False,
    ) -> None:
        self.world, self.name = world, name
        self._mean_seconds, self._deed, self._on_the_dot = mean_seconds, deed, on_the_dot
        self.stopping = False
        self.idle_since = -1
        self._begin()

    def _begin(self) -> None:
        self.machine, network = self.world.machine(self.name)
        self.catalog: Catalog = network.catalog(self.world.catalog)
        self.store: ObjectStore = self.world.store(network)

    async def run(self) -> None:
        """Go on for ever; whoever has died is replaced."""
        while not self.stopping:
            await asyncio.sleep(self._pause())
            await self.once()

    def _pause(self) -> float:
        draw = self.world.draw
        if not self._on_the_dot:
            return draw.expovariate(1 / self._mean_seconds)
        return self._mean_seconds - self.world.strands.now % self._mean_seconds + draw.expovariate(10)

    async def once(self) -> None:
        """Do it now; errors that a process would log and survive are survived."""
        if self.machine.dead:
            self._begin()
        try:
            await self.world.strands.run(lambda: self._deed(self), self.machine)
        except asyncio.CancelledError:
            if not self.machine.dead:
                raise
        except FatalError as error:  # the catalog says that this is a defect
            self.world.violations.append(f"{self.name} is refused nothing for good: {error}")
        except SiltstoneError:
            pass
        except Exception as error:  # noqa: BLE001  # a process would end with it
            self.world.violations.append(f"{self.name} goes on: {type(error).__name__}: {error}")


def plan(chore: Chore) -> None:
    """Give back what silent workers hold; plan, unless nothing has changed since nothing was to plan."""
    world = chore.world
    if chore.catalog.jobs.release_expired(LEASE_MS):
        world.weather.changes += 1
    changes = world.weather.changes
    if chore.idle_since != changes:
        submission = plan_and_submit(chore.catalog, world.clock, world.ids, world.rules.planner)
        chore.idle_since = -1 if submission.jobs or submission.lost else changes


def work(chore: Chore) -> None:
    """Claim two jobs and carry them out, as tasks of Spark do; PostgreSQL names them in any order.

    Not when nothing has changed since there was none: that would only take time.
    """
    changes = chore.world.weather.changes
    if chore.idle_since == changes:
        return
    claimed = chore.catalog.jobs.claim(chore.name, 2)
    if not claimed:
        chore.idle_since = changes
    for job in sorted(claimed, key=lambda each: each.spec.job_id):
        _carry_out(chore, job)


def _carry_out(chore: Chore, job: Job) -> None:
    attempt_id = job.attempt_id
    assert attempt_id is not None
    hooks = TaskHooks(
        progress=lambda _done, _total: chore.catalog.jobs.heartbeat(job.spec.job_id, attempt_id)
    )
    world = chore.world
    world.jobs_at_work += 1
    try:
        result = run_compaction(
            job.spec, chore.store, attempt_id=attempt_id, clock=world.clock, ids=world.ids, hooks=hooks
        )
        chore.catalog.jobs.complete(result)
    except SiltstoneError:
        chore.catalog.jobs.release(job.spec.job_id, attempt_id)
        raise
    finally:
        world.jobs_at_work -= 1


def clean_up(chore: Chore) -> None:
    """Retention and garbage collection."""
    collect_garbage(chore.catalog, chore.store, chore.world.clock, chore.world.rules.garbage)


def read(chore: Chore) -> None:
    """Look up extents, and come for their objects as late as a reader may."""
    world = chore.world
    if not world.topics:
        return
    topic = world.draw.choice(world.topics)
    partition = world.draw.randrange(topic.partition_count)
    states = world.catalog.topics.states([PartitionId(topic.topic_id, partition)])
    if not states:
        return
    extents = world.catalog.extents.from_offset(topic.topic_id, partition, states[0].log_start_offset)
    world.strands.pause(world.draw.random() * READER_SHARE * GRACE_MS / 1000)
    gone = {extent.object_name for extent in extents} - world.bucket.objects.keys()
    world.violations += [f"grace outlives readers: {name} was deleted under one" for name in sorted(gone)]


class BoundsWatch:
    """Looks at all partitions now and then: none of their bounds may ever go back."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: dict[PartitionId, PartitionState] = {}

    def look(self) -> None:
        """Hold what there is against the last look."""
        for size in self._world.catalog.planning.partition_sizes():
            before = self._last.get(size.partition_id)
            if before is not None:
                self._world.violations += [str(each) for each in bounds_never_go_back(before, size.state)]
            self._last[size.partition_id] = size.state


async def operate(world: World, watch: BoundsWatch) -> None:
    """DeleteRecords, changed settings, a deleted topic: each at some time, in some schedules."""
    draw = world.draw
    deeds = [_delete_records, _change_settings, _delete_topic]
    for deed in draw.sample(deeds, draw.randint(0, 3)):
        await asyncio.sleep(draw.expovariate(1 / 15))
        if draw.random() < MEETS_A_JOB:
            await _until_a_job_is_at_work(world)
        watch.look()
        deed(world)


async def _until_a_job_is_at_work(world: World) -> None:
    """Or for half a minute: that is when it hurts most."""
    for _ in range(60):
        if world.jobs_at_work:
            await asyncio.sleep(world.draw.random())
            return
        await asyncio.sleep(0.5)


def _delete_records(world: World) -> None:
    (topic,) = world.draw.sample(world.topics, 1)
    partition = world.draw.randrange(topic.partition_count)
    (state,) = world.catalog.topics.states([PartitionId(topic.topic_id, partition)])
    offset = world.draw.randint(state.log_start_offset, state.high_watermark)
    world.catalog.retention.advance_log_start(topic.topic_id, partition, offset)
    world.weather.trace.append(f"operator DeleteRecords {topic.name}-{partition} {offset}")


def _change_settings(world: World) -> None:
    (topic,) = world.draw.sample(world.topics, 1)
    ratio = world.draw.choice(("0", "0.9"))
    world.catalog.topics.alter_config(topic.name, {"min.cleanable.dirty.ratio": ratio})
    world.weather.trace.append(f"operator {topic.name} min.cleanable.dirty.ratio={ratio}")


def _delete_topic(world: World) -> None:
    if len(world.topics) > 1:
        topic = world.draw.choice(world.topics)
        world.topics.remove(topic)
        world.catalog.topics.delete(topic.name)
        world.weather.trace.append(f"operator deletes {topic.name}")


async def replace_the_dead(world: World) -> None:
    """Somebody sees that an agent is gone, and starts another one."""
    while True:
        await asyncio.sleep(1)
        for place, agent in enumerate(world.agents):
            if agent.machine.dead:
                await agent.die()
                world.agents[place] = SimulatedAgent(world, f"{agent.machine.name}'")
                await world.agents[place].start()
