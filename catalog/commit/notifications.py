"""Notifications of commits, and the connection that receives them.

A notification is not part of the commit. NOTIFY takes a lock that all transactions of the server share, and
holds it until they are durable, so commits would wait for each other. A separate
transaction that waits for no disk sends it, and one notification may cover many commits.

Notifications are hints. One may arrive twice, or never if the agent dies between commit and notification.
After a lost connection, the watcher reports that any partition may have changed.

A payload is `<origin in hex>!<topic id in hex>:<partition>,<partition>;<topic id>:…`. The origin is the id of
the committing agent, which ignores its own notifications. A payload without partitions means that any
partition may have changed.
"""

from __future__ import annotations

import select
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import UUID

import psycopg
import structlog

from catalog.database.connection import first_line
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catalog.database.connection import Connection
    from catalog.database.pool import Database

_log = structlog.get_logger(__name__)

CHANNEL: Final = "siltstone_commits"
# A payload has less than 8,000 bytes: this many partitions always fit.
_PARTITIONS_PER_PAYLOAD: Final = 150
_MAX_PAYLOADS: Final = 32
_MAX_NOTIFICATIONS: Final = 10_000
_POLL_SECONDS: Final = 1.0


def encode_partitions(partitions: Iterable[PartitionId], origin: UUID) -> list[str]:
    """Return the payloads for `partitions`; a single one without partitions if there are too many."""
    rest = iter(sorted(partitions))
    payloads: list[str] = []
    while chunk := list(islice(rest, _PARTITIONS_PER_PAYLOAD)):
        if len(payloads) == _MAX_PAYLOADS:
            return [f"{origin.hex}!"]
        groups = groupby(chunk, key=attrgetter("topic_id"))
        topics = (
            f"{topic_id.hex}:{','.join(str(each.partition) for each in group)}" for topic_id, group in groups
        )
        payloads.append(f"{origin.hex}!{';'.join(topics)}")
    return payloads


def decode_partitions(payload: str) -> tuple[UUID | None, frozenset[PartitionId] | None]:
    """Return origin and partitions of a payload; partitions are None if any may have changed.

    A malformed payload gives (None, None).
    """
    try:
        origin, _, topics = payload.rpartition("!")
        partitions = (
            frozenset(
                PartitionId(UUID(hex=topic), int(number))
                for topic, _, numbers in (group.partition(":") for group in topics.split(";"))
                for number in numbers.split(",")
            )
            if topics
            else None
        )
        return UUID(hex=origin) if origin else None, partitions
    except ValueError:
        return None, None


def _is_readable(connection: Connection, timeout: float) -> bool:
    """Return True if the server sends data, or closes the connection, within `timeout` seconds.

    psycopg can wait, too, but it spends the last millisecond in a busy loop.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(timeout * 1000))


class CommitWatcher:
    """Receiver of commit notifications of all processes except `ignored_origin`; for use by one thread.

    The first `wait` opens a separate connection; after a failure, the next `wait` reopens it.
    """

    def __init__(self, database: Database, ignored_origin: UUID | None = None) -> None:
        self._database = database
        self._ignored_origin = ignored_origin
        self._connection: Connection | None = None
        self._polled_at: float | None = None

    def wait(self, timeout: float) -> frozenset[PartitionId] | None:
        """Wait up to `timeout` seconds for commits; return the partitions that changed.

        The result is None if any partition may have changed: after a (re)connection, and after a commit of
        very many partitions. Through a pooler, which passes no notifications on, it is None once a second.
        CatalogUnavailableError: the connection was lost or cannot be opened.
        """
        if self._polled_at is not None:
            return self._poll(self._polled_at, timeout)
        try:
            if self._connection is None:
                self._connection = self._listen()
                return None
            if not _is_readable(self._connection, timeout):
                return frozenset()
            notifications = self._connection.notifies(timeout=0, stop_after=_MAX_NOTIFICATIONS)
            payloads = [each.payload for each in notifications]
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
            if origin is not None and origin == self._ignored_origin:
                continue
            if partitions is None:
                return None
            changed |= partitions
        return frozenset(changed)

    def close(self) -> None:
        """Close the connection; a later `wait` opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _poll(self, last: float, timeout: float) -> frozenset[PartitionId] | None:
        """Sleep; report that any partition may have changed if the last such report is a second old."""
        clock = self._database.machine_clock
        clock.sleep(timeout)
        if clock.monotonic() - last < _POLL_SECONDS:
            return frozenset()
        self._polled_at = clock.monotonic()
        return None

    def _listen(self) -> Connection | None:
        connection = self._database.connect_for_notifications()
        if connection is None:
            self._polled_at = self._database.machine_clock.monotonic()
            _log.warning(
                "the pooler before the catalog passes no notifications on: this agent sees commits of others "
                "up to a second late",
                catalog=self._database.address,
                remedy="set catalog_listen_url to the address of PostgreSQL itself",
            )
            return None
        try:
            connection.execute(f"LISTEN {CHANNEL}".encode())
        except BaseException:
            connection.close()
            raise
        return connection
