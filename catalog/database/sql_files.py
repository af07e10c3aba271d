"""Loading of the SQL files of the catalog: the schema, its migrations, and named queries.

A file of queries is a sequence of::

    -- name: lock_partitions
    -- Lock the partitions of a commit. The description may have several lines.
    SELECT …

Parameters have psycopg's form, `%(topic_id)s`. A query without a description is rejected, and so is a second
query of the same name in a file.

The first line of a migration states its kind, such as `-- kind: expansion` (`Migration`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from core.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"^-- name: (?P<name>[a-z][a-z0-9_]*)\n", re.MULTILINE)
_MIGRATION = re.compile(r"(?P<version>[0-9]{4})_[a-z0-9_]+\.sql")
_KIND = re.compile(rb"-- kind: (?:(?P<online>online )?expansion|contraction, minimum (?P<minimum>[0-9]+))\n")
_CONCURRENT_INDEX = re.compile(rb"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+)")


@dataclass(frozen=True, slots=True)
class Query:
    """Named statement; `sql` is bytes, because psycopg accepts only literals or bytes."""

    name: str
    description: str
    sql: bytes


@dataclass(frozen=True, slots=True)
class Migration:
    """Migration from `version` - 1 to `version`.

    `minimum` is the oldest schema version that code must know after it; 0 for an expansion, which older code
    survives. An online migration is one statement that runs outside a transaction.
    """

    version: int
    file_name: str
    sql: bytes
    minimum: int = 0
    is_online: bool = False

    @property
    def kind(self) -> str:
        """Return the kind as the file's first line states it."""
        if self.minimum:
            return f"contraction, minimum {self.minimum}"
        return "online expansion" if self.is_online else "expansion"

    @property
    def index(self) -> str | None:
        """Return the name of the index that an online migration creates, if it creates one."""
        found = _CONCURRENT_INDEX.search(self.sql)
        return None if found is None else found[1].decode()


def parse_queries(text: str, source: str) -> Mapping[str, Query]:
    """Parse the queries of a file; FatalError names the file and the invalid query."""
    pieces = _NAME.split(text)
    queries: dict[str, Query] = {}
    for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
        lines = body.strip().splitlines()
        head = next((index for index, line in enumerate(lines) if not line.startswith("--")), len(lines))
        description = " ".join(line.removeprefix("--").strip() for line in lines[:head]).strip()
        sql = "\n".join(lines[head:]).strip().removesuffix(";")
        if name in queries or not description or not sql:
            raise FatalError(
                f"{source}: query {name!r} is a duplicate, or has no description or no statement"
            )
        queries[name] = Query(name, description, sql.encode())
    return queries


def load_queries(name: str) -> Mapping[str, Query]:
    """Load the queries of `sql/queries/<name>.sql`."""
    file_name = f"{name}.sql"
    text = (resources.files("catalog") / "sql" / "queries" / file_name).read_text()
    return parse_queries(text, file_name)


def load_schema() -> bytes:
    """Load the statements that create the current schema in an empty database."""
    return (resources.files("catalog") / "sql" / "schema.sql").read_bytes()


def parse_migration(file_name: str, version: int, sql: bytes) -> Migration:
    """Parse a migration; FatalError if its first line does not state its kind."""
    kind = _KIND.match(sql)
    if kind is None or int(kind["minimum"] or 0) > version:
        raise FatalError(
            f"migration {file_name} does not state its kind in its first line",
            remedy="write `-- kind: expansion` or another form that CONTRIBUTING.md lists",
        )
    return Migration(version, file_name, sql, int(kind["minimum"] or 0), kind["online"] is not None)


def load_migrations() -> tuple[Migration, ...]:
    """Load all migrations by version; FatalError if a number is missing."""
    entries = (resources.files("catalog") / "sql" / "migrations").iterdir()
    found = [
        parse_migration(entry.name, int(match["version"]), entry.read_bytes())
        for entry in entries
        if (match := _MIGRATION.fullmatch(entry.name))
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise FatalError(
            f"the catalog's migrations are not numbered 1 to {len(found)}",
            remedy="reinstall Siltstone: files of the catalog package are missing",
        )
    return tuple(found)
