"""The audit log: one structured line for each authorization, as far as a rate limit allows.

As in Kafka, denied operations are logged at level info, and allowed ones at level debug. The level of the
logger is info or below for any `log_level`. Checks that filter a list, or find the operations that a
principal is authorized for, are not logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from prometheus_client import Counter

    from agent.security.identity import Client
    from agent.security.rights import Right
    from core.clock import Clock

_NAME: Final = "audit"
# The level of the logger decides, not the threshold of structlog's configuration.
_log = structlog.wrap_logger(
    None,
    wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
    logger_factory_args=(_NAME,),
)
_MAX_NAME = 300


class AuditLog:
    """Writes at most `lines_per_second`, and counts the others. Belongs to the event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        lines_per_second: int,
        denied: Counter,
        suppressed: Counter,
        logs_allowed: bool | None = None,
    ) -> None:
        self._clock = clock
        self._lines_per_second = lines_per_second
        self._denied = denied
        self._suppressed_lines = suppressed
        self._window_end = clock.monotonic() + 1
        self._lines = 0
        self._suppressed = 0
        self.logs_allowed = (
            logging.getLogger(_NAME).isEnabledFor(logging.DEBUG) if logs_allowed is None else logs_allowed
        )

    def record(self, client: Client, right: Right, name: str, *, is_allowed: bool) -> None:
        """Write one line, or count it as suppressed."""
        resource_type, operation = right.resource_type.name.lower(), right.operation.name.lower()
        if not is_allowed:
            self._denied.labels(resource_type, operation).inc()
        self.report_suppressed()
        if self._lines >= self._lines_per_second:
            self._suppressed += 1
            self._suppressed_lines.inc()
            return
        self._lines += 1
        _log.log(
            logging.DEBUG if is_allowed else logging.INFO,
            "authorization",
            decision="allowed" if is_allowed else "denied",
            principal=str(client.principal),
            operation=operation,
            resource_type=resource_type,
            resource=name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…",
            host=client.host,
            listener=client.listener,
        )

    def report_suppressed(self) -> None:
        """Begin another second if the last one is over, and report how many lines that one suppressed."""
        now = self._clock.monotonic()
        if now < self._window_end:
            return
        self._window_end, self._lines = now + 1, 0
        if self._suppressed:
            _log.info("authorizations not logged", suppressed=self._suppressed)
            self._suppressed = 0
