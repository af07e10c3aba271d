"""The command line as users see it: help, messages and exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson
import pytest
from click.testing import CliRunner, Result

from core.errors import FatalError, RetryableError
from core.exit_codes import MEANINGS
from siltstone.cli.main import COMMANDS, cli, report_error
from siltstone.settings.configuration import ENVIRONMENT_PREFIX
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMON_OPTIONS = ("--data-dir", "--object-store", "--s3-endpoint", "--catalog", "--config-file", "--debug")


def _siltstone(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    return subprocess.run(
        [sys.executable, "-m", "siltstone", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=kept | environment,
    )


def _all_commands() -> Iterator[tuple[str, ...]]:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.list_commands(context))


def test_a_command_ends_without_a_search_for_garbage() -> None:
    """The interpreter would search all objects of all loaded modules several times."""
    script = (
        "import atexit, gc, sys; atexit.register(lambda: print(len(gc.get_objects()), gc.get_freeze_count()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{script}; from siltstone.cli.main import main; main(['--version'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    searched, frozen = map(int, done.stdout.splitlines()[-1].split())
    assert frozen > 50 * searched


def test_the_help_lists_every_command_without_loading_it() -> None:
    result = _siltstone("--help")
    assert result.returncode == 0
    for name, summary in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary[:40])}", result.stdout, re.MULTILINE)
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import sys, siltstone.cli.main as e; print([m for m in"
                " ('pyspark', 'boto3', 'fastapi', 'psycopg', 'numba', 'rich', 'confluent_kafka')"
                " if m in sys.modules])"
            ),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", list(_all_commands()), ids=" ".join)
def test_every_command_has_a_help_text(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--help"])
    assert result.exit_code == 0
    if arguments not in {("acls",), ("quotas",), ("topics",), ("users",)}:
        for option in COMMON_OPTIONS:
            assert option in result.output
    else:
        assert "..." not in result.output.partition("Commands:")[2]  # a summary that was cut
    if len(arguments) == 1:
        assert COMMANDS[arguments[0]] in " ".join(result.output.split())


def test_options_that_may_hold_a_password_say_that_others_see_them() -> None:
    for command, option in (("migrate", "--catalog URL"), ("produce", "-X, --property NAME=VALUE")):
        result = CliRunner().invoke(cli, [command, "--help"])
        text = " ".join(result.output.split()).partition(option)[2]
        assert "Other users of the machine can see" in text[:400]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["agent", "--http", "127.0.0.1:99999"], 2, "setting http (from the command line, --http)"),
        (["agent", "--object-store", "gs://x"], 2, "gs:// is not supported"),
        (["agent", "--object-store", "s3:/x"], 2, "two slashes"),
        (["topics", "list", "--config", "absent.toml"], 2, "absent.toml does not exist"),
        (["topics", "list", "--catalog", "postgresql://nobody@127.0.0.1:9/x"], 75, "127.0.0.1"),
        (["produce", "t"], 75, "no agent of data directory"),
        (["agent", "--kafka", "nowhere"], 2, "setting kafka (from the command line, --kafka)"),
        (["produce", "t", "-b", "127.0.0.1:9"], 75, "no Kafka broker can be reached: 127.0.0.1:9"),
        (["produce", "t", "-b", "http://127.0.0.1:9"], 75, "No brokers configured"),
        (["produce", "t", "-b", "127.0.0.1:9", "-X", "nope=1"], 1, 'configuration property: "nope"'),
        (["produce", "t", "-b", "127.0.0.1:9", "-X", "secret"], 1, "(-X) is not NAME=VALUE"),
        (["produce", "t", "-b", "127.0.0.1:9", "-F", "absent"], 1, "absent cannot be read: No such file"),
        (["produce", "t", "-b", "127.0.0.1:9", "--acks", "1", "--idempotence"], 1, "`acks` must be set"),
        (["produce", "t", "-b", "127.0.0.1:9", "-k", "a", "-K", ":"], 2, "cannot be combined"),
        (["produce", "t", "-b", "127.0.0.1:9", "--json-lines", "-K", ":"], 2, "combined with --json-lines"),
        (["produce", "t", "-b", "127.0.0.1:9", "-H", "name"], 2, "NAME=VALUE"),
        (["produce", "t", "-b", "127.0.0.1:9", "--whole-files"], 2, "needs FILES"),
        (["produce", "t", "-b", "127.0.0.1:9", "-K", ""], 2, "--key-separator is empty"),
        (["produce", "t", "-b", "127.0.0.1:9", "-k", "x", "--key-encoding", "hex"], 2, "is not hex"),
        (["consume", "t", "-b", "127.0.0.1:9"], 75, "no Kafka broker can be reached: 127.0.0.1:9"),
        (["consume", "t", "-b", "127.0.0.1:9", "--offset", "7"], 2, "needs --partition"),
        (["consume", "t", "-b", "127.0.0.1:9", "--offset", "soon"], 2, "not earliest, latest or a number"),
        (["consume", "t", "-b", "127.0.0.1:9", "--offset", "7", "--timestamp", "1"], 2, "cannot be combined"),
        (["consume", "t", "-b", "127.0.0.1:9", "-G", "g", "-p", "1"], 2, "group assigns the partitions"),
        (["consume", "t", "-b", "127.0.0.1:9", "--timestamp", "noon"], 2, "is not a time"),
        (["nonsense"], 2, "No such command"),
        (["tpics"], 2, "Did you mean 'topics'?"),
        (["topcis", "list"], 2, "Did you mean 'topics'?"),
        (["warm_kernels"], 2, "Did you mean 'warm-kernels'?"),
        (["topics", "lst"], 2, "'list'"),
        (["--verson"], 2, "Did you mean '--version'?"),
        (["--catalog", "x", "plan"], 2, "Options follow the command: cli COMMAND --catalog …"),
        (["topics", "--data-dir=x", "list"], 2, "the command: cli topics COMMAND --data-dir …"),
    ],
)
def test_an_error_has_a_message_and_an_exit_code(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILTSTONE_DATA_DIR", str(tmp_path / "data"))
    result = CliRunner().invoke(cli, arguments)
    assert message in result.output
    assert "Traceback" not in result.output
    assert result.exit_code == code


@pytest.mark.parametrize("group", [["--group", ""], ["-X", "group.id="]], ids=" ".join)
def test_an_empty_group_is_an_error(group: list[str]) -> None:
    """The Kafka client would abort the process."""
    done = _siltstone("consume", "t", "-b", "127.0.0.1:9", *group)
    assert "the name of the consumer group is empty" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "describe", "t"],
        ["topics", "delete", "t"],
        ["plan"],
        ["fsck"],
        ["compact", "--dry-run"],
        ["compact"],
        ["compact", "--once"],
        ["maintain"],
        ["quarantine"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_a_catalog_creates_nothing(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--data-dir", str(tmp_path / "typo")])
    assert "has no catalog" in result.output
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["agent", "compact --watch", "demo", "topics create t"])
def test_a_data_directory_that_cannot_be_created_is_an_error_with_a_remedy(
    command: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        result = CliRunner().invoke(cli, [*command.split(), "--data-dir", str(place)])
        assert f"data directory {place} cannot be created" in result.output
        assert "--data-dir" in result.output
        assert result.exit_code == 1


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (FatalError("it broke", remedy="mend it"), 1, "error: it broke (mend it)"),
        (RetryableError("it is away"), 75, "error: it is away"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("by zero"), 1, "unexpected ZeroDivisionError: by zero"),
    ],
)
def test_each_class_of_error_has_its_exit_code(
    failure: BaseException,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert report_error(failure, debug=False) == code
    output = capsys.readouterr().err
    assert message in output
    assert "Traceback" not in output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("arguments", [["--help"], ["topics", "--help"], ["simulate", "trial", "--days=0.1"]])
def test_a_full_disk_of_the_output_is_no_defect(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "siltstone", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    assert "error: the output cannot be written: No space left on device" in done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_an_unexpected_error_is_reported_although_its_traceback_cannot_be_stored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert report_error(ZeroDivisionError("by zero"), debug=False) == 1
    output = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: by zero" in output
    assert "run it again with --debug" in output


def test_the_help_lists_all_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(cli, ["--help"]).stdout.split())
    assert [code for code, meaning in MEANINGS.items() if f"{code} {meaning}" not in text] == []


def test_an_unexpected_error_saves_its_traceback_to_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report_error(ZeroDivisionError("by zero"), debug=False)
    (kept,) = tmp_path.iterdir()
    assert str(kept) in capsys.readouterr().err
    assert "ZeroDivisionError" in kept.read_text()
    report_error(ZeroDivisionError("by zero"), debug=True)
    assert "ZeroDivisionError: by zero" in capsys.readouterr().err


@pytest.mark.integration
def test_topics_are_created_listed_described_and_deleted(tmp_path: Path, catalog_url: str) -> None:
    where = ("--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url))

    def topics(*arguments: str, code: int = 0, stdin: str = "") -> Result:
        result = CliRunner().invoke(cli, ["topics", *arguments, *where], input=stdin)
        assert result.exit_code == code, result.output
        return result

    topics("list")
    made = topics("create", "t", "--partitions", "3", "--config", "cleanup.policy=compact", "--json")
    topic = orjson.loads(made.stdout)
    assert (topic["name"], topic["partitions"]) == ("t", 3)
    assert topic["overrides"] == {"cleanup.policy": "compact"}
    described = orjson.loads(topics("describe", "t", "--json").stdout)
    assert [each["partition"] for each in described["partition_states"]] == [0, 1, 2]
    assert "cleanup.policy" in topics("describe", "t").stdout
    assert "'t'" in topics("create", "t", code=1).stderr
    assert "NAME=VALUE" in topics("create", "u", "--config", "compact", code=2).stderr
    assert "cleanup.policy" in topics("create", "u", "--config", "cleanup.polcy=compact", code=1).stderr
    assert "not deleted" in topics("delete", "t", stdin="n\n", code=1).stderr
    assert orjson.loads(topics("list", "--json").stdout)["topics"][0]["name"] == "t"
    assert orjson.loads(topics("delete", "t", "--yes", "--json").stdout)["deleted"] == "t"
    assert "'t'" in topics("describe", "t", code=1).stderr


@pytest.mark.integration
def test_an_empty_catalog_has_no_jobs_and_no_differences(tmp_path: Path, catalog_url: str) -> None:
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url), "--json"]
    planned = CliRunner().invoke(cli, ["plan", *where])
    assert orjson.loads(planned.stdout)["jobs"] == []
    checked = CliRunner().invoke(cli, ["fsck", "--deep", *where])
    assert checked.exit_code == 0
    assert orjson.loads(checked.stdout)["differences"] == []
