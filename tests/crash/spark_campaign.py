"""Rounds in which who compacts on Spark is killed: a watcher, Spark's Java, or one of its Python workers."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from typing_extensions import override

from catalog.model import JobState
from object_store.names import CompactedName, parse
from tests.crash.campaign import PARTITIONS, PATIENCE_SECONDS, TOPICS, Campaign
from tests.crash.children import GRACE_MS
from tests.crash.fail_points import WORKER_POINTS, Strike, arm
from tests.crash.spark_watcher import WATCHER_STRIKES, WORKER_STRIKES
from tests.end_to_end.processes import as_url, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from catalog.model import Job
    from tests.crash import children
    from tests.crash.campaign import Child, Process

ROOT: Final = Path(__file__).parents[2]
TASK_POINTS: Final = tuple(point for point in WORKER_POINTS if "upload" in point or "stream" in point)
PLANNER_POINTS: Final = tuple(point for point in WORKER_POINTS if point not in TASK_POINTS)
STRIKE_SECONDS: Final = 900.0
"""For how long a strike waits for somebody to come to its point. Spark takes some seconds to start, and on a
busy machine minutes."""
SELDOM_SECONDS: Final = 30.0
"""The same for points that may not be passed at all."""


class Watcher:
    """A `siltstone compact --watch` process, its Java and its Python workers."""

    def __init__(self, place: children.Place, directory: Path, strikes: Path) -> None:
        self._place = place
        self._directory = directory
        self._strikes = strikes
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "watcher.log"
        self._begun = 0

    def start(self) -> None:
        """Start it; Spark follows when there is something to run."""
        self._directory.mkdir(parents=True, exist_ok=True)
        store = self._place.store
        assert store.endpoint is not None
        assert store.region is not None
        self._begun = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.crash.spark_watcher", str(self._strikes)),
                    *("compact", "--watch", "--interval", "0.1", "--force"),
                    *("--data-dir", str(self._directory), "--object-store", store.url),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment()
                | {
                    "PYTHONPATH": str(ROOT),
                    "TMPDIR": str(self._directory),
                    "SILTSTONE_CATALOG": as_url(self._place.catalog_url),
                    "SILTSTONE_S3_ENDPOINT": store.endpoint,
                    "SILTSTONE_S3_REGION": store.region,
                    "SILTSTONE_SPARK_MASTER": "local[2]",
                    "SILTSTONE_GRACE_SECONDS": str(GRACE_MS // 1000),
                    "SILTSTONE_LOG_LEVEL": "info",
                },
            )

    def said(self) -> str:
        """Since its last start."""
        return self._log.read_bytes()[self._begun :].decode()

    def wait_ready(self) -> bool:
        """False when it ended first."""
        end = time.monotonic() + PATIENCE_SECONDS
        while "Polling every" not in self.said():
            if not self.is_alive:
                return False
            assert time.monotonic() < end, "a watcher neither watches nor dies"
            time.sleep(0.02)
        return True

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def descendants(self) -> list[psutil.Process]:
        """Its Java, the daemon of this one, and the workers that the daemon has forked."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def java(self) -> list[psutil.Process]:
        """Spark's driver, if it has been started."""
        return [each for each in self.descendants if _name(each) == "java"]

    def workers(self) -> list[psutil.Process]:
        """Spark's Python workers that there are at the moment, and what forks them."""
        return [each for each in self.descendants if _name(each).startswith("python")]

    def kill(self) -> None:
        """SIGKILL; its Java finds out by itself, and goes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Let it come to its end in good order, unless a strike was its end."""
        assert self._process is not None
        if self._process.poll() == -signal.SIGKILL:
            return
        assert self.wait_ready(), self.said()  # before that, a signal is its end
        self._process.terminate()
        assert self._process.wait(PATIENCE_SECONDS) == 0, self.said()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


