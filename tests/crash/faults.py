"""The faults of a campaign, in lanes that run side by side: agents, catalog, store, and compaction.

A lane draws its faults from the campaign's seed, so that a seed replays the order of each lane. How the lanes
interleave is up to the machine. A fault ends before the next one of its lane begins.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psutil

from tests.agent.kafka.work import Work
from tests.crash.fail_points import AGENT_POINTS, WORKER_POINTS, Crash, arm
from tests.crash.processes import Child, Maintainer, Watcher, start_until_ready
from tests.crash.spark_watcher import WATCHER_CRASH, WORKER_CRASH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.crash.disks import MemoryDisk
    from tests.crash.ledger import Ledger
    from tests.fixtures.pgbouncer import PgBouncer
    from tests.fixtures.postgres_pair import PostgresPair
    from tests.object_store.s3.fault_proxy import RandomFaultProxy

_ACKNOWLEDGEMENT_SECONDS: Final = 6.0
_BEGIN_SECONDS: Final = 240.0
_READ_ONLY_SECONDS: Final = 5.0
_RECOVERY_SECONDS: Final = 15.0
"""Time for agents to commit lost files again, before one of them may be killed."""

Fault = tuple[str, "Callable[[random.Random], None]"]


@dataclass
class EventLog:
    """Every event of a campaign, one JSON object a line, and their number by kind."""

    file: Path
    counts: Counter[str] = field(default_factory=Counter)
    last: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _start: float = field(default_factory=time.monotonic)

    def write(self, event: str, **details: object) -> None:
        """Write an event with its time since the start."""
        with self._lock:
            self.counts[event] += 1
        self.note(event, **details)

    def note(self, event: str, **details: object) -> None:
        """Write an event that the summary does not count."""
        entry = {"seconds": round(time.monotonic() - self._start, 3), "event": event, **details}
        self.last = event
        with self._lock, self.file.open("a", encoding="utf-8") as output:
            output.write(json.dumps(entry, default=str) + "\n")

    @contextlib.contextmanager
    def around(self, event: str, **details: object) -> Iterator[None]:
        """Write when a fault begins and when it ends."""
        self.write(event, **details)
        try:
            yield
        finally:
            self.note(f"end of {event}")


class Lane:
    """Draws one fault after the other until it is stopped; each ends by itself."""

    def __init__(
        self, name: str, seed: int, faults: Sequence[Fault], log: EventLog, *, pause: tuple[float, float]
    ) -> None:
        self.name = name
        self._random = random.Random(f"{seed}/{name}")
        self._faults = faults
        self._log = log
        self._pause = pause
        self._stopped = threading.Event()
        self._current = "none"
        self.begun = 0
        self._work: Work | None = None

    def start(self) -> None:
        """Continue with the next fault of the seed."""
        self._stopped.clear()
        self._work = Work(self._run)

    def wait_until_begun(self, count: int) -> None:
        """Wait until this number of faults has begun, on a busy machine too."""
        end = time.monotonic() + _BEGIN_SECONDS
        while self.begun < count:
            assert self._work is not None
            self._work.check()
            assert time.monotonic() < end, f"the lane {self.name!r} did not go on after {self._current!r}"
            time.sleep(0.05)

    def end(self) -> None:
        """Begin no other fault."""
        self._stopped.set()

    def stop(self) -> None:
        """Wait for the end of the current fault."""
        self.end()
        if self._work is not None:
            self._work.name = f"the lane {self.name!r} with the fault {self._current!r}"
            self._work.finish()
            self._work = None

    def _run(self) -> None:
        while not self._stopped.wait(self._random.uniform(*self._pause)):
            name, fault = self._random.choice(self._faults)
            self._current = name
            self.begun += 1
            with self._log.around(name, lane=self.name):
                fault(self._random)


@dataclass
class AgentFaults:
    """Faults of agents' processes, clocks and disks."""

    agents: Sequence[Child]
    max_freeze_seconds: float
    are_alive: threading.Lock  # held by faults that need all agents alive, or disturb one
    disks: Sequence[MemoryDisk] = ()  # of the agents, in their order; empty if no disk can be mounted

    def all(self) -> list[Fault]:
        """Return the faults by name."""
        faults: list[Fault] = [
            ("agent: kill -9", self._alone(self.kill)),
            ("agent: crash at a point", self._alone(self.crash)),
            ("agent: crash at a point", self._alone(self.crash)),
            ("agent: freeze", self._alone(self.freeze)),
            ("agent: full disk", self._alone(self.limit_files)),
            ("agent: clock step", self.step_clock),
        ]
        if self.disks:
            faults.append(("agent: disk without space", self._alone(self.fill_disk)))
            faults.append(("agent: read-only disk", self._alone(self.start_read_only)))
        return faults

    def _alone(self, fault: Callable[[random.Random], None]) -> Callable[[random.Random], None]:
        def locked(chance: random.Random) -> None:
            with self.are_alive:
                fault(chance)

        return locked

    def kill(self, chance: random.Random) -> None:
        """Kill an agent, and start it again after a moment."""
        agent = chance.choice(self.agents)
        agent.kill()
        time.sleep(chance.uniform(0, 1))
        start_until_ready(agent)

    def crash(self, chance: random.Random) -> None:
        """Restart an agent that kills itself at a call of the store or the catalog."""
        agent = chance.choice(self.agents)
        point = Crash(chance.choice(AGENT_POINTS), chance.randint(1, 3))
        agent.kill()
        agent.start(point)
        end = time.monotonic() + 3
        while agent.is_alive and time.monotonic() < end:
            time.sleep(0.02)
        agent.kill()
        start_until_ready(agent)

    def freeze(self, chance: random.Random) -> None:
        """Stop an agent with its connections open; it may be fenced when it continues."""
        agent = chance.choice(self.agents)
        agent.freeze()
        time.sleep(chance.uniform(0.2, self.max_freeze_seconds))
        agent.thaw()

    def fill_disk(self, chance: random.Random) -> None:
        """Leave no space on an agent's disk; a failed directory is back after a restart."""
        number = chance.randrange(len(self.agents))
        self.disks[number].fill()
        time.sleep(chance.uniform(0.2, 2))
        self.disks[number].drain()
        time.sleep(chance.uniform(0.2, 1))
        self.agents[number].kill()
        start_until_ready(self.agents[number])

    def start_read_only(self, chance: random.Random) -> None:
        """Restart an agent whose disk is read-only: it has no other, so it does not start."""
        number = chance.randrange(len(self.agents))
        agent, disk = self.agents[number], self.disks[number]
        agent.kill()
        disk.set_read_only(on=True)
        agent.start()
        end = time.monotonic() + _READ_ONLY_SECONDS
        while agent.is_alive and time.monotonic() < end:
            time.sleep(0.02)
        agent.kill()
        disk.set_read_only(on=False)
        start_until_ready(agent)

    def limit_files(self, chance: random.Random) -> None:
        """Let an agent's writes to all files fail; a failed directory is back after a restart."""
        agent = chance.choice(self.agents)
        agent.fill_disks(full=True)
        time.sleep(chance.uniform(0.2, 2))
        agent.fill_disks(full=False)
        time.sleep(chance.uniform(0.2, 1))
        agent.kill()
        start_until_ready(agent)

    def step_clock(self, chance: random.Random) -> None:
        """Step an agent's clock by up to an hour, and back later."""
        agent = chance.choice(self.agents)
        seconds = chance.choice([-1, 1]) * chance.choice([0.5, 60.0, 3_600.0])
        agent.step_clock(seconds)
        time.sleep(chance.uniform(1, 3))
        agent.step_clock(-seconds)


