"""Content of the log: no values of variables, no repeated warnings of libraries."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog
from structlog.testing import capture_logs
from typing_extensions import override

from siltstone.logging_setup import configure_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECRET = "hunter2-and-more"


class _Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Restore pytest's logging after a test that configures it."""
    root, pool = logging.getLogger(), logging.getLogger("psycopg.pool")
    handlers, level, pool_level = root.handlers[:], root.level, pool.level
    root.handlers[:] = []  # configuring closes the handlers that it finds; pytest's own must stay open
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    pool.setLevel(pool_level)
    structlog.reset_defaults()


def _connect(conninfo: str) -> None:
    raise OSError(f"no response to {len(conninfo)} letters")


def _log_a_failure() -> None:
    try:
        _connect(f"postgresql://me:{_SECRET}@host/x")
    except OSError:
        structlog.get_logger("agent.test").exception("it failed")


@pytest.mark.parametrize("stream", [_Terminal, io.StringIO])
def test_a_traceback_does_not_show_variables(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of a traceback hold connection strings, so only lines of code are shown, also on a terminal."""
    written = stream()
    monkeypatch.setattr("sys.stderr", written)
    configure_logs("warning")
    _log_a_failure()
    assert "it failed" in written.getvalue()
    assert "no response to" in written.getvalue()
    assert _SECRET not in written.getvalue()


def test_attempts_of_the_connection_pool_are_logged_only_for_debugging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our own error reports a missing connection once; psycopg's pool would do so once a second."""
    interrupt_on_signals = []
    for level in ("info", "debug"):
        written = io.StringIO()
        monkeypatch.setattr("sys.stderr", written)
        configure_logs(level)
        logging.getLogger("psycopg.pool").warning("error connecting in 'pool-1'")
        logging.getLogger("botocore").warning("other libraries are heard")
        interrupt_on_signals.append([json.loads(line)["logger"] for line in written.getvalue().splitlines()])
    assert interrupt_on_signals == [["botocore"], ["psycopg.pool", "botocore"]]


def test_a_used_logger_follows_a_later_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would write to the previous standard error."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    configure_logs("warning")
    logger = structlog.get_logger("agent.test")
    logger.warning("before")
    structlog.reset_defaults()
    with capture_logs() as interrupt_on_signals:
        logger.warning("after")
    assert interrupt_on_signals == [{"event": "after", "log_level": "warning"}]
