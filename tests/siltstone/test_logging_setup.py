"""Content of the log: no values of variables, no repeated warnings of libraries."""

from __future__ import annotations

import errno
import io
import logging
from typing import TYPE_CHECKING

import orjson
import pytest
import structlog
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs
from typing_extensions import override

from agent.security.audit import AuditLog
from agent.security.identity import Client, Principal
from agent.security.rights import READ_TOPIC
from core.clock import ManualClock
from siltstone.log_repetition import INTERVAL_SECONDS, MAX_CLIENTS
from siltstone.logging_setup import configure_logs
from tests.fixtures.logs import log_to_standard_error

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
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []  # configuring closes the handlers that it finds; pytest's own must stay open
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    log_to_standard_error()


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


@pytest.mark.parametrize("stream", [_Terminal, io.StringIO])
def test_names_of_clients_begin_no_line_and_control_no_terminal(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused name of a topic is any text that the client has sent."""
    written = stream()
    monkeypatch.setattr("sys.stderr", written)
    configure_logs("warning")
    log = structlog.get_logger("agent.test")
    hostile = ("a\x1b[2Jb", "a\x9b2Jb", "a\u202eb", "a\r\nforged line", "a\nforged line", "a\x08\x7f")
    for each in hostile:
        log.warning("refused", resource=each)
    log.error("it failed", exc_info=OSError(hostile[0]))
    shown = written.getvalue()
    styled = sum(shown.count(code) for code in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[3"))
    assert shown.count("\x1b") == styled, "only what colours the lines"
    assert not {"\x9b", "\u202e", "\r", "\x08", "\x7f"} & {*shown}
    assert not any(line.startswith("forged") for line in shown.splitlines())


def test_a_used_logger_follows_a_later_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would write to the previous standard error."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    configure_logs("warning")
    logger = structlog.get_logger("agent.test")
    logger.warning("before")
    log_to_standard_error()
    with capture_logs() as interrupt_on_signals:
        logger.warning("after")
    assert interrupt_on_signals == [{"event": "after", "log_level": "warning"}]


class _Log:
    """Log of `SummarizingHandler` as lines of JSON, with a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self._stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", self._stream)
        monkeypatch.setattr("siltstone.logging_setup.SystemClock", lambda: self.clock)
        configure_logs("info")
        self.logger = structlog.get_logger("agent.test")

    def lines(self) -> list[tuple[str, int | None]]:
        """Return event and count of each line."""
        events = [orjson.loads(line) for line in self._stream.getvalue().splitlines()]
        return [(each["event"], each.get("repeated")) for each in events]


def test_a_repeated_warning_is_written_once_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch)
    for number in range(100):
        log.logger.warning("the store is slow", attempt=number)
    log.logger.warning("the disk is full")
    assert log.lines() == [("the store is slow", None), ("the disk is full", None)]
    log.clock.advance(INTERVAL_SECONDS)
    log.logger.info("anything")
    log.logger.warning("the store is slow")
    log.clock.advance(INTERVAL_SECONDS)
    log.logger.warning("the disk is full")
    assert log.lines()[2:] == [
        ("the store is slow", 99),
        ("anything", None),
        ("the store is slow", 1),
        ("the disk is full", None),
    ]


def test_errors_information_and_references_are_always_written(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch)
    for _ in range(3):
        log.logger.error("it failed")
        log.logger.info("it happened")
        log.logger.warning("response to a client", reference="abc")
    assert len(log.lines()) == 9


def test_warnings_of_libraries_are_counted_and_written_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch)
    for number in range(3):
        logging.getLogger("library").warning("attempt %s failed", number)
    for handler in logging.getLogger().handlers:
        handler.close()
    assert log.lines() == [("attempt 0 failed", None), ("attempt 2 failed (repeated 2 times)", None)]


def test_no_client_hides_behind_the_warnings_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a limited number of clients is named; the others are counted together."""
    log = _Log(monkeypatch)
    for _ in range(2):
        for client in range(2 * MAX_CLIENTS):
            log.logger.warning("a client failed to authenticate", client=f"10.0.0.{client}")
    assert log.lines() == [("a client failed to authenticate", None)] * (MAX_CLIENTS + 1)
    log.clock.advance(INTERVAL_SECONDS)
    log.logger.info("anything")
    counts = [count for event, count in log.lines()[MAX_CLIENTS + 1 :] if count is not None]
    assert counts == [*[1] * MAX_CLIENTS, 2 * MAX_CLIENTS - 1]


@pytest.mark.parametrize(("level", "expected"), [("error", 1), ("warning", 1), ("info", 1), ("debug", 2)])
def test_refused_operations_are_logged_at_every_level(
    level: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    configure_logs(level)
    registry = CollectorRegistry()
    audit = AuditLog(
        ManualClock(),
        lines_per_second=10,
        denied=Counter("denied", "-", ["type", "operation"], registry=registry),
        suppressed=Counter("suppressed", "-", registry=registry),
    )
    client = Client("10.0.0.1", "SASL", Principal("User", "alice"))
    audit.record(client, READ_TOPIC, "orders", is_allowed=False)
    audit.record(client, READ_TOPIC, "orders", is_allowed=True)
    lines = [orjson.loads(line) for line in written.getvalue().splitlines()]
    assert [each["decision"] for each in lines] == ["denied", "allowed"][:expected]
    assert audit.logs_allowed == (level == "debug")


class _FullDisk(io.StringIO):
    @override
    def write(self, text: str) -> int:
        raise OSError(errno.EFBIG, "File too large")


def test_an_event_that_cannot_be_written_is_lost_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error may be a file on a full disk, or a pipe without a reader."""
    monkeypatch.setattr("sys.stderr", _FullDisk())
    configure_logs("info")
    log = structlog.get_logger("agent.test")
    log.info("an event")
    log.warning("a repeated event")
    log.warning("a repeated event")
    _log_a_failure()
    logging.getLogger("a.library").error("an event of a library")
    logging.getLogger().handlers[0].close()
