"""Clients that speak another protocol than the listener: the log names it and the remedy."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.listeners import KafkaListener

if TYPE_CHECKING:
    from tests.agent.running_agents import Agents

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def _say_hello(port: int) -> None:
    """Connect as a real TLS client."""
    with pytest.raises((OSError, ssl.SSLError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())


async def _send(port: int, data: bytes) -> None:
    """Send bytes, and wait until the agent closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_clients_of_another_protocol_are_named_in_the_log(agents: Agents) -> None:
    async with agents.running(kafka_listeners=(KafkaListener(port=0),)) as running:
        assert running.agent.kafka.server is not None
        kafka_port = int(running.agent.kafka.server.addresses["PLAINTEXT"].rpartition(":")[2])
        http_port = running.http.base_url.port
        assert http_port is not None
        for step, listener, reason in (
            (_say_hello(kafka_port), "Kafka listener", "TLS hello.*security.protocol=PLAINTEXT"),
            (_send(kafka_port, b"GET / HTTP/1.1\r\n\r\n"), "Kafka listener", "HTTP request"),
            (_say_hello(http_port), "HTTP listener", "TLS hello.*http://"),
            (_send(http_port, b"\0\0\0\x10\0\x12\0\3"), "HTTP listener", "Kafka request"),
        ):
            with capture_logs() as logs:
                await step
            event = f"a client of the {listener} is disconnected"
            (line,) = [each for each in logs if each["event"] == event]
            assert (line["log_level"], line["client"]) == ("warning", "127.0.0.1")
            assert re.search(reason, line["reason"])
        assert (await running.http.get("/v1/topics")).status_code == 200