@dataclass
class CatalogFaults:
    """Faults of PostgreSQL: a synchronous standby takes over without losing commits."""

    pair: PostgresPair
    ledger: Ledger
    max_freeze_seconds: float
    loses_commits: bool
    agents_are_alive: threading.Lock
    pooler: PgBouncer | None = None

    def __post_init__(self) -> None:
        self._primary, self._standby = self.pair.nodes

    def all(self) -> list[Fault]:
        """Return the faults by name."""
        faults: list[Fault] = [
            ("catalog: restart", self.restart),
            ("catalog: crash", self.crash),
            ("catalog: freeze", self.freeze),
            ("catalog: failover", self.fail_over),
        ]
        if self.loses_commits:
            faults.append(("catalog: failover that loses commits", self.lose_commits))
        if self.pooler is not None:
            faults.append(("pooler: restart", self.restart_pooler))
            faults.append(("pooler: freeze", self.freeze_pooler))
        return faults

    def restart(self, chance: random.Random) -> None:
        """Restart the primary."""
        self._primary.stop("fast")
        time.sleep(chance.uniform(0, 2))
        self._primary.start()

    def crash(self, chance: random.Random) -> None:
        """Kill all processes of the primary, and start it again."""
        self._primary.kill()
        time.sleep(chance.uniform(0, 2))
        self._primary.start()

    def freeze(self, chance: random.Random) -> None:
        """Let the primary hang with its connections open."""
        self._primary.freeze()
        time.sleep(chance.uniform(0.2, self.max_freeze_seconds))
        self._primary.thaw()

    def restart_pooler(self, chance: random.Random) -> None:
        """Kill the pooler that some agents use, and start it again."""
        assert self.pooler is not None
        self.pooler.stop()
        time.sleep(chance.uniform(0, 2))
        self.pooler.start()

    def freeze_pooler(self, chance: random.Random) -> None:
        """Let the pooler hang with its connections open."""
        assert self.pooler is not None
        self.pooler.freeze()
        time.sleep(chance.uniform(0.2, self.max_freeze_seconds))
        self.pooler.thaw()

    def fail_over(self, _chance: random.Random) -> None:
        """Promote the standby after the death of the primary, and build a new standby."""
        self._primary.kill()
        self._promote()

    def lose_commits(self, chance: random.Random) -> None:
        """Promote a standby that misses the newest commits.

        No agent is dead or frozen meanwhile: only an agent knows which of its files were acknowledged, and an
        acknowledgement of the old era must reach its client before the new one begins.
        """
        with self.agents_are_alive:
            self._set_synchronous(on=False)
            self._standby.set("primary_conninfo", "")
            time.sleep(chance.uniform(0.2, 2))
            self._primary.kill()
            time.sleep(_ACKNOWLEDGEMENT_SECONDS)
            self.ledger.begin_era()
            self._promote()
            time.sleep(_RECOVERY_SECONDS)

    def _promote(self) -> None:
        self._standby.promote()
        self._standby.set("synchronous_standby_names", "")
        if self.pooler is not None:
            self.pooler.connect_to(self._standby.url)
        self.pair.rebuild(self._primary)
        self._primary, self._standby = self._standby, self._primary
        self._set_synchronous(on=True)

    def _set_synchronous(self, *, on: bool) -> None:
        self._primary.set("synchronous_standby_names", f'"{self._standby.name}"' if on else "")
        if on:
            state = "SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = %s"
            self._primary.wait_until(lambda: self._primary.execute(state, self._standby.name) == [(True,)])


