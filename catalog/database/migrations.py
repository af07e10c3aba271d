"""Creation and migration of the schema while agents and jobs use the catalog.

Each migration is one transaction, which also records its version. A run that stops continues after the last
recorded migration. Statements wait for locks only briefly, because every statement that comes later waits
behind them: on a lock timeout, the transaction is rolled back and repeated after a pause. A statement timeout
bounds the time for which a migration holds its locks.

An online migration is one statement that holds no lock for long but cannot run in a transaction. It is
repeated if it was interrupted.

Several processes may migrate at the same time: a lock serializes them, and each migration is applied once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import errors as pg

from catalog.database.connection import SCHEMA, first_line
from catalog.database.schema_version import (
    NO_SCHEMA,
    SchemaVersion,
    check_min_version,
    check_schema_version,
    read_schema_version,
)
from catalog.database.sql_files import load_migrations, load_schema
from catalog.errors import CatalogAddressError, CatalogUnavailableError, MigrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from catalog.database.connection import Connection
    from catalog.database.pool import Database
    from catalog.database.sql_files import Migration
    from core.clock import Clock
    from core.ids import Ids

_ADVISORY_LOCK: Final = 0x51175704E  # a number that nothing else uses in this database
_TIMEOUTS: Final = b"SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = '10s'"
_FIRST_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 5.0
_REPEATABLE: Final = (pg.DeadlockDetected, pg.IdleInTransactionSessionTimeout)
_HAS_SCHEMA: Final = b"SELECT to_regnamespace(%s) IS NOT NULL"
_INDEX_STATE: Final = b"""
    SELECT indisvalid, EXISTS (SELECT FROM pg_stat_progress_create_index WHERE index_relid = indexrelid)
    FROM pg_index WHERE indexrelid = to_regclass(%s)
"""


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The schema version of a database, and the migrations that it lacks; all of them if it has no schema."""

    found: SchemaVersion
    missing: tuple[Migration, ...]


def ignore_progress(line: str) -> None:
    """Report nothing."""
    del line