@dataclass
class SparkCampaign(Campaign):
    """Two agents and two watchers, who share the jobs; those who shall die are told in `strikes`."""

    watchers: list[Watcher] = field(init=False, default_factory=list)

    @property
    def strikes(self) -> Path:
        return self.disks / "strikes"

    @override
    def make_compactors(self) -> Sequence[Process]:
        self.strikes.mkdir(parents=True)
        self.watchers = [
            Watcher(self.place, self.disks / f"watcher-{number}", self.strikes) for number in range(2)
        ]
        return self.watchers

    @override
    def round(self) -> None:
        """Kill an agent, or somebody who compacts; then let all records arrive."""
        deeds = (super().round, self._some_watcher, self._some_worker, self.kill_java, self.kill_worker)
        self.draw.choice(deeds)()
        self.settle()

    @override
    def choose(self) -> tuple[Child, str, Strike | None]:
        return self.choose_agent()

    def _some_watcher(self) -> None:
        strike = Strike(self.draw.choice(PLANNER_POINTS), self.draw.randint(1, 2))
        for dead in self.strike_watcher(strike, SELDOM_SECONDS):
            dead.start()

    def _some_worker(self) -> None:
        strike = Strike(self.draw.choice(TASK_POINTS), self.draw.randint(1, 2))
        self.strike_worker(strike, SELDOM_SECONDS)

    def strike_watcher(self, strike: Strike, seconds: float = STRIKE_SECONDS) -> list[Watcher]:
        """Have the watcher that comes to a point first die there; the other goes on. Returns who is dead."""
        struck = self._strike(WATCHER_STRIKES, strike, seconds)
        dead: list[Watcher] = []
        while struck and not dead:
            self.send_for(0.02)
            dead = [each for each in self.watchers if not each.is_alive]
        return dead

    def strike_worker(self, strike: Strike, seconds: float = STRIKE_SECONDS) -> bool:
        """The same for Spark's Python workers; Spark tries their tasks again."""
        return self._strike(WORKER_STRIKES, strike, seconds)

    def kill_java(self) -> None:
        """Spark's driver at some moment; its watcher starts another."""
        self._kill_some("Java", Watcher.java)

    def kill_worker(self) -> None:
        """A Python worker of Spark's at some moment, or what forks them."""
        self._kill_some("a Python worker", Watcher.workers)

    def _strike(self, who: str, strike: Strike, seconds: float) -> bool:
        """False when nobody comes to the point in time."""
        armed = arm(self.strikes / who, strike)
        end = time.monotonic() + seconds
        while armed.exists() and time.monotonic() < end:
            self.send_for(0.25)
        struck = not armed.exists()
        armed.unlink(missing_ok=True)
        self.note_death(f"{who} {strike.point}" if struck else "before its point")
        return struck

    def _kill_some(self, what: str, of: Callable[[Watcher], Sequence[psutil.Process]]) -> None:
        end = time.monotonic() + STRIKE_SECONDS
        while not (found := [each for watcher in self.watchers for each in of(watcher)]):
            if time.monotonic() > end:
                self.note_death("before its point")
                return
            self.send_for(0.25)
        self.send_for(self.draw.random())
        with contextlib.suppress(psutil.NoSuchProcess):
            self.draw.choice(found).kill()
        self.note_death(what)

    def await_takeover(self) -> list[Job]:
        """Wait until no attempt goes on that does so now; those of its jobs that another attempt has done."""
        before = {job.spec.job_id: job.attempt_id for job in self.catalog.jobs.list({JobState.RUNNING})}
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            jobs = [self.catalog.jobs.get(job_id) for job_id in before]
            if all(job.state in (JobState.COMPLETED, JobState.FAILED) for job in jobs):
                return [job for job in jobs if job.attempt_id != before[job.spec.job_id]]
            assert time.monotonic() < end, "nobody has taken over the jobs of the dead"
            time.sleep(0.05)

    @override
    def check(self, *, go_on: bool = True) -> None:
        """As of every campaign; and of each job only the attempt is published that the catalog names."""
        super().check(go_on=go_on)
        for name in self._live_objects():
            if isinstance(parsed := parse(name), CompactedName):
                job = self.catalog.jobs.get(parsed.job_id)
                assert (job.state, job.attempt_id) == (JobState.COMPLETED, parsed.attempt_id), name

    def _live_objects(self) -> set[str]:
        """The objects that readers of the topics are sent to."""
        return {
            extent.object_name
            for topic in TOPICS
            for partition in range(PARTITIONS)
            for extent in self.catalog.extents.from_offset(
                self.catalog.topics.get(topic).topic_id, partition, 0, max_extents=10_000
            )
        }
