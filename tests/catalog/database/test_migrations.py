"""Migration of the schema: from an empty database, under traffic, by several processes, and after a stop."""

from __future__ import annotations

import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from catalog.database.connection import SCHEMA, connection_string
from catalog.database.limits import DatabaseLimits
from catalog.database.migrations import Migrator
from catalog.database.pool import Database
from catalog.database.schema_version import (
    CODE_VERSION,
    SchemaVersion,
    check_schema_version,
    read_schema_version,
)
from catalog.database.sql_files import load_migrations, load_schema, parse_migration
from catalog.errors import CatalogAddressError, CatalogUnavailableError, MigrationError, SchemaVersionError
from catalog.open import migrate_catalog, open_catalog, plan_migration
from core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.database.sql_files import Migration
    from core.clock import Clock
    from core.ids import Ids

_FIRST_CHECKED = 12
"""The first migration that must not rewrite or scan a table under an exclusive lock."""


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
def database(catalog_url: str, clock: Clock, ids: Ids) -> Iterator[Database]:
    database = Database(catalog_url, clock, ids)
    yield database
    database.close()


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(connection_string(url, DatabaseLimits()), autocommit=True)


def _with_next(sql: str, kind: str = "expansion") -> tuple[Migration, ...]:
    known = load_migrations()
    number = len(known) + 1
    return (*known, parse_migration(f"{number:04}_next.sql", number, f"-- kind: {kind}\n{sql}".encode()))


def _version(url: str) -> tuple[int, int]:
    with _connect(url) as connection:
        (row,) = connection.execute("SELECT version, min_version FROM schema_version").fetchall()
    return int(row[0]), int(row[1])


def test_only_a_migration_creates_the_schema(
    new_catalog_url: Callable[..., str], clock: Clock, ids: Ids
) -> None:
    url = new_catalog_url(empty=True)
    with pytest.raises(SchemaVersionError, match=r"no catalog .create it with: siltstone migrate"):
        open_catalog(url, clock, ids)
    assert len(plan_migration(url, clock, ids).missing) == CODE_VERSION
    version = migrate_catalog(url, clock, ids)
    assert version == SchemaVersion(CODE_VERSION, max(each.minimum for each in load_migrations()))
    assert plan_migration(url, clock, ids).missing == ()
    open_catalog(url, clock, ids).close()


def test_several_processes_can_create_the_schema_at_once(
    new_catalog_url: Callable[..., str], clock: Clock, ids: Ids
) -> None:
    url = new_catalog_url(empty=True)
    barrier = threading.Barrier(4)

    def start(_: int) -> None:
        barrier.wait()
        migrate_catalog(url, clock, ids)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    assert _version(url)[0] == CODE_VERSION


