"""Every metric of a watcher changes by the job, or the fault, that it measures.

Jobs run in the test's process, but through everything else that runs jobs on Spark. Each step names the
metrics that must change by it. One test fails for a metric that no step moves.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast
from unittest.mock import patch

import pytest
from typing_extensions import override

from catalog.model import PartitionId
from core.clock import SystemClock
from core.errors import SiltstoneError
from core.ids import SystemIds
from object_format.codecs.codec import Codec
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.open import StoreConfig, open_store
from planner.planner import plan_and_submit
from siltstone.compaction.compactor import CompactionOptions
from siltstone.compaction.watcher import Watcher, WatcherStatus
from siltstone.compaction.watcher_metrics import WatcherCollector
from siltstone.context import AppContext
from siltstone.interrupts import Interrupts
from siltstone.settings.sources import load_settings
from spark_jobs import compact as spark_compact
from spark_jobs.compact import run_jobs
from spark_jobs.errors import SparkUnavailableError
from spark_jobs.report import JobFailure
from spark_jobs.session.spark_session import SparkSettings
from spark_jobs.session_manager import SparkSessionManager
from spark_jobs.shuffle.plan import PlanChoice, plan_shuffle
from spark_jobs.shuffle.shares import ShareSizes
from spark_jobs.task.compaction_task import run_compaction
from spark_jobs.transport import unpack_spec
from tests.end_to_end.processes import as_url, report, siltstone
from tests.object_store.s3.fault_proxy import Fault, FaultProxy, running_proxy
from tests.planner.system import System
from tests.planner.transactional_log import TransactionalLog
from tests.siltstone.compaction.test_watcher import until
from tests.spark_jobs.catalog_log import CatalogLog
from tests.spark_jobs.reference_log import batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Self
    from uuid import UUID

    from catalog.model import JobResult
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from spark_jobs.queries import QueryJob
    from spark_jobs.report import CompactionReport

pytestmark = pytest.mark.integration
SMALL_SHARES: Final = ShareSizes(share_bytes=30_000, min_shares=2, min_piece_bytes=10_000)


class InProcessQueries:
    """Stand-in for `JobQueries` that runs each job in the caller's thread."""

    def __init__(self, _spark: object, store: StoreConfig, *, tag: str) -> None:
        del tag
        self._store = store
        self._jobs: list[QueryJob] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, jobs: Sequence[QueryJob]) -> None:
        self._jobs += jobs

    def next_outcome(self, _timeout_seconds: float) -> tuple[UUID, JobResult | JobFailure]:
        """Run the next job."""
        job = self._jobs.pop(0)
        packed, spec = job.packed, unpack_spec(job.packed.spec)
        clock = SystemClock()
        ids = SystemIds(clock)

        def open_task_store() -> ObjectStore:
            return open_store(self._store, clock, ids)

        try:
            if job.shuffle is not None:
                result = run_in_memory(spec, plan_shuffle(spec, SMALL_SHARES), open_task_store, ids)
                return packed.attempt_id, replace(result, attempt_id=packed.attempt_id)
            with closing(open_task_store()) as store:
                return packed.attempt_id, run_compaction(
                    spec, store, attempt_id=packed.attempt_id, clock=clock, ids=ids
                )
        except SiltstoneError as error:
            return packed.attempt_id, JobFailure.of(packed.job_id, error)


class InProcessSession(SparkSessionManager):
    """Session that never starts Spark; `before` is called while jobs are running."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__(SparkSettings())
        self._before = before

    @property
    @override
    def is_started(self) -> bool:
        return True

    @property
    @override
    def slots(self) -> int:
        return 4

    @override
    def run(self, jobs: Sequence[Any], **options: Any) -> CompactionReport:
        self._before()
        with (
            patch.object(spark_compact, "JobQueries", InProcessQueries),
            patch.object(spark_compact, "worker_limit_bytes", lambda _spark: None),
        ):
            spark = SimpleNamespace(
                conf={},
                registerProgressHandler=lambda _handler: None,
                removeProgressHandler=lambda _handler: None,
            )
            return run_jobs(cast("Any", spark), jobs, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that happens to a watcher, and the metrics that must change by it."""

    happens: Callable[[Scene], None]
    moves: frozenset[str]
    settings: dict[str, object]
    on_s3: bool


STEPS: Final[dict[str, Step]] = {}


