"""Properties of the catalog's server that decide whether an acknowledgement is durable.

Each new connection is checked. The synchronous_commit that was found becomes that of the session, so that a
later reload of the server's configuration does not weaken open connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from catalog.database.sql_files import load_queries
from catalog.errors import UnsafeCommitsError

if TYPE_CHECKING:
    from catalog.database.connection import Connection

_SQL = load_queries("server")
_NOT_DURABLE: Final = frozenset({"off", "local"})
_log = structlog.get_logger(__name__)


class DurabilityCheck:
    """Check of every new connection of one process; thread-safe.

    `unsafe` are the settings that the last connection had and that risk acknowledged records.
    """

    def __init__(self, address: str, *, allow_unsafe_commits: bool) -> None:
        self._address = address
        self._allow_unsafe_commits = allow_unsafe_commits
        self.unsafe: tuple[str, ...] = ()

    def check(self, connection: Connection) -> None:
        """Raise UnsafeCommitsError if commits may be lost although they were acknowledged.

        PostgreSQL's own durability on its disk (fsync, full_page_writes) only causes a warning, because some
        storage makes it unnecessary.
        """
        row = connection.execute(_SQL["pin_durability"].sql).fetchone()
        assert row is not None
        synchronous_commit, fsync, full_page_writes = row
        unsafe = [
            f"{name}={value}"
            for name, value, is_unsafe in (
                ("synchronous_commit", synchronous_commit, synchronous_commit in _NOT_DURABLE),
                ("fsync", fsync, fsync == "off"),
                ("full_page_writes", full_page_writes, full_page_writes == "off"),
            )
            if is_unsafe
        ]
        if synchronous_commit in _NOT_DURABLE and not self._allow_unsafe_commits:
            raise UnsafeCommitsError(
                f"the catalog at {self._address} has synchronous_commit={synchronous_commit}: "
                "a crash or a failover could lose acknowledged records",
                remedy="set synchronous_commit to on for the server, the database, the role and the URL, "
                "or accept the loss with allow_unsafe_commits",
                retry_after_seconds=1.0,
            )
        if tuple(unsafe) != self.unsafe:
            self.unsafe = tuple(unsafe)
            if unsafe:
                _log.warning("a crash may lose acknowledged records", catalog=self._address, settings=unsafe)
