"""Load of agents on a catalog, without data: sessions that commit, and watchers that wait for commits.

Each worker is a process with several sessions or watchers, a thread each. The benchmarks of the catalog share
the files that they commit.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import psycopg

from catalog.database import arrays
from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.model import BatchRun, FileCommit, PartitionId, ProducerStamp, SectionCommit
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.names import ingestion_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from catalog.open import Catalog
    from core.ids import Ids

RECORDS = 16
_SECTION_BYTES = 8192
_WAIT_SECONDS = 0.1
_READ_PARTITIONS = 10
# Many sessions share the interpreter of a process, so that one may be silent for seconds.
_PATIENT = DatabaseLimits(
    connect_seconds=60, lock_seconds=120, silent_client_seconds=60, frozen_client_seconds=120
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Work of each session: commit files of `partitions` sections from `begin` on, for `seconds`.

    `begin` is a time of `time.monotonic`, which all processes share. The topic of session i is topic i, or
    topic 0 if the partitions are `shared`. A session commits `rate` files per second, or as many as it can
    (0), and stops after `files` of them. With `plain`, it updates and inserts the same rows without checks.
    """

    begin: float
    seconds: float
    partitions: int
    sessions: int
    shared: bool = False
    idempotent: bool = False
    rate: float = 0.0
    files: int = 10**9
    plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Durations of commits in seconds, bytes of their notifications, and processor time of the worker."""

    seconds: list[float]
    notified_bytes: int
    processor_seconds: float


def section_of(topic_id: UUID, partition: int, producer: ProducerStamp | None, number: int) -> SectionCommit:
    """Return a section with one run, the `number`th of its partition."""
    run = BatchRun(
        first_offset=0,
        offset_count=RECORDS,
        record_count=RECORDS,
        min_timestamp=number,
        max_timestamp=number + RECORDS,
        producer=producer,
    )
    return SectionCommit(
        topic_id=topic_id,
        partition=partition,
        position=_SECTION_BYTES * partition,
        length=_SECTION_BYTES,
        runs=(run,),
    )


def file_of(session_id: UUID, ids: Ids, sections: Sequence[SectionCommit]) -> FileCommit:
    """Return an ingestion file with these sections."""
    file_id = ids.new_uuid()
    return FileCommit(
        file_id=file_id,
        object_name=ingestion_name(session_id, file_id),
        size=8 * 2**20,
        directory_length=100 * len(sections),
        session_id=session_id,
        sections=tuple(sections),
    )


class FileSource:
    """Files of one session for one topic; the producer with the session's number sends every batch."""

    def __init__(self, topic_id: UUID, session_id: UUID, ids: Ids, producer_id: int | None) -> None:
        self._topic_id = topic_id
        self._session_id = session_id
        self._ids = ids
        self._producer_id = producer_id
        self._number = 0
        self._sections: tuple[SectionCommit, ...] = ()

    def next_file(self, partitions: int) -> FileCommit:
        """Return a file with one section for each of the first `partitions` partitions."""
        if self._producer_id is not None or len(self._sections) != partitions:
            stamp = self._stamp()
            self._sections = tuple(
                section_of(self._topic_id, partition, stamp, self._number) for partition in range(partitions)
            )
        self._number += 1
        return file_of(self._session_id, self._ids, self._sections)

    def _stamp(self) -> ProducerStamp | None:
        if self._producer_id is None:
            return None
        return ProducerStamp(
            producer_id=self._producer_id, producer_epoch=0, base_sequence=self._number * RECORDS
        )


class _Session:
    """One session, which commits and announces as an agent does."""

    def __init__(self, catalog: Catalog, ids: Ids, url: str, topic_ids: Sequence[UUID], number: int) -> None:
        self._catalog = catalog
        self._ids = ids
        self._topic_ids = topic_ids
        self._number = number
        self._origin = _origin_of(number)
        self._session_id = ids.new_uuid()
        catalog.sessions.register(self._session_id, "benchmark")
        self._plain = _PlainRows(url, number)
        self._producers = number * 1_000_000
        self.taken: list[float] = []
        self.notified_bytes = 0

    def run(self, case: Case) -> None:
        """Commit files; the building of their requests is not part of the durations."""
        self.taken, self.notified_bytes = [], 0
        self._producers += 1
        producer_id = self._producers if case.idempotent else None
        topic_id = self._topic_ids[0 if case.shared else self._number]
        source = FileSource(topic_id, self._session_id, self._ids, producer_id)
        file = source.next_file(case.partitions)
        pause = 1 / case.rate if case.rate else 0.0
        due = case.begin + pause * self._number / case.sessions
        while len(self.taken) < case.files:
            time.sleep(max(0.0, due - time.monotonic()))
            started = time.monotonic()
            if started >= case.begin + case.seconds:
                break
            if case.plain:
                self._plain.write(file)
            else:
                self._catalog.commits.commit(file)
            self.taken.append(time.monotonic() - started)
            if not case.plain:
                self._announce(file)
            file = source.next_file(case.partitions)
            due = max(due + pause, started)
        self._plain.close()

    def _announce(self, file: FileCommit) -> None:
        partitions = [PartitionId(each.topic_id, each.partition) for each in file.sections]
        self.notified_bytes += self._catalog.commits.announce(partitions, self._origin)


