"""Brings a database to the present schema, whoever else tries the same at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from catalog.database.connection import SCHEMA, first_line
from catalog.database.sql_files import load_migrations, load_schema
from catalog.errors import CatalogAddressError, CatalogUnavailableError, SchemaVersionError

if TYPE_CHECKING:
    from catalog.database.connection import Connection
    from catalog.database.pool import Database

_ADVISORY_LOCK = 0x51175704E  # any number that nobody else uses in this database
_TRIES = 3
_PATIENCE = b"SET LOCAL statement_timeout = '1h'; SET LOCAL lock_timeout = '10min'"


def schema_version(connection: Connection) -> int:
    """The version of the schema in the database; 0 when there is none."""
    row = connection.execute("SELECT to_regclass('schema_version') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return 0
    versions = connection.execute("SELECT version FROM schema_version").fetchall()
    return int(versions[0][0]) if versions else 0


def check_schema_version(found: int) -> None:
    """Raise SchemaVersionError unless `found` is the version that this code speaks."""
    wanted = len(load_migrations())
    if found > wanted:
        raise SchemaVersionError(
            f"the catalog has schema version {found}, this Siltstone knows only {wanted}",
            remedy="use the newer Siltstone that has migrated it",
        )
    if found == 0:
        raise SchemaVersionError("the database holds no catalog", remedy="open it with migrate_schema=True")
    if found < wanted:
        raise SchemaVersionError(
            f"the catalog has schema version {found}, this Siltstone needs {wanted}",
            remedy="open it with migrate_schema=True once all older processes have stopped",
        )


def migrate(database: Database) -> int:
    """Make or bring up the schema, under a lock that lets one process at a time do so; returns its version.

    An empty database gets `schema.sql`; an older one gets the migrations that it lacks. All or nothing.
    """
    try:
        version = _repeatedly_migrated(database)
    except psycopg.OperationalError as error:
        raise CatalogUnavailableError(
            f"the catalog at {database.address} cannot be reached or migrated: {first_line(error)}",
            remedy="check that PostgreSQL runs there",
        ) from error
    except psycopg.Error as error:
        raise CatalogAddressError(
            f"the catalog at {database.address} cannot be made or migrated: {first_line(error)}",
            remedy="give a database and a user that may create a schema in it",
        ) from error
    check_schema_version(version)
    return version


def _repeatedly_migrated(database: Database) -> int:
    """The version after the migration; a connection that is lost on the way is made again a few times."""
    tries = _TRIES
    while True:
        tries -= 1
        with psycopg.connect(database.conninfo, autocommit=True) as connection:
            try:
                return _migrate_by(connection)
            except psycopg.OperationalError:
                if not tries or not connection.closed:
                    raise


def _migrate_by(connection: Connection) -> int:
    """Everything that is missing, in one transaction."""
    migrations = load_migrations()
    with connection.transaction():
        connection.execute(_PATIENCE)
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
    """The schema's version, which is the one that this code speaks; otherwise SchemaVersionError."""
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
