from __future__ import annotations

import http.server
import os
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from core.errors import InvalidInputError
from siltstone.kafka_client.agent_discovery import NoAgentError, announce, bootstrap_servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Agent(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        health = self.server.health  # type: ignore[attr-defined]  # the fixture has set it
        self.send_response((503 if health else 200) if self.path == "/healthz" else 404)
        self.end_headers()
        self.wfile.write(health)

    @override
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def health() -> bytes:
    """The agent's health report; empty if it is healthy."""
    return b""


@pytest.fixture
def listening(health: bytes) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Agent) as server:
        server.health = health  # type: ignore[attr-defined]  # for _Agent
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_data_directory_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "agents").touch()
    with (
        pytest.raises(InvalidInputError, match=r"agents cannot be written: File exists .*--data-dir"),
        announce(tmp_path, {"http": "127.0.0.1:1"}),
    ):
        pytest.fail("it is announced")


def test_an_agent_is_found_while_it_serves(tmp_path: Path, listening: str) -> None:
    with announce(tmp_path, {"http": listening, "kafka": "127.0.0.1:9092"}):
        assert bootstrap_servers(tmp_path) == "127.0.0.1:9092"
    with pytest.raises(NoAgentError, match=r"no agent of data directory .*siltstone agent"):
        bootstrap_servers(tmp_path)


def test_all_agents_that_respond_are_returned(tmp_path: Path, listening: str) -> None:
    with announce(tmp_path, {"http": listening, "kafka": "127.0.0.1:9092"}):
        other = tmp_path / "agents" / "other.json"
        other.write_text(f'{{"http": "{listening}", "kafka": "[::1]:9093"}}')
        assert set(bootstrap_servers(tmp_path).split(",")) == {"127.0.0.1:9092", "[::1]:9093"}


def test_an_agent_on_every_interface_is_reached_over_loopback(tmp_path: Path, listening: str) -> None:
    port = listening.rpartition(":")[2]
    with announce(tmp_path, {"http": f"0.0.0.0:{port}", "kafka": "0.0.0.0:9092"}):
        assert bootstrap_servers(tmp_path) == "127.0.0.1:9092"


def test_an_agent_without_a_kafka_listener_is_named(tmp_path: Path, listening: str) -> None:
    with (
        announce(tmp_path, {"http": listening}),
        pytest.raises(NoAgentError, match=f"http://{listening} serves no Kafka clients"),
    ):
        bootstrap_servers(tmp_path)


def test_the_file_of_a_killed_agent_is_ignored_and_deleted(tmp_path: Path, listening: str) -> None:
    left = tmp_path / "agents" / "2147483646.json"
    left.parent.mkdir()
    left.write_text('{"http": "127.0.0.1:9", "kafka": "127.0.0.1:10"}')
    (tmp_path / "agents" / "1.json").write_text("not JSON")
    with pytest.raises(NoAgentError, match=r"http://127\.0\.0\.1:9 did not respond"):
        bootstrap_servers(tmp_path)
    with announce(tmp_path, {"http": listening, "kafka": "127.0.0.1:11"}):
        assert not left.exists()
        assert (tmp_path / "agents" / f"{os.getpid()}.json").exists()
        assert bootstrap_servers(tmp_path) == "127.0.0.1:11"


@pytest.mark.parametrize(
    ("health", "message"),
    [
        (
            b'{"problems": {"catalog": "every call has failed for 32 seconds"}}',
            "is unhealthy: catalog: every call",
        ),
        (b"<html>", "responded with status 503"),
    ],
)
def test_the_health_report_of_an_unhealthy_agent_is_in_the_error(
    tmp_path: Path, listening: str, message: str
) -> None:
    """The error does not merely say that there is no agent."""
    with (
        announce(tmp_path, {"http": listening, "kafka": "127.0.0.1:9092"}),
        pytest.raises(NoAgentError, match=f"http://{listening} {message}"),
    ):
        bootstrap_servers(tmp_path)
