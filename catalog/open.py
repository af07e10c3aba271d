"""The door to the catalog: opens it, makes its schema, and gives its parts under one name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from catalog.commit.log import Log
from catalog.commit.notifications import CommitWatcher
from catalog.commit.producers import Producers
from catalog.database.connection import DatabaseLimits
from catalog.database.embedded_server import EmbeddedPostgres
from catalog.database.migrations import check_schema, migrate
from catalog.database.pool import Database
from catalog.database.server_clock import CatalogClock
from catalog.database.store_binding import ObjectHome
from catalog.groups.config_repository import GroupConfigs
from catalog.groups.offsets import Offsets
from catalog.groups.repository import Groups
from catalog.jobs.planning_queries import Planning
from catalog.jobs.quarantine import Suspects
from catalog.jobs.repository import Jobs
from catalog.lifecycle.brokers import Brokers
from catalog.lifecycle.expiry import Forgetting
from catalog.lifecycle.garbage import Garbage
from catalog.lifecycle.history import History
from catalog.lifecycle.repair import Repair
from catalog.lifecycle.retention import Retention
from catalog.lifecycle.sessions import Sessions
from catalog.topics.local_leaders import LocalLeaders
from catalog.topics.repository import Topics

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self
    from uuid import UUID

    from catalog.database.operation_counts import OperationCount
    from core.clock import Clock
    from core.ids import Ids

__all__ = ["Catalog", "DatabaseLimits", "EmbeddedPostgres", "open_catalog"]


class Catalog:
    """What bytes of which objects hold which offsets; a context manager.

    Every call blocks, is one transaction or one query, has timeouts, and may come from any thread. Errors are
    those of `catalog.errors`.
    """

    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self.clock: Clock = CatalogClock(database, clock)
        self.home = ObjectHome(database)
        self.garbage = Garbage(database)
        self.topics = Topics(database, ids, self.garbage)
        self.sessions = Sessions(database)
        self.log = Log(database)
        self.jobs = Jobs(database, ids)
        self.planning = Planning(database)
        self.history = History(database)
        self.retention = Retention(database)
        self.repair = Repair(database)
        self.brokers = Brokers(database)
        self.forgetting = Forgetting(database)
        self.suspects = Suspects(database)
        self.producers = Producers(database)
        self.groups = Groups(database, clock)
        self.group_configs = GroupConfigs(database)
        self.local_leaders = LocalLeaders(database)
        self.offsets = Offsets(database)

    @override
    def __repr__(self) -> str:
        return f"Catalog({self._database.address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def watcher(self, deaf_to: UUID | None = None) -> CommitWatcher:
        """A new watcher of commits but those that `deaf_to` announces, with its own connection; close it."""
        return CommitWatcher(self._database, deaf_to)

    def operation_counts(self) -> dict[str, OperationCount]:
        """How often each operation ran, how long it took, how often it was repeated or failed."""
        return self._database.counts.snapshot()

    def close(self) -> None:
        """Let go of the connections."""
        self._database.close()


def open_catalog(
    url: str, clock: Clock, ids: Ids, *, migrate_schema: bool = True, limits: DatabaseLimits | None = None
) -> Catalog:
    """The catalog in the database at `url` (`postgresql://…`).

    An empty database gets the schema and an older one is brought up to date, unless `migrate_schema` is
    False: then SchemaVersionError says what is amiss, as it does for a schema newer than this code.
    CatalogUnavailableError when nobody answers, CatalogAddressError for an address that makes no sense.
    """
    database = Database(url, clock, ids, limits)
    try:
        if migrate_schema:
            migrate(database)
        else:
            check_schema(database)
    except BaseException:
        database.close()
        raise
    return Catalog(database, clock, ids)
