"""What the tests of the agent's disks share."""

from __future__ import annotations

from tests.agent.kafka.conftest import start_broker

__all__ = ["start_broker"]
