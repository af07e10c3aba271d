"""Entry point of the catalog: opens or migrates a database, and groups all repositories."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from typing_extensions import override

from catalog.commit.notifications import CommitWatcher
from catalog.commit.producers import Producers
from catalog.commit.repository import Commits
from catalog.config.client_quotas import ClientQuotas
from catalog.config.repository import BrokerConfigs, GroupConfigs
from catalog.database.embedded.server import EmbeddedPostgres
from catalog.database.limits import DatabaseLimits
from catalog.database.migrations import MigrationPlan, Migrator, ignore_progress, read_version
from catalog.database.pool import Database, Reserve
from catalog.database.probe import CatalogProbe
from catalog.database.schema_version import SchemaVersion, check_schema_version
from catalog.database.server_state import ServerState
from catalog.database.store_binding import StoreBindingRepository
from catalog.groups.offsets import GroupOffsets
from catalog.groups.repository import Groups
from catalog.jobs.circuit_breaker import CircuitBreaker
from catalog.jobs.looks import Looks
from catalog.jobs.planning_queries import Planning
from catalog.jobs.quarantine import Quarantine
from catalog.jobs.repository import Jobs
from catalog.lifecycle.deletions import Deletions
from catalog.lifecycle.expiry import Expiry
from catalog.lifecycle.garbage import Garbage
from catalog.lifecycle.incarnation import Incarnations
from catalog.lifecycle.leases import Leases
from catalog.lifecycle.lost_commits import LostCommits
from catalog.lifecycle.repair import Repair
from catalog.lifecycle.retention import Retention
from catalog.lifecycle.sessions import Brokers, Sessions
from catalog.security.acls import Acls
from catalog.security.users import Users
from catalog.topics.extents import Extents
from catalog.topics.history import TopicHistory
from catalog.topics.leader_epochs import LeaderEpochs
from catalog.topics.local_leaders import LocalLeaders
from catalog.topics.repository import Topics
from catalog.transactions.local_partitions import LocalPartitions
from catalog.transactions.logged_batches import LoggedBatches
from catalog.transactions.lookups import TransactionLookups
from catalog.transactions.repository import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self
    from uuid import UUID

    from catalog.database.pool import OperationCount
    from core.clock import Clock
    from core.ids import Ids

__all__ = [
    "Catalog",
    "DatabaseLimits",
    "EmbeddedPostgres",
    "MigrationPlan",
    "Reserve",
    "SchemaVersion",
    "migrate_catalog",
    "open_catalog",
    "plan_migration",
]


class Catalog:
    """Metadata of the log: topics, extents, jobs, groups and sessions; a context manager.

    Every call blocks, has timeouts, and is one transaction or one query. All methods are thread-safe and
    raise the errors of `catalog.errors`.
    """

    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self.clock: Clock = CatalogClock(database, clock)
        self.store_binding = StoreBindingRepository(database)
        self.incarnations = Incarnations(database)
        self.garbage = Garbage(database, self.incarnations)
        self.topics = Topics(database, ids, self.incarnations)
        self.topic_history = TopicHistory(database)
        self.extents = Extents(database)
        self.local_leaders = LocalLeaders(database, self.incarnations)
        self.leader_epochs = LeaderEpochs(database)
        self.server = ServerState(database)
        self.sessions = Sessions(database, self.incarnations, self.server)
        self.brokers = Brokers(database, self.incarnations)
        self.commits = Commits(database, self.incarnations)
        self.producers = Producers(database, self.incarnations)
        self.transactions = Transactions(database, self.incarnations)
        self.transaction_lookups = TransactionLookups(database)
        self.local_transactions = LocalPartitions(database, self.transactions)
        self.logged_batches = LoggedBatches(database)
        self.jobs = Jobs(database, ids)
        self.planning = Planning(database)
        self.looks = Looks(database, ids)
        self.quarantine = Quarantine(database)
        self.circuit_breaker = CircuitBreaker(database)
        self.retention = Retention(database)
        self.expiry = Expiry(database)
        self.lost_commits = LostCommits(database, self.incarnations)
        self.leases = Leases(database)
        self.deletions = Deletions(database, self.incarnations)
        self.repair = Repair(database)
        self.groups = Groups(database, clock)
        self.group_configs = GroupConfigs(database)
        self.broker_configs = BrokerConfigs(database)
        self.client_quotas = ClientQuotas(database)
        self.group_offsets = GroupOffsets(database)
        self.users = Users(database)
        self.acls = Acls(database)

    @override
    def __repr__(self) -> str:
        return f"Catalog({self._database.address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def watcher(
        self, ignored_origin: UUID | None = None, listeners: Mapping[str, Callable[[], None]] | None = None
    ) -> CommitWatcher:
        """Return a new watcher of commits, except those of `ignored_origin`; the caller closes it.

        The watcher uses a separate connection. `listeners` are called for notifications of other channels.
        """
        return CommitWatcher(self._database, ignored_origin, listeners)

    def probe(self, timeout_seconds: float) -> CatalogProbe:
        """Return a new probe, which uses a separate connection; the caller closes it."""
        return CatalogProbe(self._database, timeout_seconds)

    def dedicate_thread(self, reserve: Reserve) -> None:
        """Let the calls of the calling thread use the connections of `reserve`, except its commits."""
        self._database.dedicate_thread(reserve)

    def operation_counts(self) -> dict[str, OperationCount]:
        """Return calls, retries, failures, statements and duration of each operation."""
        return self._database.counts.snapshot()

    def close(self) -> None:
        """Close all connections."""
        self._database.close()


class CatalogClock:
    """Clock whose wall time is the catalog's; pauses and intervals are those of this machine.

    Leases, grace periods and retention use the catalog's time, never that of one machine. `now_ms` is a
    query, unless the catalog was opened with another clock than the system's.
    """

    def __init__(self, database: Database, machine: Clock) -> None:
        self._database = database
        self._machine = machine

    def now_ms(self) -> int:
        """Return the catalog's time in milliseconds since the Unix epoch."""
        return self._database.now_ms()

    def monotonic(self) -> float:
        """Return seconds since a fixed point in time; the value never decreases."""
        return self._machine.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        self._machine.sleep(seconds)


