"""What a commit tells those who wait at the tail, and the connection that hears it.

The payload names partitions, `<topic id in hex>:<partition>,<partition>;<topic id>:…`, or is empty when that
would be too long for NOTIFY (8,000 bytes): then anything may have changed. A notification is a hint: it may
come twice, and after a lost connection some never come, which is reported as "anything".
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final
from uuid import UUID

import psycopg

from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catalog.database import Connection, Database

CHANNEL: Final = "siltstone_commits"
_LONGEST_PAYLOAD: Final = 7900
_BATCH: Final = 10_000


def encode_partitions(partitions: Iterable[tuple[UUID, int]]) -> str:
    """The payload that names `partitions`, most compact in section order; empty when there are too many."""
    groups = groupby(partitions, key=itemgetter(0))
    payload = ";".join(
        f"{topic_id.hex}:{','.join([str(number) for _, number in group])}" for topic_id, group in groups
    )
    return payload if len(payload) <= _LONGEST_PAYLOAD else ""


def decode_partitions(payload: str) -> frozenset[PartitionId] | None:
    """The partitions that a payload names; None means that anything may have changed."""
    if not payload:
        return None
    try:
        return frozenset(
            PartitionId(UUID(hex=topic), int(number))
            for topic, _, numbers in (group.partition(":") for group in payload.split(";"))
            for number in numbers.split(",")
        )
    except ValueError:
        return None


class CommitWatcher:
    """Hears of commits, of this process and of all others; to be used from one thread.

    It holds a connection of its own, made at the first `wait` and again whenever it was lost.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
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
            payloads = [notify.payload for notify in self._connection.notifies(timeout=timeout, stop_after=1)]
            payloads += [notify.payload for notify in self._connection.notifies(timeout=0, stop_after=_BATCH)]
        except psycopg.OperationalError as error:
            self.close()
            raise CatalogUnavailableError(
                f"notifications from the catalog at {self._database.address} stopped: {str(error).strip()}",
                remedy="wait again: that connects anew",
                retry_after_seconds=1.0,
            ) from error
        changed: set[PartitionId] = set()
        for payload in payloads:
            partitions = decode_partitions(payload)
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
