"""What is logged, and what is kept out of it."""

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
def _logging_as_it_was() -> Iterator[None]:
    """A test that configures logs leaves them to pytest again."""
    root, pool = logging.getLogger(), logging.getLogger("psycopg.pool")
    handlers, level, pool_level = root.handlers[:], root.level, pool.level
    root.handlers[:] = []  # what is configured anew is closed, and pytest's own shall live
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    pool.setLevel(pool_level)
    structlog.reset_defaults()


def _connect(conninfo: str) -> None:
    raise OSError(f"nobody answers {len(conninfo)} letters")


def _log_a_failure() -> None:
    try:
        _connect(f"postgresql://me:{_SECRET}@host/x")
    except OSError:
        structlog.get_logger("agent.test").exception("it failed")


@pytest.mark.parametrize("stream", [_Terminal, io.StringIO])
def test_a_traceback_has_no_values_of_variables(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames below an error hold connection strings: on a terminal as in a file, code lines must do."""
    written = stream()
    monkeypatch.setattr("sys.stderr", written)
    configure_logs("warning")
    _log_a_failure()
    assert "it failed" in written.getvalue()
    assert "nobody answers" in written.getvalue()
    assert _SECRET not in written.getvalue()


def test_what_the_pool_says_of_each_try_is_for_those_who_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own error says once why there is no connection; psycopg's pool would say so once a second."""
    interrupt_on_signals = []
    for level in ("info", "debug"):
        written = io.StringIO()
        monkeypatch.setattr("sys.stderr", written)
        configure_logs(level)
        logging.getLogger("psycopg.pool").warning("error connecting in 'pool-1'")
        logging.getLogger("botocore").warning("other libraries are heard")
        interrupt_on_signals.append([json.loads(line)["logger"] for line in written.getvalue().splitlines()])
    assert interrupt_on_signals == [["botocore"], ["psycopg.pool", "botocore"]]


def test_a_logger_that_was_used_follows_what_is_configured_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would write to a standard error of before, and past whoever listens."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    configure_logs("warning")
    logger = structlog.get_logger("agent.test")
    logger.warning("before")
    structlog.reset_defaults()
    with capture_logs() as interrupt_on_signals:
        logger.warning("after")
    assert interrupt_on_signals == [{"event": "after", "log_level": "warning"}]
