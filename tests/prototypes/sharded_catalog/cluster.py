"""A cluster for tests: shards in databases of the test server, a local store, and an agent's session."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict

from catalog.commit.results import appended_range
from catalog.database.connection import SCHEMA
from catalog.model import FileCommit, PartitionId, SectionCommit
from core.clock import ManualClock, SystemClock
from core.ids import SeededIds
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from prototypes.sharded_catalog import ShardedCommits, ShardedGarbage, open_shards, sharded_name
from tests.catalog.scene import advance_log_start, run_of, runs_of
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self
    from uuid import UUID

    from catalog.model import BatchRun, SectionResult
    from catalog.open import Catalog
    from maintenance.report import MaintenanceReport

GRACE_MS = 60_000
KEEP_MS = 600_000
_HOURS = 3600.0
BODY = b"sections of several shards"
_IMPATIENT = replace(PATIENT, retry_seconds=0.0)
RECORDS = 5


@dataclass
class Cluster:
    """Shards with one topic each. `retry_seconds` is how long a queue retries a commit."""

    urls: Sequence[str]
    directory: Path
    retry_seconds: float = 0.0
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.ids = SeededIds(1, self.clock)
        self.shards = open_shards(self.urls, self.clock, self.ids, limits=_IMPATIENT)
        self.store = LocalStore(self.directory, self.ids)
        self.commits = ShardedCommits(self.shards, SystemClock(), self.ids, retry_seconds=self.retry_seconds)
        self.garbage = ShardedGarbage(self.shards, self.store, grace_ms=GRACE_MS, owner_keep_ms=KEEP_MS)
        self.topics = [
            self.shards.create_topic(shard.number, f"topic-{shard.number}", 2).topic_id
            for shard in self.shards
        ]
        self.begin_session()

    def begin_session(self) -> None:
        """Register a session; later files belong to it."""
        self.session_id = self.ids.new_uuid()
        self.shards.register(self.session_id, "a test")

    def catalog(self, shard: int) -> Catalog:
        """Return the catalog of a shard."""
        return self.shards[shard].catalog

    def file(self, *shards: int, runs: Mapping[int, Sequence[BatchRun]] | None = None) -> FileCommit:
        """Write the object of a file with one section in each of these shards; return its commit."""
        file_id = self.ids.new_uuid()
        name = sharded_name(self.session_id, file_id, shards)
        self.store.put(name, [BODY], purpose=Purpose.INGEST)
        topic_ids = [self.topics[shard] for shard in shards]
        by_topic = {self.topics[shard]: each for shard, each in (runs or {}).items()}
        return file_of(self.session_id, name, file_id, topic_ids, by_topic)

    def commit_part(self, commit: FileCommit, shard: int) -> tuple[SectionResult, ...]:
        """Commit the part of a file in one shard, as an agent does that dies before the next one."""
        (part,) = (each for each in self.commits.parts_of(commit) if each.shard.number == shard)
        return self.catalog(shard).commits.commit(part.commit)

    def expire(self, shard: int) -> None:
        """Remove all records of a shard's partition, as retention does."""
        key = PartitionId(self.topics[shard], 0)
        advance_log_start(self.catalog(shard).retention, key.topic_id, key.partition, 10**9)
        self.catalog(shard).retention.remove_expired(key.topic_id, key.partition)

    def collect(self) -> MaintenanceReport:
        """Let the grace period and all pauses pass, then run a round."""
        self.clock.advance(7 * _HOURS)
        return self.garbage.collect()

    def exists(self, commit: FileCommit) -> bool:
        """Return True if the object of a file exists."""
        return any(self.store.list(commit.object_name, purpose=Purpose.GC))

    def records(self, shard: int) -> list[tuple[UUID, int, int]]:
        """Return file, first and last offset of each extent in a shard's partition."""
        extents = self.catalog(shard).extents.from_offset(self.topics[shard], 0, 0, max_extents=10_000)
        return [(each.file_id, each.base_offset, each.last_offset) for each in extents]

    def rows(self, shard: int) -> list[UUID]:
        """Return the ids of all file rows of a shard."""
        return [file.file_id for file in self.catalog(shard).garbage.known_files()]

    def close(self) -> None:
        """Close everything."""
        self.commits.close()
        self.shards.__exit__(None, None, None)
        self.store.close()


def file_of(
    session_id: UUID,
    object_name: str,
    file_id: UUID,
    topic_ids: Iterable[UUID],
    runs: Mapping[UUID, Sequence[BatchRun]] | None = None,
) -> FileCommit:
    """Return a file with one section for each topic."""
    return FileCommit(
        file_id=file_id,
        object_name=object_name,
        size=len(BODY),
        directory_length=32,
        session_id=session_id,
        sections=tuple(
            SectionCommit(
                topic_id=topic_id,
                partition=0,
                position=100 * number,
                length=100,
                runs=runs_of(*(runs or {}).get(topic_id, [run_of(RECORDS)])),
            )
            for number, topic_id in enumerate(topic_ids)
        ),
    )


def ranges(commit: FileCommit, results: Sequence[SectionResult]) -> list[tuple[int, int]]:
    """Return the offsets that a commit appended, by section."""
    found = (appended_range(*each) for each in zip(commit.sections, (r.runs for r in results), strict=True))
    return [(each.base_offset, each.end_offset) for each in found if each is not None]


def empty(url: str) -> None:
    """Remove all rows that tests insert into a catalog."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {SCHEMA}".encode())
        connection.execute(b"TRUNCATE topics, files, sessions, extents, commit_results, producers CASCADE")


class Switch:
    """Lets the server refuse or accept all connections to one database; accepts them at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = str(conninfo_to_dict(url)["dbname"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.turn_on()

    def turn_off(self) -> None:
        """End the connections to the database, and refuse new ones."""
        self._execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
        self._execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'"
        )

    def turn_on(self) -> None:
        """Accept connections again."""
        self._execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._url, dbname="postgres", autocommit=True) as connection:
            connection.execute(statement.encode())
