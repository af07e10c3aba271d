"""Producing and reading through the HTTP API of a real agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from object_store.accounting import RequestKind

if TYPE_CHECKING:
    from tests.agent.running_agents import Agents

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def test_what_is_produced_is_read_back(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 1)
        answer = await running.produce(
            "t", {"key": "a", "value": "1", "timestamp": 1000}, {"key": "b", "value": None, "timestamp": 2000}
        )
        assert answer == {
            "accepted": 2,
            "refused": 0,
            "results": [
                {"partition": 0, "offset": 0, "timestamp": 1000},
                {"partition": 0, "offset": 1, "timestamp": 2000},
            ],
        }
        assert await running.read("t", offset=0) == {
            "topic": "t",
            "partition": 0,
            "log_start_offset": 0,
            "high_watermark": 2,
            "next_offset": 2,
            "records": [
                {"offset": 0, "timestamp": 1000, "key": "a", "value": "1", "headers": []},
                {"offset": 1, "timestamp": 2000, "key": "b", "value": None, "headers": []},
            ],
        }
        assert (agents.requests(RequestKind.PUT), agents.requests(RequestKind.GET)) == (1, 0)
