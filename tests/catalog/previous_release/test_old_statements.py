"""The statements of the previous release on the current schema: an expansion must not break them.

`queries/` is a copy of that release's `catalog/sql/queries/`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from catalog.database.connection import SCHEMA, connection_string
from catalog.database.limits import DatabaseLimits
from catalog.database.sql_files import parse_queries
from tests.fixtures.previous_release import PREVIOUS_RELEASE, report_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.database.sql_files import Query

_DIRECTORY = Path(__file__).with_name("queries")
_FILES = sorted(_DIRECTORY.iterdir())
_INSERT = re.compile(rb"INSERT INTO (\w+)(?: AS \w+)?\s*\(([^)]*)\)")
_NEEDED_COLUMNS = b"""
    SELECT column_name FROM information_schema.columns
    WHERE table_schema = %s AND table_name = %s
      AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'
"""


@pytest.fixture
def connection(catalog_url: str) -> Iterator[psycopg.Connection[Any]]:
    conninfo = connection_string(catalog_url, DatabaseLimits())
    with psycopg.connect(conninfo, autocommit=True) as opened:
        yield opened


def _queries(path: Path) -> list[Query]:
    return list(parse_queries(path.read_text(encoding="utf-8"), path.name).values())


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_postgres_can_prepare_every_old_query(connection: psycopg.Connection[Any], path: Path) -> None:
    for query in _queries(path):
        converted = PostgresQuery(Transformer(connection))
        names = re.findall(rb"%\((\w+)\)s", query.sql)
        converted.convert(query.sql, {each.decode(): None for each in names})
        connection.execute(f"PREPARE {query.name} AS ".encode() + converted.query)


def test_old_inserts_name_every_column_that_has_no_default(connection: psycopg.Connection[Any]) -> None:
    inserts = [found for path in _FILES for query in _queries(path) for found in _INSERT.findall(query.sql)]
    assert len(inserts) > 10
    for table, columns in inserts:
        rows = connection.execute(_NEEDED_COLUMNS, (SCHEMA, table.decode())).fetchall()
        needed = {str(name) for (name,) in rows}
        assert needed <= set(re.findall(r"\w+", columns.decode())), table


@pytest.mark.skipif(not PREVIOUS_RELEASE.is_available, reason=report_header())
def test_the_copied_statements_are_those_of_the_previous_release(tmp_path: Path) -> None:
    PREVIOUS_RELEASE.extract(tmp_path, "catalog/sql/queries")
    original = tmp_path / "catalog" / "sql" / "queries"
    assert {path.name: path.read_bytes() for path in original.iterdir()} == {
        path.name: path.read_bytes() for path in _FILES
    }
