"""Notifications of commits, and the connection that receives them.

A watcher registers the partitions that it wants in `listened_partitions`, and itself in `commit_listeners`
for a minute at a time. An announcement contains only partitions that a registered watcher wants, and is not
sent if there are none. A watcher of very many partitions registers for all.

Each partition belongs to a bucket, and each bucket has a channel. A watcher listens to the channels of its
partitions. An announcement notifies the channels of up to four buckets. If there are more, it notifies the
one channel of all watchers, because a server process reads every notification and compares its channel with
all of its own. PostgreSQL (up to 18) wakes the server processes of all watchers that listen to any channel.
A watcher that wants nothing listens to none.

A notification is not part of the commit. NOTIFY takes a lock that all transactions of the server share, and
holds it until they are durable, so commits would wait for each other. A separate transaction that waits for
no disk sends it, and one notification may cover many commits.

Notifications are hints. One may arrive twice, or never if the agent dies between commit and notification. A
watcher first listens and then registers, and an announcement follows its commit. So a commit that is not
announced to a new watcher is visible once the watcher has registered: `wait` then reports its new partitions,
and after a (re)connection it reports that any partition may have changed.

A payload is `<origin in hex>!<topic id in hex>:<partition>,<partition>;<topic id>:…`. The origin is the id of
the committing agent, which ignores its own notifications. A payload without partitions means that any
partition may have changed. Agents of the previous release notify the same channels, but look only at the
buckets that watchers register.
"""

from __future__ import annotations

import select
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import UUID

import psycopg
import structlog

from catalog.database import arrays
from catalog.database.connection import first_line
from catalog.database.sql_files import load_queries
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from catalog.database.connection import Connection
    from catalog.database.pool import Database

_log = structlog.get_logger(__name__)
_SQL = load_queries("notifications")

CHANNEL: Final = "siltstone_commits"
BUCKETS: Final = 256
ALL_BUCKETS: Final = frozenset(range(BUCKETS))
LEASE_SECONDS: Final = 60
_RENEW_SECONDS: Final = 20.0
_MAX_CHANNELS: Final = 4
# A payload has less than 8,000 bytes: less than 3,500 bytes of buckets, and one more bucket.
_BYTES_PER_PAYLOAD: Final = 3500
_MAX_PARTITIONS_OF_BUCKET: Final = 75
_MAX_PARTITIONS: Final = 4800
_MAX_NOTIFICATIONS: Final = 10_000
_POLL_SECONDS: Final = 1.0
MAX_REGISTERED: Final = 5000
"""A watcher registers up to so many partitions, which takes about 0.3 s, and otherwise registers for all."""
_NOTHING: Final[frozenset[PartitionId]] = frozenset()


def bucket_of(partition: PartitionId) -> int:
    """Return the bucket of a partition; those of a topic are in different buckets as far as possible."""
    return (partition.topic_id.int + partition.partition) % BUCKETS


def encode_partitions(partitions: Iterable[PartitionId]) -> list[tuple[int, str]]:
    """Return the buckets of `partitions` with their part of a payload, which is empty if it would be long."""
    by_bucket: dict[int, list[PartitionId]] = {}
    distinct = sorted(set(partitions))
    for partition in distinct:
        by_bucket.setdefault(bucket_of(partition), []).append(partition)
    is_short = len(distinct) <= _MAX_PARTITIONS
    return [
        (bucket, _topics_of(some) if is_short and len(some) <= _MAX_PARTITIONS_OF_BUCKET else "")
        for bucket, some in by_bucket.items()
    ]


def _topics_of(partitions: list[PartitionId]) -> str:
    return ";".join(
        f"{topic_id.hex}:{','.join(str(each.partition) for each in group)}"
        for topic_id, group in groupby(partitions, key=attrgetter("topic_id"))
    )


def encode_notifications(partitions: Iterable[PartitionId], origin: UUID) -> list[tuple[str, str]]:
    """Return the channels and payloads that announce commits of `origin` to `partitions`."""
    parts = encode_partitions(partitions)
    prefix = f"{origin.hex}!"
    if len(parts) <= _MAX_CHANNELS:
        return [(channel_of(bucket), prefix + part) for bucket, part in parts]
    if not all(part for _, part in parts):
        return [(CHANNEL, prefix)]
    payloads, size = [[parts[0][1]]], len(parts[0][1])
    for _, part in parts[1:]:
        if size + len(part) > _BYTES_PER_PAYLOAD:
            payloads.append([])
            size = 0
        payloads[-1].append(part)
        size += len(part) + 1
    return [(CHANNEL, prefix + ";".join(payload)) for payload in payloads]


