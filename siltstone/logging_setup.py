"""Logging to standard error: lines of text on a terminal, one JSON object per event elsewhere."""

from __future__ import annotations

import logging
import sys
from io import StringIO
from typing import TYPE_CHECKING

import structlog

from core.clock import SystemClock
from siltstone.log_repetition import SummarizingHandler

if TYPE_CHECKING:
    from typing import TextIO

# Libraries whose information is about their own steps, and not about an event of this process.
_CHATTY_LOGGERS = ("uvicorn",)
# Libraries that log headers, URLs or commands with credentials in them. Only their warnings are logged.
_INDISCREET_LOGGERS = ("boto3", "botocore", "httpcore", "httpx", "py4j", "s3transfer", "urllib3")
_AUDIT_LOGGER = "audit"  # that of the agent's authorizer


def _escaped(text: str) -> str:
    """Return text whose control characters have no effect on a terminal; lines stay lines."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def _escape_controls(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape what clients may have written into an event: names, addresses and messages.

    JSON escapes it anyway. The console quotes values with a line break, and no others.
    """
    return {name: _escaped(value) if isinstance(value, str) else value for name, value in event.items()}


def _plain_traceback(stream: TextIO, error: structlog.typing.ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(_escaped(text.getvalue()))


def configure_logs(level: str) -> None:
    """Log events of at least `level` (debug, info, warning, error), including those of libraries."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Not structlog's default traceback, which shows local variables: these hold connection strings.
    rendering: list[structlog.typing.Processor] = (
        [_escape_controls, structlog.dev.ConsoleRenderer(exception_formatter=_plain_traceback)]
        if sys.stderr.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = SummarizingHandler(sys.stderr, SystemClock())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=threshold, force=True)
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(
            threshold if threshold == logging.DEBUG else max(threshold, logging.WARNING)
        )
    for name in _INDISCREET_LOGGERS:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    # Refusals are a record of attacks, and have a separate rate limit.
    logging.getLogger(_AUDIT_LOGGER).setLevel(min(threshold, logging.INFO))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
