"""SQL files: valid and described queries, and the same schema from schema.sql and from migrations."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

import catalog
from catalog.database.connection import SCHEMA, connection_string
from catalog.database.limits import DatabaseLimits
from catalog.database.sql_files import (
    load_migrations,
    load_queries,
    load_schema,
    parse_migration,
    parse_queries,
)
from core.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable

_FILES = sorted(Path(entry.name).stem for entry in (resources.files("catalog") / "sql" / "queries").iterdir())


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(connection_string(url, DatabaseLimits()), autocommit=True)


@pytest.mark.parametrize("name", _FILES)
def test_postgres_can_prepare_every_query(catalog_url: str, name: str) -> None:
    with _connect(catalog_url) as connection:
        for query in load_queries(name).values():
            converted = PostgresQuery(Transformer(connection))
            names = re.findall(rb"%\((\w+)\)s", query.sql)
            converted.convert(query.sql, {each.decode(): None for each in names})
            connection.execute(f"PREPARE {query.name} AS ".encode() + converted.query)


def test_every_query_is_used() -> None:
    sources = "".join(path.read_text() for path in Path(catalog.__path__[0]).rglob("*.py"))
    used = set(re.findall(r'(?:_SQL|_COMMIT|_SERVER_SQL)\["(\w+)"\]', sources))
    defined = {name for file in _FILES for name in load_queries(file)}
    assert used == defined


@pytest.mark.parametrize(
    "text",
    [
        "-- name: a\nSELECT 1;",
        "-- name: a\n-- says what for",
        "-- name: a\n-- what\nSELECT 1;\n-- name: a\n-- what\nSELECT 2;",
    ],
)
def test_a_query_without_description_or_with_a_duplicate_name_is_rejected(text: str) -> None:
    with pytest.raises(FatalError, match="somewhere: query 'a'"):
        parse_queries(text, "somewhere")


@pytest.mark.parametrize(
    "first_line", ["", "-- kind: online contraction", "-- kind: contraction, minimum 13"]
)
def test_a_migration_that_does_not_state_its_kind_is_rejected(first_line: str) -> None:
    with pytest.raises(FatalError, match="does not state its kind"):
        parse_migration("0012_x.sql", 12, f"{first_line}\nSELECT 1;\n".encode())


_COLUMNS = """
    SELECT table_name, column_name, data_type, column_default, is_nullable, is_identity, collation_name
    FROM information_schema.columns WHERE table_schema = %s ORDER BY table_name, column_name
"""
_INDEXES = "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = %s ORDER BY 1, 2"
_CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = %s::regnamespace ORDER BY 1, 2
"""
_STORAGE = """
    SELECT c.relname, c.reloptions, a.attname, a.attstorage FROM pg_class AS c
    JOIN pg_attribute AS a ON a.attrelid = c.oid
    WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'r' AND a.attnum > 0 ORDER BY 1, 3
"""

_FUNCTIONS = (
    "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = %s::regnamespace ORDER BY 1"
)
_TRIGGERS = """
    SELECT t.tgrelid::regclass::text, t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger AS t
    JOIN pg_class AS c ON c.oid = t.tgrelid
    WHERE c.relnamespace = %s::regnamespace AND NOT t.tgisinternal ORDER BY 1, 2
"""


def _describe(connection: psycopg.Connection[Any]) -> list[list[Any]]:
    queries = (_COLUMNS, _INDEXES, _CONSTRAINTS, _STORAGE, _FUNCTIONS, _TRIGGERS)
    return [connection.execute(query.encode(), (SCHEMA,)).fetchall() for query in queries]


def test_schema_and_migrations_give_one_schema(new_catalog_url: Callable[..., str]) -> None:
    routes = []
    for statements in ([load_schema()], [migration.sql for migration in load_migrations()]):
        with _connect(new_catalog_url(empty=True)) as connection:
            connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
            for statement in statements:
                connection.execute(statement)
            routes.append(_describe(connection))
    assert routes[0] == routes[1]
    assert all(routes[0])


