"""The command `siltstone agent`: what exists on the disk while it loads its code."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from click.testing import CliRunner

from catalog.database.embedded.server import EmbeddedPostgres
from siltstone.cli.main import cli
from tests.end_to_end.processes import environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command fail to load the agent's code."""
    monkeypatch.setitem(sys.modules, "siltstone.agent_runner", None)


def _agent(data_dir: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["agent", "--http", "127.0.0.1:0", "--data-dir", str(data_dir), *options])
    return done.exit_code, done.output


@pytest.mark.usefixtures("no_code")
def test_postgresql_is_created_while_code_is_loaded(tmp_path: Path) -> None:
    """Code that cannot be loaded leaves a PostgreSQL that is complete and does not run."""
    code, output = _agent(tmp_path)
    assert (code, "'siltstone.agent_runner', which is not installed" in output) == (1, True)
    assert (tmp_path / "catalog" / "pgdata" / "PG_VERSION").exists()
    assert not (tmp_path / "catalog" / "pgdata.new").exists()
    assert not (tmp_path / "catalog" / "server.log").exists()


@pytest.mark.usefixtures("no_code")
@pytest.mark.parametrize(
    "options",
    [
        ("--kafka", "nowhere"),
        ("--object-store", "gs://bucket"),
        ("--object-store", __file__),
        ("--catalog", "postgresql://a@/b"),
    ],
    ids=" ".join,
)
def test_no_postgresql_is_created_without_use(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A setting or the object store is wrong, or the catalog is elsewhere."""
    assert _agent(tmp_path, *options)[0] != 0
    assert not (tmp_path / "catalog").exists()


# A module that the agent loads. It ends the process by a signal once the creation of PostgreSQL has begun.
_INTERRUPTING = """
import signal, time
from pathlib import Path

while not any(Path({catalog!r}).glob("pgdata*")):
    time.sleep(0.01)
signal.raise_signal({number})
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_code_is_loaded_leaves_no_postgresql(tmp_path: Path, number: signal.Signals) -> None:
    """`initdb` ends by itself, and the next start works."""
    data_dir, code = tmp_path / "data", tmp_path / "code"
    code.mkdir()
    module = _INTERRUPTING.format(catalog=str(data_dir / "catalog"), number=int(number))
    (code / "uvloop.py").write_text(module)
    done = subprocess.run(
        [sys.executable, "-m", "siltstone", "agent", "--http", "127.0.0.1:0", "--data-dir", str(data_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=600,
        check=False,
        env={**environment(), "PYTHONPATH": str(code)},
    )
    assert (done.returncode, done.stdout) == (-number, b"")
    with EmbeddedPostgres(data_dir / "catalog"):
        commands = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert not [each for each in commands if f"{data_dir}/catalog/pgdata.new" in each]
