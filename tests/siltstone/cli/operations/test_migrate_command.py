"""`siltstone migrate`: its report, and the errors of other commands before it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import psycopg
import pytest
from click.testing import CliRunner

from catalog.database.schema_version import CODE_VERSION
from catalog.database.sql_files import load_migrations
from siltstone.cli.main import cli
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def url(new_catalog_url: Callable[..., str]) -> str:
    """Provide a database that has no catalog."""
    return as_url(new_catalog_url(empty=True))


@pytest.fixture
def run(tmp_path: Path, url: str) -> Callable[..., Result]:
    """Provide a function that runs a command with that database."""
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", url]
    return lambda *arguments: CliRunner().invoke(cli, [*arguments, *where])


def test_migrate_creates_the_catalog_that_other_commands_ask_for(run: Callable[..., Result]) -> None:
    refused = run("topics", "create", "t")
    assert refused.exit_code == 78
    assert "siltstone migrate" in refused.stderr
    assert run("migrate", "--check").exit_code == 1
    assert "migrate creates it" in run("migrate", "--dry-run").stdout
    done = run("migrate")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        ["applying schema.sql", f"The catalog has schema version {CODE_VERSION}."],
    )
    assert run("migrate", "--check").exit_code == 0
    assert run("topics", "create", "t").exit_code == 0


def test_migrate_lists_and_applies_what_is_missing(run: Callable[..., Result], url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA siltstone")
        connection.execute("SET search_path = siltstone")
        for migration in load_migrations()[:11]:
            connection.execute(migration.sql)
        connection.execute("INSERT INTO schema_version (version) VALUES (11)")
    names = [each.file_name for each in load_migrations()[11:]]
    assert f"{names[0]} (expansion)" in run("migrate", "--dry-run").stdout
    plan = orjson.loads(run("migrate", "--check", "--json").stdout)
    assert (plan["version"], [each["migration"] for each in plan["missing"]]) == (11, names)
    done = orjson.loads(run("migrate", "--json").stdout)
    assert (done["version"], [each["migration"] for each in done["applied"]]) == (CODE_VERSION, names)
    assert orjson.loads(run("migrate", "--check", "--json").stdout)["missing"] == []


def test_a_contraction_excludes_this_version(run: Callable[..., Result], url: str) -> None:
    run("migrate")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE siltstone.schema_version SET version = 99, min_version = 98")
    refused = run("topics", "list")
    assert refused.exit_code == 78
    assert "upgrade Siltstone" in refused.stderr


@pytest.mark.parametrize("option", [[], ["--check"], ["--dry-run"]], ids=str)
def test_a_version_that_a_contraction_excludes_does_not_call_the_schema_complete(
    run: Callable[..., Result], url: str, option: list[str]
) -> None:
    run("migrate")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE siltstone.schema_version SET version = 99, min_version = 98")
    refused = run("migrate", *option)
    assert (refused.exit_code, refused.stdout) == (78, "")
    assert "upgrade Siltstone" in refused.stderr


def test_the_embedded_catalog_needs_no_migration(tmp_path: Path) -> None:
    where = ["--data-dir", str(tmp_path / "data")]
    assert CliRunner().invoke(cli, ["topics", "create", "t", *where]).exit_code == 0
    assert CliRunner().invoke(cli, ["migrate", "--check", *where]).exit_code == 0
