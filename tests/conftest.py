"""Fixtures for all tests, and the hypothesis profiles."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, Phase, settings

from tests.fixtures import kafka_tools, pgbouncer, previous_release
from tests.fixtures.logs import log_to_standard_error
from tests.real_clients.client_driver import missing

pytest_plugins = [
    "tests.fixtures.order",
    "tests.fixtures.postgres",
    "tests.fixtures.postgres_pair",
    "tests.fixtures.s3",
    "tests.fixtures.restartable",
]

# quick: for development. ci: the same examples in each run. brief: for kernels with bounds checking. mutants:
# the same, fewer, and without shrinking. night: long. Slowness of a shared machine must not fail a test.
settings.register_profile(
    "quick", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "brief",
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "mutants",
    parent=settings.get_profile("ci"),
    max_examples=30,
    phases=(Phase.explicit, Phase.generate),
)
settings.register_profile("night", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

log_to_standard_error()

# A background job of a shell ignores SIGINT, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = [
    *([] if kafka_tools.are_installed() else kafka_tools.NEEDED_BY),
    *([] if pgbouncer.is_installed() else pgbouncer.NEEDED_BY),
    *([] if previous_release.available() else previous_release.NEEDED_BY),
]


def pytest_report_header() -> list[str]:
    """List which optional parts are installed."""
    clients = [f"Kafka clients: without {client}, {why}" for client, why in missing().items()]
    optional = (kafka_tools, pgbouncer, previous_release)
    return [*(each.report_header() for each in optional), *clients]
