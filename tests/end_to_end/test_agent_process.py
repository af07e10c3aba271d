"""An agent as a process, and the commands that connect to it."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import httpx
import orjson
import psycopg
import pytest

from tests.end_to_end.forked_command import forked_agent, report_of, run_siltstone
from tests.end_to_end.processes import TIMEOUT_SECONDS, agent, as_url, environment, leftovers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.s3 import S3Server

pytestmark = pytest.mark.integration


def test_records_are_produced_and_consumed_and_the_agent_stops_in_order(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    where = ("--data-dir", str(data_dir))
    siltstone, report = partial(run_siltstone, directory=tmp_path), partial(report_of, directory=tmp_path)
    siltstone("topics", "create", "t", "--partitions", "3", "--config", "cleanup.policy=compact", *where)
    with agent(data_dir) as (process, ready):
        assert (ready["event"], ready["pid"]) == ("ready", process.pid)
        assert (
            httpx.get(f"http://{ready['http']}/healthz", timeout=240, trust_env=False).json()["status"]
            == "ok"
        )
        made = report("produce", "t", "--key-separator", ":", *where, stdin="a:1\nb:2\na:3\n")
        assert (made["accepted"], made["rejected"]) == (3, 0)
        lossless = {"key": "/w==", "key_encoding": "base64", "value": None, "timestamp": 5}
        report("produce", "t", "--json-lines", *where, stdin=orjson.dumps(lossless).decode())
        lines = [
            orjson.loads(line) for line in siltstone("consume", "t", "--format", "json", *where).splitlines()
        ]
        assert sorted((line["key"], line["value"]) for line in lines if line["value"]) == [
            ("a", "1"),
            ("a", "3"),
            ("b", "2"),
        ]
        (binary,) = [line for line in lines if line["value"] is None]
        assert (binary["key"], binary["key_encoding"], binary["timestamp"]) == ("/w==", "base64", 5)
        kept = made["partitions"]
        partition = next(number for number in kept if kept[number]["records"] >= 2)
        some = report(
            *("consume", "t", "--partition", partition, "--offset", "1", "--max-records", "1"),
            *("--bootstrap-server", ready["kafka"], *where),
        )
        assert some["records"] == 1
        rejected = report("produce", "t", *where, stdin="no key\n", code=1)
        assert (rejected["accepted"], rejected["rejected"]) == (0, 1)
        siltstone("consume", "absent", *where, code=1)
        siltstone("consume", "t", "--partition", "9", *where, code=1)
    assert not list((data_dir / "agents").iterdir())
    assert leftovers(data_dir) == []


def test_an_agent_stops_when_the_pipe_of_its_parent_closes(tmp_path: Path, catalog_url: str) -> None:
    with agent(tmp_path / "data", "--stop-on-eof", "--catalog", as_url(catalog_url)) as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert leftovers(tmp_path / "data") == []


def test_two_agents_share_a_data_directory(tmp_path: Path, catalog_url: str) -> None:
    where = ("--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url))
    siltstone = partial(run_siltstone, directory=tmp_path)
    siltstone("topics", "create", "t", *where)
    with (
        forked_agent(tmp_path / "first", *where) as first,
        forked_agent(tmp_path / "second", *where) as second,
    ):
        assert first["http"] != second["http"]
        assert first["kafka"] != second["kafka"]
        siltstone("produce", "t", "-b", first["kafka"], *where, stdin="one\n")
        siltstone("produce", "t", "-b", second["kafka"], *where, stdin="two\n")
        assert siltstone("consume", "t", *where).split() == ["one", "two"]


def test_an_agent_that_a_migration_excludes_stops_with_its_own_exit_code(
    tmp_path: Path, catalog_url: str
) -> None:
    data_dir = tmp_path / "data"
    with agent(data_dir, "--catalog", as_url(catalog_url), code=78) as (process, _):
        with psycopg.connect(catalog_url, autocommit=True) as connection:
            connection.execute("UPDATE siltstone.schema_version SET version = 99, min_version = 98")
        assert process.wait(TIMEOUT_SECONDS) == 78
        sessions = "SELECT state FROM siltstone.sessions"
        with psycopg.connect(catalog_url) as connection:
            assert connection.execute(sessions).fetchall() == [("ended",)]
    log = (tmp_path / "data-agent.log").read_text(encoding="utf-8")
    assert "the schema of the catalog excludes this version" in log
    assert "upgrade Siltstone" in log


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--http", "203.0.113.1:0"], 1, "cannot listen on 203.0.113.1:0"),
        (["--object-store", "s3://no-such-bucket/x", "--s3-endpoint", "{s3}"], 1, "no-such-bucket"),
    ],
)
def test_an_agent_that_cannot_start_reports_the_reason(
    options: list[str], code: int, message: str, tmp_path: Path, s3_server: S3Server, catalog_url: str
) -> None:
    given = ["--catalog", as_url(catalog_url), *(option.format(s3=s3_server.endpoint) for option in options)]
    done = subprocess.run(
        [sys.executable, "-m", "siltstone", "agent", "--data-dir", str(tmp_path / "data"), *given],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env=environment(),
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