class Migrator:
    """Migration of one database; `report` receives a line of text for each step.

    A migration that does not get its locks within `patience_seconds` raises CatalogUnavailableError.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        ids: Ids,
        *,
        report: Callable[[str], None] = ignore_progress,
        patience_seconds: float = 300,
        migrations: Sequence[Migration] | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._report = report
        self._patience_seconds = patience_seconds
        self._migrations = tuple(load_migrations() if migrations is None else migrations)

    def plan(self) -> MigrationPlan:
        """Return what `run` would apply.

        Raise SchemaVersionError if a contraction excludes this code: it lacks no migration, but may not use
        the schema.
        """
        found = read_version(self._database)
        check_min_version(found, len(self._migrations))
        return MigrationPlan(found, self._migrations[found.version :])

    def run(self) -> SchemaVersion:
        """Create the schema in an empty database, or apply what is missing; return the version.

        A pooler is refused although nothing is missing: otherwise its address would fail at the upgrade.
        """
        plan = self.plan()
        if self._database.is_pooled:
            raise CatalogAddressError(
                f"there is a pooler at {self._database.address}, and migrations need PostgreSQL itself",
                remedy="give siltstone migrate the address of PostgreSQL",
            )
        if plan.found == NO_SCHEMA:
            self._repeat("schema.sql", self._create)
        else:
            for migration in plan.missing:
                self._repeat(
                    migration.file_name,
                    lambda connection, step=migration: self._apply(connection, step),  # type: ignore[misc]  # bound here
                )
        version = read_version(self._database)
        check_schema_version(version, len(self._migrations))
        return version

    def _repeat(self, name: str, step: Callable[[Connection], None]) -> None:
        """Run a step until it gets its locks and its connection holds."""
        self._report(f"applying {name}")
        deadline = self._clock.monotonic() + self._patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                with psycopg.connect(self._database.conninfo, autocommit=True) as connection:
                    return step(connection)
            except pg.QueryCanceled as error:
                raise MigrationError(
                    f"{name} was cancelled and rolled back: {first_line(error)}",
                    remedy="report this: a migration must not hold its locks for long",
                ) from error
            except (psycopg.OperationalError, *_REPEATABLE) as error:
                reason = first_line(error)
                if self._clock.monotonic() >= deadline:
                    raise CatalogUnavailableError(
                        f"{name} could not be applied for {self._patience_seconds:.0f} s: {reason}",
                        remedy="end long transactions on the catalog (see pg_stat_activity), then repeat the "
                        "command; it continues here",
                    ) from error
                self._report(f"repeating {name}: {reason}")
                self._clock.sleep(pause * (0.5 + self._ids.random() / 2))
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            except pg.InsufficientPrivilege as error:
                raise CatalogAddressError(
                    f"this user may not apply {name}: {first_line(error)}",
                    remedy="use the user that owns the schema, or may create it in this database",
                ) from error
            except psycopg.Error as error:
                raise MigrationError(
                    f"{name} failed and was rolled back: {error.sqlstate} {first_line(error)}",
                    remedy="this is a defect of Siltstone, or something else has changed the schema",
                ) from error

    def _create(self, connection: Connection) -> None:
        with connection.transaction():
            if _lock_and_read(connection) != NO_SCHEMA:
                return
            # Not IF NOT EXISTS: that needs the privilege to create schemas even if there is one.
            if connection.execute(_HAS_SCHEMA, (SCHEMA,)).fetchone() != (True,):
                connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
            connection.execute(load_schema())
            minimum = max(each.minimum for each in self._migrations)
            connection.execute(
                "INSERT INTO schema_version (version, min_version) VALUES (%s, %s)",
                (len(self._migrations), minimum),
            )

    def _apply(self, connection: Connection, migration: Migration) -> None:
        if migration.is_online:
            _run_online(connection, migration)
        with connection.transaction():
            found = _lock_and_read(connection)
            if found.version >= migration.version:
                return
            if not migration.is_online:
                connection.execute(migration.sql)
            connection.execute("UPDATE schema_version SET version = %s", (migration.version,))
            if migration.minimum > found.min_version:
                connection.execute("UPDATE schema_version SET min_version = %s", (migration.minimum,))


def _lock_and_read(connection: Connection) -> SchemaVersion:
    """Let other processes that migrate wait, and return the version."""
    connection.execute(_TIMEOUTS)
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
    return read_schema_version(connection)


def _run_online(connection: Connection, migration: Migration) -> None:
    """Run the one statement of an online migration, unless an earlier run completed it."""
    connection.execute(b"SET lock_timeout = 0")  # the statement blocks only other changes of the schema
    connection.execute(b"SET statement_timeout = 0")
    if (index := migration.index) is not None:
        state = connection.execute(_INDEX_STATE, (f"{SCHEMA}.{index}",)).fetchone()
        if state == (True, False):
            return
        if state == (False, True):
            raise pg.LockNotAvailable(f"another process builds the index {index}")
        if state is not None:  # the process that built it has died
            connection.execute(f"DROP INDEX CONCURRENTLY {SCHEMA}.{index}".encode())
    connection.execute(migration.sql)


def read_version(database: Database) -> SchemaVersion:
    """Return the version of the schema; raise an error that names the remedy if that is impossible."""
    try:
        with database.connect() as connection:
            return read_schema_version(connection)
    except psycopg.OperationalError as error:
        raise CatalogUnavailableError(
            f"the catalog at {database.address} cannot be reached: {first_line(error)}",
            remedy="check that PostgreSQL runs there, is the primary, and has ended its recovery",
        ) from error
    except psycopg.Error as error:
        raise CatalogAddressError(
            f"the catalog at {database.address} cannot be read: {first_line(error)}",
            remedy=f"grant this user the privileges on schema {SCHEMA} that docs/how-to/production.md lists",
        ) from error
