"""The shards of a catalog: databases with today's schema, each with the topics that were created in it.

Sessions are registered in every shard, because a commit locks its session in its own transaction. A topic
belongs to the shard that has its row, for ever.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from catalog.database.limits import DatabaseLimits
from catalog.database.pool import Database
from catalog.database.sql_files import load_queries
from catalog.errors import TopicNotFoundError
from catalog.lifecycle.expiry import COMMIT_RESULT_RETENTION_MS
from catalog.model import FileFormat, FileKind
from catalog.open import Catalog
from catalog.rows import format_params

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self
    from uuid import UUID

    from catalog.database.pool import Transaction
    from catalog.model import Topic
    from core.clock import Clock
    from core.ids import Ids

__all__ = ["Shard", "Shards", "open_shards"]

_COMMIT = load_queries("commit")
_DELETIONS = load_queries("deletions")
_VOIDED: Final = b"[]"
"""Stored result of a voided part: it fits no commit, so a late one is refused."""


class Shard:
    """One shard: its number, its catalog, and the transaction that today's catalog lacks."""

    def __init__(self, number: int, database: Database, catalog: Catalog) -> None:
        self.number = number
        self.catalog = catalog
        self._database = database

    def void(
        self,
        file_id: UUID,
        object_name: str,
        size: int,
        session_id: UUID,
        closed_before_ms: int | None = None,
    ) -> bool:
        """Make the part of a file dead in this shard unless it was committed; return False if it must wait.

        From then on no commit of the part succeeds. The agent of the file may do so at any time. Any other
        process gives `closed_before_ms`: the session must have closed before, and nothing of it may be lost.
        """
        params = {
            "file_id": file_id,
            "session_id": session_id,
            "owner_id": session_id,
            "before_ms": closed_before_ms,
            "object_names": [object_name],
        }

        def work(transaction: Transaction) -> bool:
            now_ms = transaction.now_ms()
            transaction.send(_DELETIONS["require_durability"])
            transaction.send(_COMMIT["lock_file_id"], params)
            self.catalog.incarnations.check(transaction)
            if closed_before_ms is not None and not transaction.rows(
                _DELETIONS["lock_ended_session"], params
            ):
                return False
            if transaction.rows(_COMMIT["find_result"], params):
                return True
            if closed_before_ms is not None and transaction.rows(_DELETIONS["find_files"], params):
                return False  # a lost commit that waits to be made again
            dead = {
                **params,
                **format_params(FileFormat()),
                "object_name": object_name,
                "kind": FileKind.INGESTION.value,
                "size": size,
                "directory_length": 0,
                "now_ms": now_ms,
                "extents": 0,
                "initial_bytes": 0,
                "live_bytes": 0,
                "sections": _VOIDED,
                "expired_before_ms": now_ms - COMMIT_RESULT_RETENTION_MS,
                "max_expired": 0,
            }
            transaction.send(_COMMIT["insert_file"], dead)
            transaction.send(_COMMIT["insert_result"], dead)
            return True

        return self._database.transact("sharded.void", work)


class Shards:
    """All shards by number; a context manager. Thread-safe."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = tuple(shards)
        self._lock = threading.Lock()
        self._shard_of_topic: dict[UUID, Shard] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as closing:
            for shard in self._shards:
                closing.callback(shard.catalog.close)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards)

    def __getitem__(self, number: int) -> Shard:
        return self._shards[number]

    def __len__(self) -> int:
        return len(self._shards)

    def create_topic(
        self, shard: int, name: str, partition_count: int, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic in a shard; the caller keeps names unique, which a directory would do."""
        topic = self[shard].catalog.topics.create(name, partition_count, config)
        with self._lock:
            self._shard_of_topic[topic.topic_id] = self[shard]
        return topic

    def shard_of(self, topic_id: UUID) -> Shard:
        """Return the shard of a topic; an unknown one is looked up once, in all shards."""
        with self._lock:
            known = self._shard_of_topic.get(topic_id)
        if known is not None:
            return known
        for shard in self._shards:
            try:
                shard.catalog.topics.by_id(topic_id)
            except TopicNotFoundError:
                continue
            with self._lock:
                self._shard_of_topic[topic_id] = shard
            return shard
        raise TopicNotFoundError(f"no shard has a topic with identifier {topic_id}")

    def register(self, session_id: UUID, description: str) -> None:
        """Register a session in all shards."""
        for shard in self._shards:
            shard.catalog.sessions.register(session_id, description)

    def fence(self, session_id: UUID) -> None:
        """Fence a session in all shards."""
        for shard in self._shards:
            shard.catalog.sessions.fence(session_id)


def open_shards(
    urls: Sequence[str], clock: Clock, ids: Ids, *, limits: DatabaseLimits | None = None
) -> Shards:
    """Open the shards at these URLs, in the order of their numbers; each has the current schema."""
    limits = limits or DatabaseLimits()
    shards = []
    for number, url in enumerate(urls):
        database = Database(url, clock, ids, limits)
        shards.append(Shard(number, database, Catalog(database, clock, ids)))
    return Shards(shards)
