"""What the tests of the agent's disks share."""

from __future__ import annotations

from tests.agent.conftest import agents, anyio_backend, clock, store
from tests.kafka.conftest import start_broker

__all__ = ["agents", "anyio_backend", "clock", "start_broker", "store"]
