"""Fixtures of the tests of local topics."""

from __future__ import annotations

from tests.agent.kafka.conftest import start_broker

__all__ = ["start_broker"]
