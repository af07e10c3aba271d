"""Early closes of the real write path over virtual time: files, and the reasons for which they were closed.

Producers are closed loops: each sends requests until its window is full, and waits for a response.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from typing_extensions import override

from agent.cluster.catalog_epoch import CatalogEpoch
from agent.runtime.health import CallHealth
from agent.runtime.metrics import AgentMetrics
from agent.runtime.retry import RetryPolicy
from agent.settings import AgentSettings
from agent.write.failed_producers import FailedProducers
from agent.write.validation import validate
from agent.write.write_path import WritePath
from core.ids import SeededIds
from object_format.record_batch.records import encode_batch
from tests.agent.fake_log import FakeLog, FakeSession
from tests.agent.write.test_write_path import make_topic
from tests.simulation.virtual_time import FiberScheduler, SimulatedProcess, VirtualClock, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from agent.cluster.session import Session
    from agent.runtime.pools import Pools
    from agent.write.write_path import CommitLog
    from catalog.model import FileCommit, SectionResult
    from object_store.interface import Buffer, ObjectStore

TOPIC = make_topic(1)
KIB = 1024


@dataclass
class _Store:
    """A store whose PUT takes some time; `most` is the largest number of PUTs at a time."""

    clock: VirtualClock
    put_seconds: float
    url: str = "s3://bucket"
    sizes: list[int] = field(default_factory=list)
    running: int = 0
    most: int = 0

    def put(self, _name: str, body: Sequence[Buffer], *, purpose: object) -> int:
        del purpose
        self.running += 1
        self.most = max(self.most, self.running)
        self.clock.sleep(self.put_seconds)
        self.running -= 1
        self.sizes.append(sum(len(each) for each in body))
        return self.sizes[-1]


class _Log(FakeLog):
    def __init__(self, clock: VirtualClock, commit_seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._commit_seconds = commit_seconds

    @override
    def commit(self, commit: FileCommit) -> tuple[SectionResult, ...]:
        self._clock.sleep(self._commit_seconds)
        return super().commit(commit)

    @override
    def commit_together(self, commits: Sequence[FileCommit]) -> list[tuple[SectionResult, ...]]:
        self._clock.sleep(self._commit_seconds)
        return super().commit_together(commits)


class _Pools:
    """Pools of threads, as fibers of virtual time."""

    def __init__(self, fibers: FiberScheduler) -> None:
        self._fibers = fibers
        self.uploads = self.commits = self

    async def run(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        return await self._fibers.run(call, SimulatedProcess("agent"))


@dataclass
class Scene:
    """A write path with its store; `closes` counts files by the reason for which they were closed."""

    path: WritePath
    store: _Store
    clock: VirtualClock
    metrics: AgentMetrics
    sequences: Counter[int] = field(default_factory=Counter)

    @property
    def closes(self) -> dict[str, int]:
        samples = [sample for metric in self.metrics.files_closed.collect() for sample in metric.samples]
        return {each.labels["reason"]: int(each.value) for each in samples if each.value}

    async def send(self, size: int, producer: int = -1) -> Awaitable[Any]:
        """Send a request of one batch of about `size` bytes, and return its pending result."""
        stamp = (producer, 0, self.sequences[producer]) if producer >= 0 else (-1,) * 3
        self.sequences[producer] += 1
        data = encode_batch([1000], [b"k"], [bytes(max(1, size - 80))], producer=stamp)
        append = validate(TOPIC, abs(producer) % 8, bytearray(data), now_ms=2000)
        return self.path.enqueue_together([append]).wait()

    async def produce(
        self,
        requests: int,
        size: int,
        *,
        window: int,
        gap: float = 0.001,
        producer: int = -1,
        turnaround: float = 0.002,
    ) -> None:
        """Send requests with at most `window` unacknowledged, `gap` seconds apart.

        `turnaround` is the time from a response to the next request.
        """
        waiting: list[Awaitable[Any]] = []
        for _ in range(requests):
            if len(waiting) == window:
                await waiting.pop(0)
                await asyncio.sleep(turnaround)
            waiting.append(asyncio.ensure_future(await self.send(size, producer)))
            await asyncio.sleep(gap)
        await asyncio.gather(*waiting)


def run(
    scenario: Callable[[Scene], Coroutine[Any, Any, None]],
    *,
    put_seconds: float = 0.02,
    commit_seconds: float = 0.005,
    local: bool = False,
    **changes: int,
) -> Scene:
    """Run a scenario with default settings except for `changes`, and return what is left of it."""
    clock = VirtualClock()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        fibers = clock.fibers = FiberScheduler(runner.get_loop())
        store = _Store(clock, put_seconds)
        if local:
            store.url = "file:///objects"
        metrics = AgentMetrics()
        path = WritePath(
            settings=replace(AgentSettings(), **cast("Any", changes)),
            store=cast("ObjectStore", store),
            log=cast("CommitLog", _Log(clock, commit_seconds)),
            session=cast("Session", FakeSession(UUID(int=101))),
            pools=cast("Pools", _Pools(fibers)),
            retry=RetryPolicy(attempts=1, first_pause=0.001, max_pause=0.002, ids=SeededIds(7, clock)),
            clock=clock,
            ids=SeededIds(8, clock),
            metrics=metrics,
            epoch=CatalogEpoch(),
            failed_producers=FailedProducers(clock),
            store_health=CallHealth(clock, limit_seconds=10),
        )
        scene = Scene(path, store, clock, metrics)

        async def start_and_stop() -> None:
            path.start()
            await scenario(scene)
            await path.stop()

        runner.run(start_and_stop())
    return scene


@pytest.mark.parametrize("put_seconds", [0.005, 0.03, 0.1])
def test_a_default_java_producer_waits_for_no_interval(put_seconds: float) -> None:
    """It sends five requests of 12 batches of 16 KiB, and waits: a file holds them all."""

    async def scenario(scene: Scene) -> None:
        await scene.produce(100, 192 * KIB, window=5, producer=7)

    scene = run(scenario, put_seconds=put_seconds)
    assert "interval" not in scene.closes
    assert scene.closes["stalled"] >= 19
    assert len(scene.store.sizes) <= 32, "the first bursts are divided until the agent has learnt their gaps"
    assert scene.store.sizes[-6:-1] == [983_445] * 5


def test_a_producer_without_a_known_limit_waits_for_the_idle_time_only() -> None:
    """It sends one request of 1 MB at a time, like librdkafka; the agent cannot know that."""

    async def scenario(scene: Scene) -> None:
        await scene.produce(50, 1_000_000, window=1)

    scene = run(scenario)
    assert scene.closes == {"idle": 50}
    assert scene.path.early_close.idle_seconds < 0.005


def test_a_default_java_producer_of_one_partition_fills_no_file_of_its_own_on_a_local_store() -> None:
    """Five requests of 16 KiB just exceed the minimum size. On S3, the budget would make them wait."""

    async def scenario(scene: Scene) -> None:
        await scene.produce(500, 16 * KIB, window=5, producer=7)

    assert run(scenario, put_seconds=0.005, local=True).closes == {"stalled": 100}


@pytest.mark.parametrize("size", [100, 10_000, 100_000])
def test_a_slow_producer_costs_at_most_four_puts_a_second(size: int) -> None:
    """One record every 100 ms: below the minimum size, files are closed by the interval only.

    Above it, the budget of 2,000 PUTs per gigabyte allows the first hundred files and 0.2 PUTs per file.
    """

    async def scenario(scene: Scene) -> None:
        await scene.produce(600, size, window=100, gap=0.1)

    scene = run(scenario)
    early = scene.closes.get("idle", 0)
    assert scene.closes["interval"] <= 60 * 4
    assert early <= (0 if size < 64 * KIB else 100 + 600 * size / 1e9 * 2000)


def test_a_steady_flow_fills_its_files() -> None:
    """Requests of 20 KB every 10 ms need no early close: the gap between two of them is learnt."""

    async def scenario(scene: Scene) -> None:
        await scene.produce(2000, 20_000, window=1000, gap=0.01)

    scene = run(scenario)
    assert scene.closes.get("idle", 0) <= 20, "while the agent has learnt nothing"
    assert scene.closes["interval"] >= 70
    assert scene.path.early_close.idle_seconds > 0.015


def test_one_slow_producer_does_not_delay_fifteen_that_wait() -> None:
    """Not even one that sends a small record every 3 ms, and no limit of the others is known."""

    async def scenario(scene: Scene) -> None:
        slow = asyncio.ensure_future(scene.produce(10_000, 100, window=10_000, gap=0.003))
        await asyncio.gather(
            *[scene.produce(40, 20 * KIB, window=5, producer=-2 - number) for number in range(15)]
        )
        slow.cancel()

    scene = run(scenario)
    assert scene.closes.get("interval", 0) <= 2
    assert scene.closes["idle"] >= 8


def test_many_small_producers_do_not_make_small_files() -> None:
    """Fifty idempotent producers of small records are always stalled; their files wait for the interval."""

    async def scenario(scene: Scene) -> None:
        await asyncio.gather(*[scene.produce(50, 200, window=5, producer=100 + n) for n in range(50)])

    scene = run(scenario)
    assert set(scene.closes) <= {"interval", "stop"}
    assert len(scene.store.sizes) <= 11


def test_many_default_producers_share_files() -> None:
    """While a few files are in flight, the others' requests gather in the open one."""

    async def scenario(scene: Scene) -> None:
        await asyncio.gather(*[scene.produce(50, 192 * KIB, window=5, producer=7 + n) for n in range(16)])

    scene = run(scenario, put_seconds=0.1, local=True)
    assert "interval" not in scene.closes
    assert scene.store.most <= AgentSettings().max_files_in_flight
    assert sum(scene.store.sizes) / len(scene.store.sizes) > 1.5e6