def _origin_of(number: int) -> UUID:
    """Return the id of an agent, whose watcher ignores the commits of its session."""
    return UUID(int=number)


_UPDATE = b"""
UPDATE plain_partitions AS p
SET log_end_offset = log_end_offset + 16, high_watermark = high_watermark + 16,
    last_stable_offset = last_stable_offset + 16, max_timestamp = max_timestamp + 1,
    live_bytes = live_bytes + 8192, dirty_bytes = dirty_bytes + 8192, dirty_since_ms = 1,
    ingestion_extents = ingestion_extents + 1
FROM unnest(%(topic_ids)s, %(partitions)s) AS v (topic_id, partition)
WHERE p.topic_id = v.topic_id AND p.partition = v.partition
"""
_INSERT = b"""
INSERT INTO plain_extents
SELECT topic_id, partition, %(offset)s, %(offset)s + 15, 16, 1, 16, 16, %(file_id)s, 8192, 8192, 0, 0,
       %(offset)s, 0, false, 1, NULL
FROM unnest(%(topic_ids)s, %(partitions)s) AS v (topic_id, partition)
"""


class _PlainRows:
    """Updates and inserts of the rows of a commit in copied tables, in one round trip and one transaction."""

    def __init__(self, url: str, number: int) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None
        self._offset = number * 10**12

    def write(self, file: FileCommit) -> None:
        """Write the rows of one file; after a deadlock, once more."""
        if self._connection is None:
            conninfo = connection_string(self._url, DatabaseLimits())
            self._connection = psycopg.connect(conninfo, autocommit=True)
            self._connection.prepare_threshold = 0
            # A plan for the given number of partitions may scan all of them.
            self._connection.execute(b"SET plan_cache_mode = force_generic_plan")
            arrays.register(self._connection)
        self._offset += RECORDS
        params = {
            "topic_ids": arrays.uuids([each.topic_id for each in file.sections]),
            "partitions": arrays.integers([each.partition for each in file.sections]),
            "offset": self._offset,
            "file_id": file.file_id,
        }
        while not self._write(self._connection, params):
            pass

    @staticmethod
    def _write(connection: psycopg.Connection[Any], params: dict[str, object]) -> bool:
        try:
            with connection.pipeline():
                for statement in (b"BEGIN", _UPDATE, _INSERT, b"COMMIT"):
                    connection.execute(statement, params)
        except psycopg.errors.DeadlockDetected:  # nothing orders the rows of an update
            connection.rollback()
            return False
        return True

    def close(self) -> None:
        """Close the connection; the next `write` opens one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def serve_sessions(pipe: Connection, url: str, topic_ids: Sequence[UUID], numbers: range) -> None:
    """Run the cases that come over `pipe` with the sessions of these numbers; respond with `Taken`."""
    clock = SystemClock()
    ids = SystemIds(clock)
    with ExitStack() as opened:
        sessions = []
        for number in numbers:  # each with separate connections
            catalog = opened.enter_context(open_catalog(url, clock, ids, limits=_PATIENT))
            sessions.append(_Session(catalog, ids, url, topic_ids, number))
        pipe.send(None)
        while (case := pipe.recv()) is not None:
            before = time.process_time()
            active = [each for each, number in zip(sessions, numbers, strict=True) if number < case.sessions]
            run_threads([threading.Thread(target=each.run, args=(case,)) for each in active])
            taken = [seconds for each in active for seconds in each.taken]
            notified = sum(each.notified_bytes for each in active)
            pipe.send(
                Taken(seconds=taken, notified_bytes=notified, processor_seconds=time.process_time() - before)
            )


def serve_watchers(pipe: Connection, url: str, topic_ids: Sequence[UUID], readers: int, apart: int) -> None:
    """Wait for commits with a watcher for each topic; send the processor time for each message.

    The first `readers` of them wait for the first partitions of the topic `apart` places after theirs, the
    others for nothing.
    """
    clock = SystemClock()
    ids = SystemIds(clock)
    stopping = threading.Event()

    def watch(catalog: Catalog, number: int) -> None:
        watcher = catalog.watcher(_origin_of(number))
        topic_id = topic_ids[(number + apart) % len(topic_ids)]
        keys = [PartitionId(topic_id, partition) for partition in range(_READ_PARTITIONS)]
        wanted = frozenset(keys if number < readers else [])
        while not stopping.is_set():
            watcher.wait(_WAIT_SECONDS, wanted)
        watcher.close()

    with open_catalog(url, clock, ids) as catalog:
        threads = [threading.Thread(target=watch, args=(catalog, number)) for number in range(len(topic_ids))]
        for each in threads:
            each.start()
        pipe.send(None)
        while pipe.recv() is not None:
            pipe.send(time.process_time())
        stopping.set()
        for each in threads:
            each.join()


def run_threads(threads: Sequence[threading.Thread]) -> None:
    """Start all threads and wait until they have ended."""
    for each in threads:
        each.start()
    for each in threads:
        each.join()


@contextmanager
def worker(target: object, *arguments: object) -> Iterator[Connection]:
    """Run `target` in a process; yield the pipe to it once it has sent its first message."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=cast("Any", target), args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield ours
        ours.send(None)
        process.join()
    finally:
        process.terminate()
        process.join()
