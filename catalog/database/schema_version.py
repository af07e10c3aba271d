"""Schema version of a catalog, and the check whether this code may use it.

The database has a version, the number of its last migration, and a minimum, the oldest version that code must
know. An expansion leaves the minimum as it is, so older code continues to work. A contraction raises it.
Code therefore uses any schema that has at least its own version and whose minimum it knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.database.sql_files import load_migrations
from catalog.errors import SchemaVersionError

if TYPE_CHECKING:
    from catalog.database.connection import Connection

CODE_VERSION: Final = len(load_migrations())
"""The schema version that this code knows."""

_EXISTS: Final = b"SELECT to_regclass('siltstone.schema_version') IS NOT NULL"
# The row as JSON, because min_version is missing before migration 12.
_READ: Final = b"""
    SELECT version, coalesce((to_jsonb(row)->>'min_version')::integer, version)
    FROM siltstone.schema_version AS row
"""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """Version of a database's schema, and the oldest version that code must know; both 0 without a schema."""

    version: int
    min_version: int


NO_SCHEMA: Final = SchemaVersion(0, 0)


def read_schema_version(connection: Connection) -> SchemaVersion:
    """Return the version of the schema in the database."""
    if connection.execute(_EXISTS).fetchone() != (True,):
        return NO_SCHEMA
    row = connection.execute(_READ).fetchone()
    return NO_SCHEMA if row is None else SchemaVersion(*row)


def check_schema_version(found: SchemaVersion, code_version: int = CODE_VERSION) -> None:
    """Raise SchemaVersionError unless code that knows `code_version` may use the schema."""
    if found == NO_SCHEMA:
        raise SchemaVersionError(
            "the database has no catalog", remedy="create it with: siltstone migrate --catalog URL"
        )
    if found.version < code_version:
        raise SchemaVersionError(
            f"the catalog has schema version {found.version}, this Siltstone needs {code_version}",
            remedy="apply the missing migrations with: siltstone migrate",
        )
    check_min_version(found, code_version)


def check_min_version(found: SchemaVersion, code_version: int = CODE_VERSION) -> None:
    """Raise SchemaVersionError if a contraction excludes code that knows `code_version`."""
    if found.min_version > code_version:
        raise SchemaVersionError(
            f"the catalog has schema version {found.version}, which excludes code that knows no version "
            f"from {found.min_version} on; this Siltstone knows {code_version}",
            remedy="upgrade Siltstone on this machine",
        )
