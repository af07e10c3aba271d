"""Fixtures that every suite may use, and the hypothesis profiles."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

from tests.fixtures import kafka_tools
from tests.real_clients.driving import missing

pytest_plugins = ["tests.fixtures.order", "tests.fixtures.postgres", "tests.fixtures.s3"]

# quick: for work. ci: the same examples each time. brief: for kernels with bounds checking. night: long.
# A slow shared machine is no reason to fail.
settings.register_profile(
    "quick", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "brief",
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("night", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# In the background of a shell SIGINT is ignored, and would be by every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = [] if kafka_tools.are_here() else kafka_tools.NEEDED_BY


def pytest_report_header() -> list[str]:
    """Says which optional parts are here."""
    clients = [f"Kafka clients: without {client}, {why}" for client, why in missing().items()]
    return [kafka_tools.header(), *clients]
