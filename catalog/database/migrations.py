"""Migration of a database to the current schema. Several processes may call it at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from catalog.database.connection import SCHEMA, first_line
from catalog.database.sql_files import load_migrations, load_schema
from catalog.errors import CatalogAddressError, CatalogUnavailableError, SchemaVersionError

if TYPE_CHECKING:
    from catalog.database.connection import Connection
    from catalog.database.pool import Database

_ADVISORY_LOCK = 0x51175704E  # a number that nothing else uses in this database
_MAX_ATTEMPTS = 3
_TIMEOUTS = b"SET LOCAL statement_timeout = '1h'; SET LOCAL lock_timeout = '10min'"


def schema_version(connection: Connection) -> int:
    """Return the version of the schema in the database; 0 if it has none."""
    if connection.execute("SELECT to_regclass('schema_version') IS NULL").fetchone() == (True,):
        return 0
    versions = connection.execute("SELECT version FROM schema_version").fetchall()
    return next((int(version) for (version,) in versions), 0)


def check_schema_version(found: int) -> None:
    """Raise SchemaVersionError unless `found` is the version that this code requires."""
    wanted = len(load_migrations())
    if found > wanted:
        raise SchemaVersionError(
            f"the catalog has schema version {found}, this Siltstone supports only {wanted}",
            remedy="use the newer version of Siltstone that has migrated it",
        )
    if found == 0:
        raise SchemaVersionError("the database has no catalog", remedy="open it with migrate_schema=True")
    if found < wanted:
        raise SchemaVersionError(
            f"the catalog has schema version {found}, this Siltstone needs {wanted}",
            remedy="open it with migrate_schema=True once all older processes have stopped",
        )


def migrate(database: Database) -> int:
    """Create or migrate the schema in one transaction, under an exclusive lock; return its version.

    An empty database gets `schema.sql`, an older one the missing migrations.
    """
    try:
        version = _migrate_with_retries(database)
    except psycopg.OperationalError as error:
        raise CatalogUnavailableError(
            f"the catalog at {database.address} cannot be reached or migrated: {first_line(error)}",
            remedy="check that PostgreSQL runs there",
        ) from error
    except psycopg.Error as error:
        raise CatalogAddressError(
            f"the catalog at {database.address} cannot be created or migrated: {first_line(error)}",
            remedy="use a database and a user that may create a schema in it",
        ) from error
    check_schema_version(version)
    return version


def _migrate_with_retries(database: Database) -> int:
    """Migrate and return the version; retry a few times if the connection is lost."""
    attempts = _MAX_ATTEMPTS
    while True:
        attempts -= 1
        with psycopg.connect(database.conninfo, autocommit=True) as connection:
            try:
                return _migrate(connection)
            except psycopg.OperationalError:
                if not attempts or not connection.closed:
                    raise


def _migrate(connection: Connection) -> int:
    """Apply everything that is missing, in one transaction."""
    migrations = load_migrations()
    with connection.transaction():
        connection.execute(_TIMEOUTS)
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        found = schema_version(connection)
        if found == 0:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
            connection.execute(load_schema())
            connection.execute("INSERT INTO schema_version (version) VALUES (%s)", (len(migrations),))
        else:
            for migration in migrations[found:]:
                connection.execute(migration.sql)
            connection.execute(
                "UPDATE schema_version SET version = greatest(version, %s)", (len(migrations),)
            )
        return schema_version(connection)


def check_schema(database: Database) -> int:
    """Return the schema's version; SchemaVersionError unless this code requires that version."""
    try:
        with psycopg.connect(database.conninfo, autocommit=True) as connection:
            version = schema_version(connection)
    except psycopg.OperationalError as error:
        raise CatalogUnavailableError(
            f"the catalog at {database.address} cannot be reached: {first_line(error)}",
            remedy="check that PostgreSQL runs there",
        ) from error
    check_schema_version(version)
    return version