def announce(database: Database, partitions: Iterable[PartitionId], origin: UUID) -> int:
    """Notify the registered watchers of commits by `origin`; return the number of bytes."""
    committed = sorted(set(partitions))
    if not committed:
        return 0
    params = {
        **_columns(committed),
        "buckets": arrays.integers([bucket_of(each) for each in committed]),
        "origin": origin,
        "now_ms": database.injected_now_ms,
    }
    wanted = [committed[row.index] for row in database.read("commits.listened", _SQL["listened"], params)]
    if not wanted:
        return 0
    notifications = encode_notifications(wanted, origin)
    channels, payloads = zip(*notifications, strict=True)
    database.read("commits.announce", _SQL["notify"], {"channels": [*channels], "payloads": [*payloads]})
    return sum(map(len, payloads))


def _columns(partitions: Iterable[PartitionId]) -> dict[str, object]:
    some = list(partitions)
    return {
        "topic_ids": arrays.uuids([each.topic_id for each in some]),
        "partitions": arrays.integers([each.partition for each in some]),
    }


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

    It keeps one connection open while it wants any partition. After a failure, the next `wait` reopens it.
    """

    def __init__(
        self,
        database: Database,
        ignored_origin: UUID | None = None,
        listeners: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        """Take the listeners of other channels: they are called for each notification, in the same thread.

        They are also called after a (re)connection, because notifications may be lost.
        """
        self._listeners = listeners or {}
        self._database = database
        self._ignored_origin = ignored_origin
        self._listener_id = ignored_origin or database.new_uuid()
        self._connection: Connection | None = None
        self._buckets: frozenset[int] = frozenset()
        self._wanted: frozenset[PartitionId] | None = frozenset()  # as registered; None: all
        self._is_registered = False
        self._registered_at = 0.0
        self._polled_at: float | None = None

    def wait(
        self, timeout: float, wanted: frozenset[PartitionId] | None = None
    ) -> frozenset[PartitionId] | None:
        """Wait up to `timeout` seconds for commits to the partitions `wanted`; return what may have changed.

        All partitions are wanted if it is None, and if there are more than MAX_REGISTERED of them. The result
        is None if any partition may have changed: after a (re)connection, and after a commit of very many
        partitions. Through a pooler, which passes no notifications on, it is None once a second.
        CatalogUnavailableError: the connection was lost or cannot be opened.
        """
        if wanted is not None and len(wanted) > MAX_REGISTERED:
            wanted = None
        if self._polled_at is not None:
            return self._poll(self._polled_at, timeout)
        if wanted is not None and not wanted and not self._listeners:
            self.close()
            self._database.machine_clock.sleep(timeout)
            return _NOTHING
        try:
            if self._connection is None:
                self._connection = self._connect()
                if self._connection is not None:
                    self._listen_to_others(self._connection)
                    self._register(self._connection, wanted)
                    self._received(
                        self._connection
                    )  # psycopg has them already, so the socket is not readable
                return None
            is_old = self._database.machine_clock.monotonic() - self._registered_at > _RENEW_SECONDS
            is_covered = self._wanted is None or (wanted is not None and wanted <= self._wanted)
            if is_old or not is_covered:
                return self._renew(self._connection, wanted)
            return self._received(self._connection) if _is_readable(self._connection, timeout) else _NOTHING
        except psycopg.OperationalError as error:
            self.close()
            raise CatalogUnavailableError(
                f"notifications from the catalog at {self._database.address} stopped: {first_line(error)}",
                remedy="check that PostgreSQL runs there",
                retry_after_seconds=1.0,
            ) from error
        except BaseException:
            self.close()  # the channels may be those of a registration that was rolled back
            raise

    def close(self) -> None:
        """Close the connection; a later `wait` opens a new one."""
        connection, self._connection = self._connection, None
        self._buckets, self._wanted, self._is_registered = frozenset(), frozenset(), False
        if connection is not None:
            connection.close()

    def _received(self, connection: Connection) -> frozenset[PartitionId] | None:
        """Return the partitions of all notifications that have arrived."""
        notifications = list(connection.notifies(timeout=0, stop_after=_MAX_NOTIFICATIONS))
        for channel in self._listeners.keys() & {each.channel for each in notifications}:
            self._listeners[channel]()
        changed: set[PartitionId] = set()
        for each in notifications:
            if each.channel in self._listeners:
                continue
            origin, partitions = decode_partitions(each.payload)
            if origin is not None and origin == self._ignored_origin:
                continue
            if partitions is None:
                return None
            changed |= partitions
        return frozenset(changed)

    def _poll(self, last: float, timeout: float) -> frozenset[PartitionId] | None:
        """Sleep; report that any partition may have changed if the last such report is a second old."""
        clock = self._database.machine_clock
        clock.sleep(timeout)
        if clock.monotonic() - last < _POLL_SECONDS:
            return _NOTHING
        self._polled_at = clock.monotonic()
        return None

    def _connect(self) -> Connection | None:
        connection = self._database.connect_for_notifications()
        if connection is None:
            self._polled_at = self._database.machine_clock.monotonic()
            _log.warning(
                "the pooler before the catalog passes no notifications on: this agent sees commits of others "
                "up to a second late",
                catalog=self._database.address,
                remedy="set catalog_listen_url to the address of PostgreSQL itself",
            )
        return connection

    def _renew(
        self, connection: Connection, wanted: frozenset[PartitionId] | None
    ) -> frozenset[PartitionId] | None:
        """Listen to other partitions, and renew the registration.

        Return the new partitions, and those of what psycopg received meanwhile; None if some may be lost.
        """
        before = self._wanted
        is_complete = self._register(connection, wanted)
        changes = self._received(connection)
        if changes is None or not is_complete or (wanted is None and before is not None):
            return None
        return changes if wanted is None or before is None else changes | (wanted - before)

    def _listen_to_others(self, connection: Connection) -> None:
        """Listen to the channels of the listeners, and call each, because it may have missed something."""
        for channel, listener in self._listeners.items():
            connection.execute(f"LISTEN {channel}".encode())
            listener()

    def _register(self, connection: Connection, wanted: frozenset[PartitionId] | None) -> bool:
        """Listen first, and register then; return False if notifications may be lost.

        They are lost if the last registration has expired before this one is committed. The catalog's clock
        decides. This machine's clock includes the time that the registration took.
        """
        clock = self._database.machine_clock
        registered_at = clock.monotonic()
        buckets = ALL_BUCKETS if wanted is None else frozenset(map(bucket_of, wanted))
        self._listen(connection, buckets)
        params: dict[str, object] = {
            "listener_id": self._listener_id,
            "buckets": "".join("01"[bucket in buckets] for bucket in range(BUCKETS)),
            "is_exact": wanted is not None,
            "now_ms": self._database.injected_now_ms,
            "lease_ms": LEASE_SECONDS * 1000,
        }
        with connection.transaction():
            row = connection.execute(_SQL["register_listener"].sql, params).fetchone()
            assert row is not None
            is_new, is_expired = row
            is_known = self._is_registered and not is_new
            self._replace_partitions(connection, self._wanted if is_known else None, wanted)
        is_complete = not is_expired and clock.monotonic() - self._registered_at <= LEASE_SECONDS
        is_lost = self._is_registered and (is_new or not is_complete)
        self._wanted, self._is_registered, self._registered_at = wanted, True, registered_at
        return not is_lost

    def _listen(self, connection: Connection, buckets: frozenset[int]) -> None:
        statements = [f"LISTEN {channel_of(bucket)}" for bucket in sorted(buckets - self._buckets)]
        statements += [f"UNLISTEN {channel_of(bucket)}" for bucket in sorted(self._buckets - buckets)]
        if not self._is_registered:
            statements.append(f"LISTEN {CHANNEL}")
        if statements:
            connection.execute(";".join(statements).encode())
        self._buckets = buckets

    def _replace_partitions(
        self,
        connection: Connection,
        before: frozenset[PartitionId] | None,
        after: frozenset[PartitionId] | None,
    ) -> None:
        """Change the registered partitions; `before` is None if they are not known."""
        if before is None or after is None:
            connection.execute(_SQL["forget_all_partitions"].sql, {"listener_id": self._listener_id})
            before = frozenset()
        wanted = after or frozenset()
        for query, some in (
            (_SQL["forget_partitions"], before - wanted),
            (_SQL["register_partitions"], wanted - before),
        ):
            if some:
                params = {**_columns(sorted(some)), "listener_id": self._listener_id}
                connection.execute(query.sql, params)


def channel_of(bucket: int) -> str:
    """Return the channel on which commits to the partitions of a bucket are notified."""
    return f"{CHANNEL}_{bucket}"