def test_migration_9_lets_all_existing_producers_continue(
    new_catalog_url: Callable[..., str],
) -> None:
    (*before, step) = load_migrations()[:9]
    with _connect(new_catalog_url(empty=True)) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        for migration in before:
            connection.execute(migration.sql)
        connection.execute(
            b"INSERT INTO topics (topic_id, name, partition_count, config, created_ms, deleted_ms) VALUES"
            b" ('00000000-0000-0000-0000-000000000001', 'live', 1, '{}', 1, NULL),"
            b" ('00000000-0000-0000-0000-000000000002', 'past', 1, '{}', 1, 2),"
            b" ('00000000-0000-0000-0000-000000000003', 'past', 1, '{}', 2, 3)"
        )
        connection.execute(
            b"INSERT INTO partitions (topic_id, partition) VALUES ('00000000-0000-0000-0000-000000000001', 0)"
        )
        connection.execute(b"SELECT nextval('producer_ids') FROM generate_series(1, 5)")
        connection.execute(step.sql)
        assert connection.execute(b"SELECT producers_from FROM partitions").fetchall() == [(5,)]
        assert connection.execute(b"SELECT * FROM past_topics").fetchall() == [("past", 5, 3)]


def test_migration_11_renames_and_keeps_the_data(new_catalog_url: Callable[..., str]) -> None:
    (*before, step) = load_migrations()[:11]
    with _connect(new_catalog_url(empty=True)) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        for migration in before:
            connection.execute(migration.sql)
        connection.execute(
            b"INSERT INTO topics (topic_id, name, partition_count, config, created_ms)"
            b" VALUES ('00000000-0000-0000-0000-000000000001', 't', 3, '{}', 1)"
        )
        connection.execute(
            b"INSERT INTO partitions (topic_id, partition, producers_from, exactness)"
            b" SELECT '00000000-0000-0000-0000-000000000001', number - 1, number, exactness"
            b" FROM unnest('{exact, owed, out_of_reach}'::text[]) WITH ORDINALITY AS v (exactness, number)"
        )
        connection.execute(
            b"INSERT INTO files (file_id, object_name, kind, size, directory_length, owner_id, committed_ms,"
            b" live_extents, born_bytes) VALUES ('00000000-0000-0000-0000-000000000002', 'f', 'ingestion',"
            b" 9, 1, '00000000-0000-0000-0000-000000000003', 1, 1, 8)"
        )
        connection.execute(
            b"INSERT INTO suspects (file_id, most_files, failures, job_id, reason, failed_ms, not_before_ms)"
            b" SELECT file_id, 4, 1, owner_id, 'r', 1, 2 FROM files"
        )
        connection.execute(
            b"INSERT INTO sessions (session_id, description, state, started_ms, heartbeat_ms, over_ms)"
            b" VALUES ('00000000-0000-0000-0000-000000000003', 's', 'ended', 1, 2, 3)"
        )
        connection.execute(b"INSERT INTO chores VALUES ('producers', 5)")
        connection.execute(b"INSERT INTO past_topics VALUES ('past', 6, 7)")
        connection.execute(step.sql)
        found = connection.execute(
            b"SELECT first_new_producer_id, exactness FROM partitions ORDER BY partition"
        ).fetchall()
        assert found == [(1, "exact"), (2, "dedup_incomplete"), (3, "dedup_impossible")]
        for query, expected in (
            (b"SELECT initial_bytes FROM files", (8,)),
            (b"SELECT max_files, failures, reason FROM quarantine_candidates", (4, 1, "r")),
            (b"SELECT closed_ms FROM sessions", (3,)),
            (b"SELECT name, started_ms FROM periodic_tasks", ("producers", 5)),
            (b"SELECT name, first_new_producer_id, deleted_ms FROM deleted_topics", ("past", 6, 7)),
        ):
            assert connection.execute(query).fetchall() == [expected]