@dataclass
class StoreFaults:
    """Faults of the object store, by the proxy in front of it."""

    proxy: RandomFaultProxy
    max_freeze_seconds: float

    def all(self) -> list[Fault]:
        """Return the faults by name."""
        return [
            ("store: errors", self.fail_some),
            ("store: errors", self.fail_some),
            ("store: outage", self.fail_all),
            ("store: freeze", self.freeze),
        ]

    def fail_some(self, chance: random.Random) -> None:
        """Let a share of the requests fail, be slow, or lose their response."""
        self._fail(chance, 0.1)

    def fail_all(self, chance: random.Random) -> None:
        """Let every request fail."""
        self._fail(chance, 1.0)

    def _fail(self, chance: random.Random, rate: float) -> None:
        self.proxy.begin(chance.randrange(2**32), rate)
        time.sleep(chance.uniform(0.5, 3))
        self.proxy.begin(0, 0.0)

    def freeze(self, chance: random.Random) -> None:
        """Let every request hang."""
        self.proxy.freeze()
        time.sleep(chance.uniform(0.2, self.max_freeze_seconds))
        self.proxy.thaw()


@dataclass
class WorkerFaults:
    """Faults of a worker that compacts in its own process, without Spark."""

    worker: Child
    max_freeze_seconds: float

    def all(self) -> list[Fault]:
        """Return the faults by name."""
        return [
            ("worker: kill -9", self.kill),
            ("worker: crash at a point", self.crash),
            ("worker: crash at a point", self.crash),
            ("worker: freeze", self.freeze),
        ]

    def kill(self, chance: random.Random) -> None:
        """Kill the worker at any moment."""
        time.sleep(chance.uniform(0, 0.5))
        self.worker.kill()
        start_until_ready(self.worker)

    def crash(self, chance: random.Random) -> None:
        """Restart the worker so that it kills itself at a call of the store or the catalog."""
        self.worker.kill()
        self.worker.start(Crash(chance.choice(WORKER_POINTS), chance.randint(1, 2)))
        end = time.monotonic() + 3
        while self.worker.is_alive and time.monotonic() < end:
            time.sleep(0.02)
        self.worker.kill()
        start_until_ready(self.worker)

    def freeze(self, chance: random.Random) -> None:
        """Stop the worker while it holds jobs."""
        self.worker.freeze()
        time.sleep(chance.uniform(0.2, self.max_freeze_seconds))
        self.worker.thaw()


