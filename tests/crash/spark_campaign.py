"""Rounds of crashes of processes that compact on Spark: watchers, Spark's Java, and its Python workers."""

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
from tests.crash.campaign import PARTITIONS, TIMEOUT_SECONDS, TOPICS, Campaign
from tests.crash.child_processes import GRACE_MS
from tests.crash.fail_points import WORKER_POINTS, Crash, arm
from tests.crash.spark_watcher import WATCHER_CRASH, WORKER_CRASH
from tests.end_to_end.processes import as_url, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from catalog.model import Job
    from tests.crash import child_processes
    from tests.crash.campaign import Child, Process

ROOT: Final = Path(__file__).parents[2]
TASK_POINTS: Final = tuple(point for point in WORKER_POINTS if "upload" in point or "stream" in point)
PLANNER_POINTS: Final = tuple(point for point in WORKER_POINTS if point not in TASK_POINTS)
CRASH_TIMEOUT_SECONDS: Final = 900.0
"""Maximum time until a process reaches the point of a crash. Spark starts in seconds, on a busy machine in
minutes."""
RARE_POINT_SECONDS: Final = 30.0
"""The same for points that may not be reached at all."""


class Watcher:
    """A `siltstone compact --watch` process with its Java and its Python workers."""

    def __init__(self, config: child_processes.ChildConfig, directory: Path, crashes: Path) -> None:
        self._config = config
        self._directory = directory
        self._crashes = crashes
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "watcher.log"
        self._log_start = 0

    def start(self) -> None:
        """Start the process; Spark starts with the first job."""
        self._directory.mkdir(parents=True, exist_ok=True)
        store = self._config.store
        assert store.endpoint is not None
        assert store.region is not None
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.crash.spark_watcher", str(self._crashes)),
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
                    "SILTSTONE_CATALOG": as_url(self._config.catalog_url),
                    "SILTSTONE_S3_ENDPOINT": store.endpoint,
                    "SILTSTONE_S3_REGION": store.region,
                    "SILTSTONE_SPARK_MASTER": "local[2]",
                    "SILTSTONE_GRACE_SECONDS": str(GRACE_MS // 1000),
                    "SILTSTONE_LOG_LEVEL": "info",
                },
            )

    def log_output(self) -> str:
        """Return the output since the last start."""
        return self._log.read_bytes()[self._log_start :].decode()

    def wait_ready(self) -> bool:
        """Return False if the process ends before it is ready."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while "Polling every" not in self.log_output():
            if not self.is_alive:
                return False
            assert time.monotonic() < end, "a watcher is neither ready nor stopped"
            time.sleep(0.02)
        return True

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def descendants(self) -> list[psutil.Process]:
        """The Java process, its daemon, and the workers that the daemon has forked."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def java(self) -> list[psutil.Process]:
        """Return Spark's driver, if it is running."""
        return [each for each in self.descendants if _name(each) == "java"]

    def workers(self) -> list[psutil.Process]:
        """Return Spark's Python workers and the daemon that forks them."""
        return [each for each in self.descendants if _name(each).startswith("python")]

    def kill(self) -> None:
        """Send SIGKILL; the Java process notices and ends."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Stop the process normally unless it has crashed."""
        assert self._process is not None
        if self._process.poll() == -signal.SIGKILL:
            return
        assert self.wait_ready(), self.log_output()  # before that, a signal kills it
        self._process.terminate()
        assert self._process.wait(TIMEOUT_SECONDS) == 0, self.log_output()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