def test_producers_share_the_files_that_slow_commits_keep_up_with() -> None:
    """Files of one producer each would only wait for their commits, which follow one another."""

    async def scenario(scene: Scene) -> None:
        await asyncio.gather(
            *[
                scene.produce(100, 16 * KIB, window=5, producer=7 + n, gap=0.0001 * n, turnaround=0.001 * n)
                for n in range(8)
            ]
        )

    scene = run(scenario, put_seconds=0.005, local=True, commit_seconds=0.02)
    assert len(scene.store.sizes) <= 60, "160 windows of five requests"


def test_the_budget_bounds_early_closes_by_bytes_and_by_time() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.produce(300, 100_000, window=1)

    by_bytes = run(scenario, early_puts_per_gb=1000)
    early = by_bytes.closes["idle"]
    assert early <= 100 + 300 * 100_000 / 1e9 * 1000
    assert by_bytes.closes["interval"] == 300 - early
    assert by_bytes.path.early_close.held_back == by_bytes.closes["interval"]

    by_time = run(scenario, local=True, early_puts_per_second=5)
    seconds = by_time.clock.monotonic()
    assert by_time.closes["idle"] <= 5 + 5 * seconds
    assert set(run(scenario, early_puts_per_second=0).closes) == {"interval"}


def test_a_held_back_file_is_closed_when_the_budget_allows_it() -> None:
    """It does not wait for the rest of the interval: five files a second are fewer than 1,000 ms / 35 ms."""

    async def scenario(scene: Scene) -> None:
        await scene.produce(100, 100_000, window=1)

    scene = run(scenario, local=True, early_puts_per_second=10)
    assert scene.closes == {"idle": 100}


def test_a_file_does_not_wait_for_the_timer_of_the_file_before_it() -> None:
    """The first one is closed before its long idle time; the second one follows an acknowledgement."""

    async def scenario(scene: Scene) -> None:
        await scene.produce(8, 100_000, window=8, gap=0.03)
        scene.store.put_seconds = 0.02
        begin = scene.clock.monotonic()
        first = await scene.send(100_000)
        idle_seconds = scene.path.early_close.idle_seconds
        scene.path.flush()
        await asyncio.sleep(0.01)
        second = await scene.send(100_000)
        await asyncio.gather(first, second)
        assert scene.clock.monotonic() - begin < idle_seconds

    run(scenario, put_seconds=0.3)