@dataclass
class MaintenanceFaults:
    """Faults of `siltstone maintain`, which shares the leases of maintenance with the agents."""

    maintainer: Maintainer
    max_freeze_seconds: float

    def all(self) -> list[Fault]:
        """Return the faults by name."""
        return [("maintain: kill -9", self.kill), ("maintain: freeze", self.freeze)]

    def kill(self, chance: random.Random) -> None:
        """Kill the process, and start it again after a moment."""
        time.sleep(chance.uniform(0, 5))
        self.maintainer.kill()
        start_until_ready(self.maintainer)

    def freeze(self, chance: random.Random) -> None:
        """Stop the process while it may hold leases."""
        self.maintainer.freeze()
        time.sleep(chance.uniform(0.2, self.max_freeze_seconds))
        self.maintainer.thaw()


TASK_POINTS = tuple(point for point in WORKER_POINTS if "upload" in point or "stream" in point)
DRIVER_POINTS = tuple(point for point in WORKER_POINTS if point not in TASK_POINTS)


@dataclass
class SparkFaults:
    """Faults of `siltstone compact --watch`: its process, Spark's Java, and Spark's Python workers."""

    watchers: Sequence[Watcher]
    crashes: Path
    max_freeze_seconds: float

    def all(self) -> list[Fault]:
        """Return the faults by name."""
        return [
            ("spark: kill the driver's Python", self.kill_driver),
            ("spark: kill the driver's Java", self.kill_java),
            ("spark: kill a Python worker", self.kill_worker),
            ("spark: kill a Python worker", self.kill_worker),
            ("spark: freeze the driver", self.freeze),
            ("spark: driver crashes at a point", self.crash_driver),
            ("spark: worker crashes at a point", self.crash_worker),
        ]

    def kill_driver(self, chance: random.Random) -> None:
        """Kill `siltstone compact --watch`."""
        watcher = chance.choice(self.watchers)
        watcher.kill()
        start_until_ready(watcher)

    def kill_java(self, chance: random.Random) -> None:
        """Kill Spark's driver; the watcher starts another one."""
        self._kill_one(chance, Watcher.java)

    def kill_worker(self, chance: random.Random) -> None:
        """Kill a Python worker of Spark, or the daemon that forks them."""
        self._kill_one(chance, Watcher.workers)

    def _kill_one(self, chance: random.Random, of: Callable[[Watcher], Sequence[psutil.Process]]) -> None:
        found = [each for watcher in self.watchers for each in of(watcher)]
        if found:
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(found).kill()
        self.restart_dead()

    def freeze(self, chance: random.Random) -> None:
        """Stop `siltstone compact --watch` while its tasks run."""
        watcher = chance.choice(self.watchers)
        watcher.freeze()
        time.sleep(chance.uniform(0.2, self.max_freeze_seconds))
        watcher.thaw()

    def crash_driver(self, chance: random.Random) -> None:
        """Let the first watcher that reaches a point kill itself."""
        self.crash(WATCHER_CRASH, Crash(chance.choice(DRIVER_POINTS), chance.randint(1, 2)), 20)
        self.restart_dead()

    def crash_worker(self, chance: random.Random) -> None:
        """Let the first of Spark's Python workers that reaches a point kill itself."""
        self.crash(WORKER_CRASH, Crash(chance.choice(TASK_POINTS), chance.randint(1, 2)), 20)
        self.restart_dead()

    def crash(self, target: str, crash: Crash, seconds: float) -> bool:
        """Return False if no process reaches the point in time."""
        armed = arm(self.crashes / target, crash)
        end = time.monotonic() + seconds
        while armed.exists() and time.monotonic() < end:
            time.sleep(0.05)
        crashed = not armed.exists()
        armed.unlink(missing_ok=True)
        return crashed

    def restart_dead(self) -> None:
        """Start the watchers that are not running."""
        for watcher in self.watchers:
            if not watcher.is_alive:
                start_until_ready(watcher)