def test_an_older_schema_is_rejected_until_it_is_migrated(
    new_catalog_url: Callable[..., str], clock: Clock, ids: Ids
) -> None:
    """The first schema version without a minimum is migrated as well."""
    url = new_catalog_url(empty=True)
    with _connect(url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        for migration in load_migrations()[:11]:
            connection.execute(migration.sql)
        connection.execute("INSERT INTO schema_version (version) VALUES (11)")
    with pytest.raises(SchemaVersionError, match=r"version 11, this Siltstone needs .*siltstone migrate"):
        open_catalog(url, clock, ids)
    lines: list[str] = []
    migrate_catalog(url, clock, ids, report=lines.append)
    assert lines == [f"applying {each.file_name}" for each in load_migrations()[11:]]
    open_catalog(url, clock, ids).close()


def test_older_code_uses_a_newer_schema_until_a_contraction_excludes_it(
    catalog_url: str, database: Database, clock: Clock, ids: Ids
) -> None:
    known = len(load_migrations())
    expanded = _with_next("CREATE TABLE next (n int)")
    Migrator(database, clock, ids, migrations=expanded).run()
    assert _version(catalog_url)[0] == known + 1
    open_catalog(catalog_url, clock, ids).close()
    contraction = parse_migration(
        "next.sql", known + 2, f"-- kind: contraction, minimum {known + 1}\nDROP TABLE next".encode()
    )
    Migrator(database, clock, ids, migrations=(*expanded, contraction)).run()
    assert _version(catalog_url) == (known + 2, known + 1)
    with pytest.raises(SchemaVersionError, match=rf"version {known + 2}, .*upgrade Siltstone"):
        open_catalog(catalog_url, clock, ids)
    check_schema_version(SchemaVersion(known + 2, known + 1), code_version=known + 1)


def test_a_migration_lets_traffic_pass_while_it_waits_for_a_lock(
    catalog_url: str, database: Database, clock: Clock, ids: Ids
) -> None:
    """A transaction that is open for long does not make all others wait behind the migration."""
    waited = threading.Event()
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("repeating"):
            waited.set()

    migrations = _with_next("ALTER TABLE topics ADD COLUMN next int")
    migrator = Migrator(database, clock, ids, report=report, migrations=migrations)
    with _connect(catalog_url) as other, _connect(catalog_url) as blocker, ThreadPoolExecutor(1) as pool:
        with blocker.transaction():
            blocker.execute("SELECT count(*) FROM topics")
            run = pool.submit(migrator.run)
            assert waited.wait(60)
            assert other.execute("SELECT count(*) FROM topics").fetchone() == (0,)
            assert not run.done()
        assert run.result(60).version == len(migrations)
    assert "lock timeout" in lines[1]


def test_a_migration_that_never_gets_its_lock_can_be_continued(
    catalog_url: str, database: Database, clock: Clock, ids: Ids
) -> None:
    first, second = _with_next("CREATE TABLE next (n int)"), "-- kind: expansion\nDROP TABLE topics CASCADE"
    migrations = (*first, parse_migration("last.sql", len(first) + 1, second.encode()))
    with _connect(catalog_url) as blocker, blocker.transaction():
        blocker.execute("SELECT count(*) FROM topics")
        with pytest.raises(CatalogUnavailableError, match=r"last.sql could not be applied.*continues here"):
            Migrator(database, clock, ids, patience_seconds=0, migrations=migrations).run()
    assert _version(catalog_url)[0] == len(first)
    plan = Migrator(database, clock, ids, migrations=migrations).plan()
    assert [each.file_name for each in plan.missing] == ["last.sql"]
    assert Migrator(database, clock, ids, migrations=migrations).run().version == len(migrations)


def test_a_step_is_repeated_whose_process_was_frozen(
    catalog_url: str, database: Database, clock: Clock, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its transaction, because it holds locks."""
    lines: list[str] = []
    freezes = iter([True])

    def freeze_once(connection: psycopg.Connection[Any]) -> SchemaVersion:
        if next(freezes, False):
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 10")
            pid = connection.info.backend_pid
            with _connect(catalog_url) as other:
                while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone():
                    time.sleep(0.01)
        return read_schema_version(connection)

    steps = _with_next("CREATE TABLE next (n int)")
    migrator = Migrator(database, clock, ids, report=lines.append, migrations=steps)
    monkeypatch.setattr("catalog.database.migrations.read_schema_version", freeze_once)
    migrator._repeat(steps[-1].file_name, lambda connection: migrator._apply(connection, steps[-1]))
    assert "idle-in-transaction timeout" in lines[1]
    assert _version(catalog_url)[0] == len(steps)


def test_a_failed_migration_leaves_nothing(
    catalog_url: str, database: Database, clock: Clock, ids: Ids
) -> None:
    migrations = _with_next("CREATE TABLE next (n int); SELECT 1 / 0")
    with pytest.raises(MigrationError, match="failed and was rolled back: 22012"):
        Migrator(database, clock, ids, migrations=migrations).run()
    with _connect(catalog_url) as connection:
        assert connection.execute("SELECT to_regclass('next')").fetchone() == (None,)
    assert _version(catalog_url)[0] == CODE_VERSION


def test_an_index_is_built_online_and_again_after_an_interruption(
    catalog_url: str, database: Database, clock: Clock, ids: Ids
) -> None:
    """An index that an interrupted run left invalid is replaced."""
    migrations = _with_next("CREATE INDEX CONCURRENTLY next ON topics (created_ms);\n", "online expansion")
    with _connect(catalog_url) as connection:
        connection.execute("CREATE INDEX next ON topics (created_ms)")
        # What a killed CREATE INDEX CONCURRENTLY leaves behind.
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'siltstone.next'::regclass"
        )
        assert Migrator(database, clock, ids, migrations=migrations).run().version == len(migrations)
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'siltstone.next'::regclass"
        assert connection.execute(valid).fetchall() == [(True,)]
        # A run that stopped between the index and the version.
        connection.execute("UPDATE schema_version SET version = version - 1")
        assert Migrator(database, clock, ids, migrations=migrations).run().version == len(migrations)


def test_a_user_without_privileges_learns_what_is_missing(
    catalog_url: str, clock: Clock, ids: Ids, new_catalog_url: Callable[..., str]
) -> None:
    with _connect(catalog_url) as connection:
        connection.execute(
            "DO $$ BEGIN CREATE ROLE visitor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
    with pytest.raises(CatalogAddressError, match=r"permission denied .*grant this user"):
        open_catalog(f"{catalog_url} user=visitor", clock, ids)
    with pytest.raises(CatalogAddressError, match=r"may not apply schema.sql.*permission denied"):
        migrate_catalog(f"{new_catalog_url(empty=True)} user=visitor", clock, ids)


_REWRITES = {
    r"\bALTER COLUMN \w+ (SET DATA )?TYPE\b": "rewrites the table",
    r"\bSET NOT NULL\b": "scans the table; add a CHECK … NOT VALID, then validate it online",
    r"\b(CLUSTER|VACUUM FULL|REINDEX|SET LOGGED|SET UNLOGGED|SET TABLESPACE)\b": "rewrites the table",
    r"\bGENERATED ALWAYS AS \([^;]*STORED\b": "rewrites the table",
    r"\bADD COLUMN [^,;]*\b(gen_random_uuid|random|clock_timestamp|nextval|serial)\b": "rewrites the table",
}


def violations(sql: str, *, is_online: bool) -> list[str]:
    """Return how a migration would keep commits waiting, as far as its text shows."""
    text = re.sub(r"--[^\n]*", "", sql)
    created = set(re.findall(r"CREATE TABLE (\w+)", text))
    found = [f"{match[0]}: {why}" for rule, why in _REWRITES.items() for match in re.finditer(rule, text)]
    for statement in filter(None, map(str.strip, text.split(";"))):
        changed = re.match(r"(?:ALTER TABLE|UPDATE|DELETE FROM) (?:ONLY )?(\w+)", statement)
        if changed and changed[1] not in created:
            found += _on_existing_table(statement, changed[1])
        index = re.match(r"CREATE (?:UNIQUE )?INDEX (CONCURRENTLY )?\w+ ON (\w+)", statement)
        if index and index[2] not in created and not (index[1] and is_online):
            found.append(f"{statement[:40]}: build the index CONCURRENTLY, in a separate online migration")
    return found + _locks_one_by_one(text, created)


def _locks_one_by_one(text: str, created: set[str]) -> list[str]:
    """Return a complaint about a migration that works while it waits for the lock of its next table.

    Under steady traffic in another order of the tables, each attempt would end in a deadlock.
    """
    altered = set(re.findall(r"ALTER TABLE (\w+)", text)) - created
    locked = re.match(r"\s*LOCK TABLE ([\w, ]+) IN ACCESS EXCLUSIVE MODE;", text)
    missing = altered - set(locked[1].split(", ") if locked else ())
    if len(altered) < 2 or not missing:
        return []
    return [f"begin with LOCK TABLE {', '.join(sorted(altered))} IN ACCESS EXCLUSIVE MODE"]


_SINGLE_ROW_TABLES = {"schema_version", "object_store", "cluster", "catalog_incarnation"}


def _on_existing_table(statement: str, table: str) -> list[str]:
    if statement.startswith(("UPDATE", "DELETE")):
        if table in _SINGLE_ROW_TABLES:
            return []
        return [f"{statement[:40]}: locks the rows; let the code treat a default as unknown instead"]
    checked = re.search(r"\b(CHECK|FOREIGN KEY|REFERENCES)\b", statement)
    if checked and "NOT VALID" not in statement and table not in _SINGLE_ROW_TABLES:
        return [f"{statement[:40]}: add the constraint NOT VALID, then validate it in an online migration"]
    if re.search(r"\bADD (CONSTRAINT \w+ )?(UNIQUE|PRIMARY KEY) ?\(", statement):
        return [f"{statement[:40]}: build the unique index CONCURRENTLY first"]
    return []


@pytest.mark.parametrize("number", range(_FIRST_CHECKED, CODE_VERSION + 1))
def test_a_migration_keeps_no_commit_waiting(number: int) -> None:
    migration = load_migrations()[number - 1]
    assert violations(migration.sql.decode(), is_online=migration.is_online) == []
    if migration.is_online:
        statement = re.sub(r"--[^\n]*", "", migration.sql.decode()).strip().removesuffix(";")
        assert ";" not in statement
        assert re.match(r"CREATE (UNIQUE )?INDEX CONCURRENTLY|ALTER TABLE \w+ VALIDATE CONSTRAINT", statement)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE extents ALTER COLUMN position TYPE numeric;",
        "ALTER TABLE extents ADD COLUMN a int NOT NULL DEFAULT 0 CHECK (a > 0);",
        "CREATE INDEX a ON extents (job_id);",
        "UPDATE files SET size = 0;",
        "ALTER TABLE topics ADD COLUMN a uuid DEFAULT gen_random_uuid();",
        "ALTER TABLE topics ADD COLUMN a integer; ALTER TABLE files ADD COLUMN a integer;",
    ],
)
def test_the_check_of_migrations_finds_what_would_keep_commits_waiting(sql: str) -> None:
    assert violations(sql, is_online=False)
    assert not violations(
        f"CREATE TABLE a (n int CHECK (n > 0)); CREATE INDEX b ON a (n); -- {sql}", is_online=False
    )


def test_no_migration_rewrites_a_table(new_catalog_url: Callable[..., str], clock: Clock, ids: Ids) -> None:
    """All migrations from number 12 on are applied while transactions hold locks of commits."""
    url = new_catalog_url(empty=True)
    with _connect(url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        for migration in load_migrations()[: _FIRST_CHECKED - 1]:
            connection.execute(migration.sql)
        connection.execute("INSERT INTO schema_version (version) VALUES (%s)", (_FIRST_CHECKED - 1,))
        before = _files(connection)
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        traffic = pool.submit(_hold_locks_at_intervals, url, [*before], stopping)
        try:
            migrate_catalog(url, clock, ids)
        finally:
            stopping.set()
        traffic.result()
    with _connect(url) as connection:
        after = _files(connection)
    assert {name: after[name] for name in before if name in after} == before


def _files(connection: psycopg.Connection[Any]) -> dict[str, int]:
    query = (
        "SELECT relname, relfilenode FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
    )
    return dict(connection.execute(query, (SCHEMA,)).fetchall())


def _hold_locks_at_intervals(url: str, tables: list[str], stopping: threading.Event) -> None:
    """Lock tables as commits do, for a moment at a time and in any order; no lock is granted late."""
    order = random.Random(1)
    with _connect(url) as connection:
        while not stopping.is_set():
            with connection.transaction():
                for name in order.sample(tables, len(tables)):
                    connection.execute(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE".encode())
                stopping.wait(0.01)


def test_the_schema_of_an_empty_database_is_complete(
    new_catalog_url: Callable[..., str], clock: Clock, ids: Ids
) -> None:
    """A schema that an administrator has created beforehand is used."""
    url = new_catalog_url(empty=True)
    with _connect(url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
    migrate_catalog(url, clock, ids)
    tables = set(re.findall(rb"CREATE TABLE (\w+)", load_schema()))
    with _connect(url) as connection:
        assert {name.encode() for name in _files(connection)} == tables