def open_catalog(
    url: str,
    clock: Clock,
    ids: Ids,
    *,
    limits: DatabaseLimits | None = None,
    listen_url: str | None = None,
) -> Catalog:
    """Open the catalog in the database at `url` (`postgresql://…`).

    Notifications of commits come over a connection to `listen_url`, which is needed if `url` is a pooler's.
    SchemaVersionError: the database has no schema, or one that this code cannot use; `migrate_catalog`
    creates or migrates it. CatalogUnavailableError: the server does not respond. CatalogAddressError: the
    address is invalid.
    """
    database = Database(url, clock, ids, limits, listen_url=listen_url)
    try:
        check_schema_version(read_version(database))
    except BaseException:
        database.close()
        raise
    return Catalog(database, clock, ids)


def migrate_catalog(
    url: str,
    clock: Clock,
    ids: Ids,
    *,
    limits: DatabaseLimits | None = None,
    report: Callable[[str], None] = ignore_progress,
) -> SchemaVersion:
    """Create the schema in an empty database, or apply the missing migrations; return the schema's version.

    Agents and jobs may use the catalog meanwhile. `report` receives a line of text for each step.
    """
    with contextlib.closing(Database(url, clock, ids, limits)) as database:
        return Migrator(database, clock, ids, report=report).run()


def plan_migration(
    url: str, clock: Clock, ids: Ids, *, limits: DatabaseLimits | None = None
) -> MigrationPlan:
    """Return the schema's version and the migrations that `migrate_catalog` would apply.

    Raise SchemaVersionError if a contraction excludes this code.
    """
    with contextlib.closing(Database(url, clock, ids, limits)) as database:
        return Migrator(database, clock, ids).plan()
