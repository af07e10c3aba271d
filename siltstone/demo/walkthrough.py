"""The demo from start to end on real input: produce, store, compact on Spark, read back, compare.

The agent is a separate process, and the demo is its Kafka client. Spark runs in the demo's process. The
expected result is computed beforehand from the input alone, by `siltstone.demo.oracle`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catalog.model import FileKind
from siltstone.compaction.compactor import compact
from siltstone.context import open_context
from siltstone.demo.agent_process import running_agent
from siltstone.demo.comparison import Differences, check_outcomes, check_partition
from siltstone.demo.input_data import load_input
from siltstone.demo.kafka_io import produce, read_back
from siltstone.demo.oracle import expect
from siltstone.demo.report import DemoReport, SampleRead, TopicFigures
from siltstone.demo.topics import FLIGHTS, WEATHER, recreate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from catalog.model import Topic
    from core.clock import Clock
    from siltstone.console import ProgressDisplay
    from siltstone.context import AppContext
    from siltstone.demo.comparison import FetchedRecord, RecordOutcome
    from siltstone.demo.input_data import DemoInput, Row
    from siltstone.demo.oracle import ExpectedTopic
    from siltstone.demo.topics import DemoTopic
    from siltstone.interrupts import Interrupts
    from siltstone.settings.configuration import Settings
    from spark_jobs.report import CompactionReport

_EXTENTS_PER_QUERY = 500
_SAMPLES = 2


@dataclass(slots=True)
class _TopicRun:
    """One topic of the demo: its rows, the expected outcome, and the actual outcome."""

    plan: DemoTopic
    topic: Topic
    rows: Sequence[Row]
    expected: ExpectedTopic
    differences: Differences = field(default_factory=Differences)
    accepted: int = 0
    rejected: int = 0
    first_rejection: str | None = None
    read_back: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    samples: list[SampleRead] = field(default_factory=list)

    def figures(self) -> TopicFigures:
        return TopicFigures(
            name=self.plan.name,
            partitions=self.plan.partitions,
            policy=self.topic.config.cleanup_policy,
            rows=len(self.rows),
            accepted=self.accepted,
            rejected=self.rejected,
            read_back=self.read_back,
            expected=self.expected.record_count,
            bytes_before=self.bytes_before,
            bytes_after=self.bytes_after,
        )


class _PhaseTimer:
    """Timer of the phases of the demo, in order."""

    def __init__(self, context: AppContext) -> None:
        self._clock = context.clock
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        started = self._clock.monotonic()
        yield
        self.seconds[name] = self._clock.monotonic() - started


def run_walkthrough(
    settings: Settings, display: ProgressDisplay, *, rows: int | None, options: str, interrupts: Interrupts
) -> DemoReport:
    """Run the demo; `rows` limits the flights, and with `options` other commands find the data."""
    with open_context(settings) as context:
        timer = _PhaseTimer(context)
        with timer.time("input"), display.phase("Read the input and compute the expected result"):
            data = load_input(rows)
            topic_runs = _topic_runs(data, recreate(context, settings.data_dir))
        with contextlib.ExitStack() as running:
            with timer.time("agent"), display.phase("Start an agent in a separate process"):
                bootstrap = running.enter_context(
                    running_agent(settings, settings.data_dir / "demo-agent.log")
                )
            with timer.time("produce"):
                _produce(bootstrap, topic_runs, display)
            before = [_measure(context, topic_run.topic) for topic_run in topic_runs]
            with timer.time("compact"):
                compaction = compact(context, settings, display, interrupts=interrupts).compaction
            after = [_measure(context, topic_run.topic) for topic_run in topic_runs]
            with timer.time("read back"):
                _read_back(bootstrap, topic_runs, context.clock, display)
        for topic_run, (_, bytes_before), (_, bytes_after) in zip(topic_runs, before, after, strict=True):
            topic_run.bytes_before, topic_run.bytes_after = bytes_before, bytes_after
        ingestion_files = _files(before, FileKind.INGESTION)
        compacted_files = _files(after, FileKind.COMPACTED)
        return _report(
            settings,
            context,
            topic_runs,
            compaction,
            timer,
            ingestion_files,
            compacted_files,
            options=options,
        )


def _topic_runs(data: DemoInput, topics: tuple[Topic, Topic]) -> list[_TopicRun]:
    return [
        _TopicRun(plan, topic, rows, expect(rows, plan.partitions, compacted=plan.compacted))
        for plan, topic, rows in zip((FLIGHTS, WEATHER), topics, (data.flights, data.weather), strict=True)
    ]


def _produce(bootstrap: str, topic_runs: list[_TopicRun], display: ProgressDisplay) -> None:
    total = sum(len(topic_run.rows) for topic_run in topic_runs)
    with display.phase("Produce as a Kafka client", total) as advance:
        outcomes_by_topic = produce(
            bootstrap, [(topic_run.plan.name, topic_run.rows) for topic_run in topic_runs], advance
        )
    for topic_run, outcomes in zip(topic_runs, outcomes_by_topic, strict=True):
        _record_outcomes(topic_run, outcomes)


def _record_outcomes(topic_run: _TopicRun, outcomes: list[RecordOutcome]) -> None:
    check_outcomes(
        topic_run.plan.name, range(len(outcomes)), outcomes, topic_run.expected, topic_run.differences
    )
    for row, outcome in enumerate(outcomes):
        if outcome.error is None:
            topic_run.accepted += 1
        elif outcome.is_refusal:
            topic_run.rejected += 1
            topic_run.first_rejection = (
                topic_run.first_rejection or f"row {row:,} of the file: {outcome.error}"
            )


def _measure(context: AppContext, topic: Topic) -> tuple[set[tuple[UUID, FileKind]], int]:
    """Return the files that contain live extents of a topic, and the bytes of these extents."""
    files: set[tuple[UUID, FileKind]] = set()
    size = 0
    for state in context.catalog.topics.partitions(topic.topic_id):
        offset = state.log_start_offset
        while offset < state.log_end_offset:
            extents = context.catalog.extents.from_offset(
                topic.topic_id, state.partition, offset, max_extents=_EXTENTS_PER_QUERY, max_bytes=2**62
            )
            files.update((extent.file_id, extent.file_kind) for extent in extents)
            size += sum(extent.length for extent in extents)
            offset = extents[-1].last_offset + 1
    return files, size


def _files(measured: list[tuple[set[tuple[UUID, FileKind]], int]], kind: FileKind) -> int:
    return len({file_id for files, _ in measured for file_id, file_kind in files if file_kind is kind})


def _read_back(bootstrap: str, topic_runs: list[_TopicRun], clock: Clock, display: ProgressDisplay) -> None:
    total = sum(topic_run.expected.record_count for topic_run in topic_runs)
    with display.phase("Read everything back and compare", total) as advance:
        for topic_run in topic_runs:
            name = topic_run.plan.name
            read = read_back(bootstrap, name, topic_run.plan.partitions, clock, advance)
            for partition, (records, expected) in enumerate(
                zip(read, topic_run.expected.partitions, strict=True)
            ):
                topic_run.read_back += check_partition(
                    name, partition, records, expected, topic_run.differences
                )
                if records and len(topic_run.samples) < _SAMPLES // len(topic_runs):
                    topic_run.samples.append(_sample(name, partition, records[len(records) // 2]))


def _sample(topic: str, partition: int, record: FetchedRecord) -> SampleRead:
    return SampleRead(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=(record.key or b"").decode(),
        value=(record.value or b"").decode(),
    )


def _report(
    settings: Settings,
    context: AppContext,
    topic_runs: list[_TopicRun],
    compaction: CompactionReport,
    timer: _PhaseTimer,
    ingestion_files: int,
    compacted_files: int,
    *,
    options: str,
) -> DemoReport:
    flights, weather = topic_runs
    return DemoReport(
        flights=flights.figures(),
        weather=weather.figures(),
        first_rejection=flights.first_rejection,
        ingestion_files=ingestion_files,
        compacted_files=compacted_files,
        compaction=compaction,
        differences=sum(topic_run.differences.count for topic_run in topic_runs),
        examples=[example for topic_run in topic_runs for example in topic_run.differences.examples],
        samples=[sample for topic_run in topic_runs for sample in topic_run.samples],
        seconds=timer.seconds,
        data_dir=settings.data_dir,
        object_store=context.store.url,
        program=_program(),
        options=options,
    )


def _program() -> str:
    """Return how to call this command: its name, or its path if the shell does not find it."""
    return "siltstone" if shutil.which("siltstone") else shlex.quote(os.path.relpath(sys.argv[0]))