@dataclass
class SparkCampaign(Campaign):
    """Two agents, and two watchers that share the jobs; files in `crashes` set their crashes."""

    watchers: list[Watcher] = field(init=False, default_factory=list)

    @property
    def crashes(self) -> Path:
        return self.disks / "crashes"

    @override
    def make_compactors(self) -> Sequence[Process]:
        self.crashes.mkdir(parents=True)
        self.watchers = [
            Watcher(self.config, self.disks / f"watcher-{number}", self.crashes) for number in range(2)
        ]
        return self.watchers

    @override
    def round(self) -> None:
        """Kill an agent or a compacting process, then wait until all records have arrived."""
        actions = (
            super().round,
            self._crash_some_watcher,
            self._crash_some_worker,
            self.kill_java,
            self.kill_worker,
        )
        self.random.choice(actions)()
        self.flush()

    @override
    def choose_victim(self) -> tuple[Child, str, Crash | None]:
        return self.choose_agent_crash()

    def _crash_some_watcher(self) -> None:
        crash = Crash(self.random.choice(PLANNER_POINTS), self.random.randint(1, 2))
        for stopped in self.crash_watcher(crash, RARE_POINT_SECONDS):
            stopped.start()

    def _crash_some_worker(self) -> None:
        crash = Crash(self.random.choice(TASK_POINTS), self.random.randint(1, 2))
        self.crash_worker(crash, RARE_POINT_SECONDS)

    def crash_watcher(self, crash: Crash, seconds: float = CRASH_TIMEOUT_SECONDS) -> list[Watcher]:
        """Crash the first watcher that reaches a point; return the crashed ones."""
        crashed = self._crash(WATCHER_CRASH, crash, seconds)
        stopped: list[Watcher] = []
        while crashed and not stopped:
            self.send_for(0.02)
            stopped = [each for each in self.watchers if not each.is_alive]
        return stopped

    def crash_worker(self, crash: Crash, seconds: float = CRASH_TIMEOUT_SECONDS) -> bool:
        """Crash the first Python worker of Spark that reaches a point; Spark retries its task."""
        return self._crash(WORKER_CRASH, crash, seconds)

    def kill_java(self) -> None:
        """Kill Spark's driver at a random moment; its watcher starts another one."""
        self._kill_one("Java", Watcher.java)

    def kill_worker(self) -> None:
        """Kill a Python worker of Spark, or the daemon that forks them, at a random moment."""
        self._kill_one("a Python worker", Watcher.workers)

    def _crash(self, target: str, crash: Crash, seconds: float) -> bool:
        """Return False if no process reaches the point in time."""
        armed = arm(self.crashes / target, crash)
        end = time.monotonic() + seconds
        while armed.exists() and time.monotonic() < end:
            self.send_for(0.25)
        crashed = not armed.exists()
        armed.unlink(missing_ok=True)
        self.count_kill(f"{target} {crash.point}" if crashed else "point not reached")
        return crashed

    def _kill_one(self, what: str, of: Callable[[Watcher], Sequence[psutil.Process]]) -> None:
        end = time.monotonic() + CRASH_TIMEOUT_SECONDS
        while not (found := [each for watcher in self.watchers for each in of(watcher)]):
            if time.monotonic() > end:
                self.count_kill("point not reached")
                return
            self.send_for(0.25)
        self.send_for(self.random.random())
        with contextlib.suppress(psutil.NoSuchProcess):
            self.random.choice(found).kill()
        self.count_kill(what)

    def await_takeover(self) -> list[Job]:
        """Wait until all present attempts have ended; return the jobs that another attempt has completed."""
        before = {job.spec.job_id: job.attempt_id for job in self.catalog.jobs.list({JobState.RUNNING})}
        end = time.monotonic() + TIMEOUT_SECONDS
        while True:
            jobs = [self.catalog.jobs.get(job_id) for job_id in before]
            if all(job.state in (JobState.COMPLETED, JobState.FAILED) for job in jobs):
                return [job for job in jobs if job.attempt_id != before[job.spec.job_id]]
            assert time.monotonic() < end, "the jobs of the crashed watcher were not taken over"
            time.sleep(0.05)

    @override
    def check(self, *, restart: bool = True) -> None:
        """Check as every campaign does, and that only the attempt in the catalog is published."""
        super().check(restart=restart)
        for name in self._live_objects():
            if isinstance(parsed := parse(name), CompactedName):
                job = self.catalog.jobs.get(parsed.job_id)
                assert (job.state, job.attempt_id) == (JobState.COMPLETED, parsed.attempt_id), name

    def _live_objects(self) -> set[str]:
        """Return the objects that readers of the topics read."""
        return {
            extent.object_name
            for topic in TOPICS
            for partition in range(PARTITIONS)
            for extent in self.catalog.extents.from_offset(
                self.catalog.topics.get(topic).topic_id, partition, 0, max_extents=10_000
            )
        }
