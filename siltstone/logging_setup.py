"""Logging to standard error: lines of text on a terminal, one JSON object per event elsewhere."""

from __future__ import annotations

import logging
import sys

import structlog

from core.clock import SystemClock
from siltstone.log_repetition import SummarizingHandler

# Libraries whose information is about their own steps, and not about an event of this process.
_CHATTY_LOGGERS = ("uvicorn",)
# Libraries that log headers, URLs or commands with credentials in them. Only their warnings are logged.
_INDISCREET_LOGGERS = ("boto3", "botocore", "httpcore", "httpx", "py4j", "s3transfer", "urllib3")
_AUDIT_LOGGER = "audit"  # that of the agent's authorizer


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
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
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
    # Refusals are a record of attacks, and have a rate limit of their own.
    logging.getLogger(_AUDIT_LOGGER).setLevel(min(threshold, logging.INFO))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
