"""What an agent tells those who wait at the tail after its commits, and the connection that hears it.

Telling is no part of the commit: NOTIFY takes a lock that all transactions of the server share and holds it
until they are durable, so that commits would queue up behind each other. It is a transaction of its own,
which waits for no disk, and may tell of many commits at once. A notification is a hint: it may come twice, or
never (when the agent dies between both), and after a lost connection what was missed is reported as
"anything".

A payload is `<origin in hex>!<topic id in hex>:<partition>,<partition>;<topic id>:…`. The origin is whoever
committed, who need not hear of it again. Without partitions it says that anything may have changed.
"""

from __future__ import annotations

import select
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import UUID

import psycopg

from catalog.database.connection import first_line
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catalog.database.connection import Connection
    from catalog.database.pool import Database

CHANNEL: Final = "siltstone_commits"
# NOTIFY takes less than 8,000 bytes: this many partitions fit, whatever their topics and numbers.
_PARTITIONS_AT_ONCE: Final = 150
_MAX_PAYLOADS: Final = 32
_BATCH: Final = 10_000


def encode_partitions(partitions: Iterable[PartitionId], origin: UUID) -> list[str]:
    """The payloads that name `partitions`; one that names none when there are too many."""
    rest = iter(sorted(partitions))
    payloads: list[str] = []
    while some := list(islice(rest, _PARTITIONS_AT_ONCE)):
        if len(payloads) == _MAX_PAYLOADS:
            return [f"{origin.hex}!"]
        groups = groupby(some, key=attrgetter("topic_id"))
        named = (
            f"{topic_id.hex}:{','.join(str(each.partition) for each in group)}" for topic_id, group in groups
        )
        payloads.append(f"{origin.hex}!{';'.join(named)}")
    return payloads


def decode_partitions(payload: str) -> tuple[UUID | None, frozenset[PartitionId] | None]:
    """Origin and partitions of a payload; None for partitions means that anything may have changed."""
    try:
        origin, _, named = payload.rpartition("!")
        partitions = (
            frozenset(
                PartitionId(UUID(hex=topic), int(number))
                for topic, _, numbers in (group.partition(":") for group in named.split(";"))
                for number in numbers.split(",")
            )
            if named
            else None
        )
        return UUID(hex=origin) if origin else None, partitions
    except ValueError:
        return None, None


def _is_readable(connection: Connection, timeout: float) -> bool:
    """Whether the server says something, or has gone, within `timeout` seconds.

    psycopg could wait as well; its last millisecond is spent in a busy loop.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(timeout * 1000))


class CommitWatcher:
    """Hears of commits that are announced, by whatever process; to be used from one thread.

    It holds a connection of its own, made at the first `wait` and again whenever it was lost. What `deaf_to`
    announces is not reported.
    """

    def __init__(self, database: Database, deaf_to: UUID | None = None) -> None:
        self._database = database
        self._deaf_to = deaf_to
        self._connection: Connection | None = None

    def wait(self, timeout: float) -> frozenset[PartitionId] | None:
        """Partitions that something was committed to, at the latest after `timeout` seconds.

        An empty set says that nothing was; None that anything may have been: after connecting anew, and
        after a commit of very many partitions. CatalogUnavailableError when there is no connection to be had.
        """
        try:
            if self._connection is None:
                self._connection = self._listen()
                return None
            if not _is_readable(self._connection, timeout):
                return frozenset()
            payloads = [notify.payload for notify in self._connection.notifies(timeout=0, stop_after=_BATCH)]
        except psycopg.OperationalError as error:
            self.close()
            raise CatalogUnavailableError(
                f"notifications from the catalog at {self._database.address} stopped: {first_line(error)}",
                remedy="check that PostgreSQL runs there",
                retry_after_seconds=1.0,
            ) from error
        changed: set[PartitionId] = set()
        for payload in payloads:
            origin, partitions = decode_partitions(payload)
            if origin is not None and origin == self._deaf_to:
                continue
            if partitions is None:
                return None
            changed |= partitions
        return frozenset(changed)

    def close(self) -> None:
        """Let go of the connection; a later `wait` makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _listen(self) -> Connection:
        connection = psycopg.connect(self._database.conninfo, autocommit=True)
        try:
            connection.execute(f"LISTEN {CHANNEL}".encode())
        except BaseException:
            connection.close()
            raise
        return connection