def step(
    moves: str, *, on_s3: bool = False, **settings: object
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Add a function to the steps; `moves` has the names of metrics without their prefix."""

    def add(happens: Callable[[Scene], None]) -> Callable[[Scene], None]:
        names = frozenset(f"siltstone_compaction_{name}" for name in moves.split())
        STEPS[happens.__name__] = Step(happens=happens, moves=names, settings=settings, on_s3=on_s3)
        return happens

    return add


class Scene(CatalogLog):
    """A watcher over a log."""

    def __init__(
        self, catalog: Catalog, store: ObjectStore, config: StoreConfig, ids: Ids, tmp_path: Path
    ) -> None:
        super().__init__(catalog, store, ids)
        self.config = config
        self.tmp_path = tmp_path
        self.proxy: FaultProxy | None = None
        self.session_error: SparkUnavailableError | None = None
        self.moved: set[str] = set()
        self.numbers = itertools.count()

    def watch(self, settings: dict[str, object], **options: Any) -> None:  # noqa: ANN401  # any option
        """Create the watcher, which waits for nothing unless the settings say so."""
        clock = SystemClock()
        context = AppContext(
            catalog=self.catalog,
            store=self.store,
            store_config=self.config,
            clock=self.catalog.clock,
            ids=SystemIds(clock),
        )
        chosen = {"data_dir": self.tmp_path, "max_ingestion_age_ms": 0, "max_cleaning_age_ms": 0, **settings}
        self.context = context
        self.watcher = Watcher(
            context,
            load_settings(chosen),
            CompactionOptions(**options),
            interval_seconds=0.01,
            session=InProcessSession(self.before_jobs),
        )
        self.before = self.values()

    def values(self) -> dict[str, object]:
        """Return all samples by the name of their metric."""
        return {
            f"{family.name}_total" if family.type == "counter" else family.name: [
                (sorted(sample.labels.items()), sample.value) for sample in family.samples
            ]
            for family in WatcherCollector(self.watcher.status).collect()
        }

    def before_jobs(self) -> None:
        """Look at the metrics while jobs run, and fail if the session is lost."""
        self.look()
        if self.session_error is not None:
            raise self.session_error

    def look(self) -> None:
        """Note which metrics have changed."""
        self.moved |= {name for name, values in self.values().items() if values != self.before[name]}

    def poll(self) -> None:
        """Let the watcher poll."""
        self.watcher.poll(Interrupts())
        self.look()

    def topic(self, policy: str = "compact", **config: str) -> PartitionId:
        """Create a topic."""
        given = {"cleanup.policy": policy, **{name.replace("_", "."): each for name, each in config.items()}}
        topic = self.catalog.topics.create(f"topic{next(self.numbers)}", 1, given)
        return PartitionId(topic.topic_id, 0)

    def fill(self, partition: PartitionId, records: int, *, keys: int, codec: Codec = Codec.NONE) -> None:
        """Write a file of small batches."""
        pairs = [(f"key{number % keys}".encode(), f"{number}".encode() * 20) for number in range(records)]
        batches = [batch(*pairs[start : start + 20], codec=codec) for start in range(0, records, 20)]
        self.ingest({partition: batches})

    def until_moved(self, expected: frozenset[str], act: Callable[[], object]) -> None:
        """Repeat `act` until the metrics have changed."""

        def reached() -> bool:
            if expected <= self.moved:
                return True
            act()
            return False

        try:
            until(reached)
        except AssertionError:
            raise AssertionError(f"not moved: {sorted(expected - self.moved)}") from None


@step(
    """bytes_in_total bytes_out_total compacted_bytes_total compacted_files_total complete_seconds_total
    compress_seconds_total decompress_seconds_total find_survivors_seconds_total get_requests_total
    ingested_bytes_total input_files_read_once_total input_files_total jobs_completed_total jobs_running
    jobs_total jobs_waiting kernels_seconds_total keys_total largest_buffer_bytes_max last_poll_ms
    merged_bytes_saved_total partitions_total peak_rss_bytes_max polls_total records_dropped_total
    records_in_total records_invalid_total records_out_total rewritten_bytes_total rounds_total
    table_bytes_max topic_ingested_bytes_total topic_rewritten_bytes_total total_seconds_total
    write_amplification write_objects_seconds_total write_seconds_total"""
)
def files_are_compacted(scene: Scene) -> None:
    compacted, copied = scene.topic(), scene.topic("delete")

    def act() -> None:
        scene.fill(compacted, 4_000, keys=900, codec=Codec.ZSTD)
        scene.ingest({compacted: [batch((None, b"a record without a key"))]})
        scene.poll()
        scene.fill(copied, 40, keys=9)
        scene.poll()

    scene.until_moved(STEPS["files_are_compacted"].moves, act)


@step("ingestion_age_ms ingestion_bytes ingestion_files", max_ingestion_age_ms=3_600_000)
def few_files_wait(scene: Scene) -> None:
    scene.fill(scene.topic(), 10, keys=2)
    scene.until_moved(STEPS["few_files_wait"].moves, scene.poll)


@step("jobs_deferred", budget_bytes_per_hour=1, max_job_files=1)
def the_budget_is_used_up(scene: Scene) -> None:
    partition = scene.topic()
    for _ in range(3):
        scene.fill(partition, 10, keys=2)
    scene.poll()


@step("jobs_lost_total")
def another_planner_is_faster(scene: Scene) -> None:
    """It submits its jobs after this one has planned, and before it submits."""
    scene.fill(scene.topic(), 10, keys=2)
    jobs = scene.catalog.jobs
    submit = jobs.submit

    def other_first(*arguments: Any, **named: Any) -> object:  # noqa: ANN401  # those of submit
        with patch.object(jobs, "submit", submit):
            plan_and_submit(scene.catalog, scene.catalog.clock, scene.ids, scene.watcher._planner)
        return submit(*arguments, **named)

    with patch.object(jobs, "submit", other_first):
        scene.poll()


@step("tombstones_dropped_total")
def a_tombstone_passes_its_horizon(scene: Scene) -> None:
    partition = scene.topic(delete_retention_ms="0")

    def act() -> None:
        scene.ingest({partition: [batch((f"k{next(scene.numbers)}".encode(), None), (b"x", b"y"))]})
        scene.poll()

    scene.until_moved(STEPS["a_tombstone_passes_its_horizon"].moves, act)


@step("records_aborted_total")
def a_transaction_is_aborted(scene: Scene) -> None:
    system = System.start(
        scene.catalog, cast("Any", scene.store), cast("Any", scene.catalog.clock), scene.ids
    )
    log = TransactionalLog(system)
    producer = log.producer("t")
    log.write({scene.topic(): [(producer, [(b"k", b"v")])]})
    log.end(producer, commits=False)
    scene.poll()


@step("keys_outside_table_total", table_bytes=1_000)
def a_key_table_is_too_small(scene: Scene) -> None:
    scene.fill(scene.topic(), 4_000, keys=4_000)
    scene.poll()


@step(
    """buckets_total byte_ranges_total index_reads_total input_files_cut_total shares_total
    shuffle_bytes_total shuffled_jobs_total"""
)
def a_job_is_shuffled(scene: Scene) -> None:
    """A compacted file with an index is cut between tasks."""
    partition = scene.topic()
    scene.fill(partition, 6_000, keys=6_000)
    scene.poll()
    scene.fill(partition, 6_000, keys=5_000)
    scene.poll()


@step("byte_ranges_read_once_total", merge_fan_in=2)
def a_shuffled_job_copies(scene: Scene) -> None:
    """Two compacted files are merged. A partition of them needs no pass over the keys."""
    partitions = [scene.topic(), scene.topic("delete", retention_ms="-1")]
    for number in range(2):
        pairs = [(b"key%d" % each, b"%d" % number * 20) for each in range(6_000)]
        batches = [batch(*pairs[start : start + 20]) for start in range(0, len(pairs), 20)]
        scene.ingest(dict.fromkeys(partitions, batches))
        scene.poll()
    scene.poll()


@step("read_objects_seconds_total resumes_total retries_total", on_s3=True)
def the_store_is_unreliable(scene: Scene) -> None:
    assert scene.proxy is not None
    scene.fill(scene.topic(), 2_000, keys=9)
    faults = [
        Fault(method="GET", part=".seg", keep_bytes=1_000),
        Fault(method="PUT", status=503, code="SlowDown"),
    ]
    scene.proxy.plan(*faults)
    scene.poll()


@step("paused", max_job_files=1)
def another_driver_meets_the_same_fault_in_three_jobs(scene: Scene) -> None:
    """All drivers share the pause that follows."""
    for _ in range(3):
        scene.fill(scene.topic("delete"), 20, keys=9)
    plan_and_submit(scene.catalog, scene.catalog.clock, scene.ids, scene.watcher._planner)
    for job in scene.catalog.jobs.claim("another driver", 3):
        assert job.attempt_id is not None
        scene.catalog.jobs.back_off(
            job.spec.job_id, job.attempt_id, error="StoreAccessError", reason="access denied"
        )
    scene.poll()


@step("outage_seconds polls_failed_total")
def the_session_is_lost(scene: Scene) -> None:
    scene.fill(scene.topic(), 10, keys=2)
    scene.session_error = SparkUnavailableError("the session is lost")
    scene.until_moved(STEPS["the_session_is_lost"].moves, scene.poll)


@step("jobs_failed_total quarantine_candidate_files quarantined_files")
def a_file_is_corrupt(scene: Scene) -> None:
    partition = scene.topic()
    pairs = [(f"{number}".encode(), b"x" * 50) for number in range(100)]
    name = scene.ingest({partition: [batch(*pairs)]})
    size = len(scene.store.read_tail(name, 1 << 20, purpose=Purpose.CHECK)[0])
    data = bytearray(scene.store.read_range(name, 0, size, purpose=Purpose.CHECK))
    data[size // 2] ^= 255
    scene.store.put(name, [bytes(data)], purpose=Purpose.CHECK)
    scene.until_moved(STEPS["a_file_is_corrupt"].moves, scene.poll)


@pytest.fixture
def clock() -> Clock:
    """The system clock: ages and horizons must pass."""
    return SystemClock()


@pytest.fixture
def start(
    catalog: Catalog, ids: Ids, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Scene]]:
    """Provide a function that makes the scene of a step."""
    with ExitStack() as stack:

        def make(name: str) -> Scene:
            chosen = STEPS[name]
            clock = SystemClock()
            config, proxy = StoreConfig(str(tmp_path / "objects")), None
            if chosen.on_s3:
                config = request.getfixturevalue("s3_config")
                assert config.endpoint is not None
                proxy = stack.enter_context(running_proxy(config.endpoint))
                config = replace(config, endpoint=proxy.endpoint)
            store = stack.enter_context(closing(open_store(config, clock, ids, probe_timeout_seconds=60)))
            verify_binding(store, catalog.store_binding, ids)
            scene = Scene(catalog, store, config, ids, tmp_path)
            scene.proxy = proxy
            scene.watch(
                chosen.settings,
                plan=PlanChoice.SHUFFLE if "shuffled" in name else PlanChoice.TASK,
                force="tombstone" in name,
            )
            return scene

        yield make


@pytest.mark.parametrize("name", STEPS)
def test_metrics_change_when(name: str, start: Callable[[str], Scene]) -> None:
    scene = start(name)
    STEPS[name].happens(scene)

    assert STEPS[name].moves - scene.moved == frozenset()


def test_every_metric_is_moved_by_a_step() -> None:
    """A metric that nothing can move must not exist."""
    families = WatcherCollector(WatcherStatus()).collect()
    registered = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}

    assert frozenset[str]().union(*(each.moves for each in STEPS.values())) == registered


def test_plan_shows_what_a_watcher_waits_for_and_the_write_amplification(
    start: Callable[[str], Scene], catalog_url: str
) -> None:
    scene = start("files_are_compacted")
    partition = scene.topic()
    scene.fill(partition, 400, keys=100)
    scene.poll()
    done = scene.watcher.status.run.compaction
    scene.fill(partition, 20, keys=2)
    where = ("--catalog", as_url(catalog_url), "--data-dir", str(scene.tmp_path))

    found = report("plan", *where)
    assert found["jobs"][0]["watcher_waits_for"]["files"] == 199
    amounts = {"ingested_bytes": done.ingested_bytes, "rewritten_bytes": done.rewritten_bytes}
    shown = {**amounts, "write_amplification": done.write_amplification}
    assert 0 < done.rewritten_bytes < done.ingested_bytes
    assert found["last_day"] == {**shown, "topics": {"topic0": shown}}
    text = siltstone("plan", "--explain", "topic0", *where)
    assert "siltstone compact --watch waits for 199 more files, 64.0 MiB more or " in " ".join(text.split())
    assert f"Write amplification of topic0 in the last day: {done.write_amplification:.2f};" in text
