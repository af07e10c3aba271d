"""The operations of a process on its logs until it is killed, and its journal."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from core.clock import ManualClock
from core.ids import SeededIds
from local_tier.cleaner.log_cleaner import CleanerConfig
from local_tier.config import LogConfig
from local_tier.manager.config import LogManagerConfig
from local_tier.manager.directory_services import DirectorySchedulers
from local_tier.manager.log_directories import DirectoryOwner
from local_tier.manager.log_manager import LogManager
from local_tier.manager.set_aside_logs import Disposal
from local_tier.topic_partition import TopicPartition
from object_format.record_batch.headers import scan_batches
from object_format.record_batch.records import encode_batch
from tests.local_tier.manager.managers import PeriodicManualScheduler

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.cleaner.cleaner import Cleaner
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog

PLAIN: Final = TopicPartition("plain", 0)
KEYED: Final = TopicPartition("keyed", 0)
BRIEF: Final = TopicPartition("brief", 0)
NAMES: Final = (PLAIN, KEYED, BRIEF)

_SMALL = LogConfig(
    segment_bytes=1500,
    segment_index_bytes=12 * 60,
    index_interval_bytes=100,
    retention_ms=-1,
    file_delete_delay_ms=1_000,
)
CONFIGS: Final = {
    "plain": replace(_SMALL, retention_bytes=9_000),
    "keyed": replace(
        _SMALL, compact=True, delete=False, min_cleanable_dirty_ratio=0.1, delete_retention_ms=2_000
    ),
    "brief": _SMALL,
}


def config_of(
    log: TopicPartition, topic_id: UUID | None, directory_id: UUID, *, is_future: bool
) -> LogConfig:
    del topic_id, directory_id, is_future
    return CONFIGS[log.topic]


def topic_id(name: TopicPartition, generation: int) -> UUID:
    """Return the id of one generation of a topic that is deleted and created again."""
    return UUID(int=NAMES.index(name) << 64 | generation)


@dataclass(frozen=True)
class Journal:
    """Lines that outlive the process: one before an operation, and one after it is done."""

    descriptor: int

    def write(self, **fields: object) -> None:
        os.write(self.descriptor, json.dumps(fields).encode() + b"\n")


class Workload:
    """The operations of one process, chosen by a seed."""

    def __init__(self, root: Path, files: FileSystem, journal: Journal, seed: int) -> None:
        self._chance = random.Random(seed)
        self._journal = journal
        self._clock = ManualClock(1_700_000_000_000 + seed * 10_000)
        self._scheduler = PeriodicManualScheduler(self._clock)
        self.manager = manager_of(root, files, self._clock, self._scheduler)
        self._serial = seed * 1_000_000
        self._generation = seed + 1
        self._cleaner: Cleaner | None = None

    def run(self, steps: int) -> None:
        """Open all logs and run `steps` operations. Then close the logs, or only end."""
        self.manager.start(config_of, clean=False)
        self._cleaner = next(iter(self.manager.cleaners.values())).new_cleaner()
        for name in NAMES:
            self._make(name)
        actions = [self.append] * 12 + [
            self.flush,
            self.roll,
            self.delete_old_segments,
            self.clean,
            self.clean,
            self.delete_records,
            self.truncate,
            self.truncate,
            self.restart_at_an_offset,
            self.checkpoint,
            self.advance_time,
            self.advance_time,
            self.recreate_topic,
        ]
        for _ in range(steps):
            self._chance.choice(actions)()
        if self._chance.random() < 0.5:
            self.manager.close()
        self._journal.write(end=True)

    def append(self) -> None:
        name = self._chance.choice(NAMES)
        log = self._log(name)
        records = [self._record(name) for _ in range(self._chance.randint(1, 6))]
        first = log.log_end_offset
        self._journal.write(do="append", log=name.topic, first=first, records=records)
        data = encode_batch(
            [self._clock.now_ms()] * len(records),
            [key.encode() for key, _ in records],
            [None if value is None else value.encode() for _, value in records],
        )
        log.append_as_leader(bytearray(data), 0)
        log.update_high_watermark(log.log_end_offset)
        self._journal.write(done="append", log=name.topic)

    def flush(self) -> None:
        name = self._chance.choice(NAMES)
        log = self._log(name)
        log.flush()
        self._journal.write(done="flush", log=name.topic, end=log.log_end_offset)

    def roll(self) -> None:
        log = self._log(self._chance.choice(NAMES))
        if log.active_segment.size:
            log.roll()

    def delete_old_segments(self) -> None:
        self._journal.write(do="delete_old_segments")
        self.manager.periodic_tasks.delete_old_segments()
        self._journal.write(done="delete_old_segments", log="plain", start=self._log(PLAIN).log_start_offset)

    def clean(self) -> None:
        assert self._cleaner is not None
        for cleaner in self.manager.cleaners.values():
            cleaner.clean_once(self._cleaner)

    def delete_records(self) -> None:
        log = self._log(BRIEF)
        before = self._chance.randint(log.log_start_offset, log.high_watermark)
        self._journal.write(do="delete_records", log="brief", before=before)
        self.manager.delete_records(BRIEF, before)
        self._journal.write(done="delete_records", log="brief")

    def truncate(self) -> None:
        """Truncate to the end of a batch as a follower does, so that offsets are reused.

        The target may be below flushed offsets.
        """
        name = self._chance.choice([PLAIN, BRIEF])
        log = self._log(name)
        rows = [scan_batches(segment.log.read(0, segment.size)) for segment in log.segments[-3:]]
        ends = [
            end for each in rows for end in (each["base_offset"] + each["last_offset_delta"] + 1).tolist()
        ]
        to = max([log.log_start_offset, *ends[: self._chance.randint(0, len(ends))]])
        self._journal.write(do="truncate", log=name.topic, to=to)
        self.manager.truncate_to(name, to)
        self._journal.write(done="truncate", log=name.topic)

    def restart_at_an_offset(self) -> None:
        """Truncate fully, like a tail cache that has missed records."""
        if self._chance.random() < 0.4:
            at = self._log(BRIEF).log_end_offset + self._chance.randint(0, 5)
            self._journal.write(do="restart_at_an_offset", log="brief", at=at)
            self.manager.truncate_fully(BRIEF, at)
            self._journal.write(done="restart_at_an_offset", log="brief")

    def recreate_topic(self) -> None:
        if self._chance.random() < 0.3:
            self._journal.write(do="delete", log="brief")
            self.manager.disposal.set_aside(self._log(BRIEF), Disposal.DELETE)
            self._journal.write(done="delete", log="brief")
            self._make(BRIEF)

    def checkpoint(self) -> None:
        periodic_tasks = self.manager.periodic_tasks
        for write in (
            periodic_tasks.checkpoint_recovery_points,
            periodic_tasks.checkpoint_log_start_offsets,
            periodic_tasks.checkpoint_high_watermarks,
        ):
            write()

    def advance_time(self) -> None:
        self._scheduler.advance(self._chance.choice([0, 300, 1_100]))

    def _record(self, name: TopicPartition) -> tuple[str, str | None]:
        self._serial += 1
        key = f"k{self._chance.randint(0, 9)}" if name is KEYED else f"s{self._serial}"
        gone = name is KEYED and self._chance.random() < 0.2
        return key, None if gone else f"{self._serial}" + "." * self._chance.randint(0, 80)

    def _make(self, name: TopicPartition) -> None:
        if self.manager.get(name) is None:
            self._generation += 1
            identity = topic_id(name, self._generation)
            self._journal.write(do="make", log=name.topic, id=str(identity))
            self.manager.get_or_create(name.topic, identity, 0, CONFIGS[name.topic])
            self._journal.write(done="make", log=name.topic)

    def _log(self, name: TopicPartition) -> UnifiedLog:
        log = self.manager.get(name)
        assert log is not None
        return log


def manager_of(
    root: Path, files: FileSystem, clock: ManualClock, scheduler: PeriodicManualScheduler
) -> LogManager:
    """Return a manager of two directories, with small buffers."""
    return LogManager(
        LogManagerConfig(
            directories=(root / "a", root / "b"),
            owner=DirectoryOwner(cluster_id="crash", node_id=1),
            file_delete_delay_ms=1_000,
            cleaner=CleanerConfig(dedupe_buffer_bytes=1 << 14, io_buffer_bytes=400),
            recovery_threads_per_directory=1,
        ),
        file_system=files,
        clock=clock,
        ids=SeededIds(clock.now_ms(), clock),
        schedulers={
            path: DirectorySchedulers(tasks=scheduler, failures=scheduler)
            for path in (root / "a", root / "b")
        },
    )
