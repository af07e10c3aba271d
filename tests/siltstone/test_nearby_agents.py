from __future__ import annotations

import http.server
import os
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from bedrock.errors import InvalidInputError
from siltstone.nearby_agents import NoAgentError, agent_url, announced, find_agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    @override
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listening() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Well) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_agent_is_found_while_it_serves(tmp_path: Path, listening: str) -> None:
    with announced(tmp_path, listening):
        assert find_agent(tmp_path) == f"http://{listening}"
        assert agent_url(tmp_path, None) == f"http://{listening}"
    with pytest.raises(NoAgentError, match=r"no agent serves from data directory .*siltstone agent"):
        find_agent(tmp_path)


def test_an_agent_on_every_interface_is_reached_over_loopback(tmp_path: Path, listening: str) -> None:
    with announced(tmp_path, f"0.0.0.0:{listening.rpartition(':')[2]}"):
        assert find_agent(tmp_path) == f"http://{listening}"


def test_what_a_killed_agent_left_is_passed_over_and_swept(tmp_path: Path, listening: str) -> None:
    left = tmp_path / "agents" / "2147483646.json"
    left.parent.mkdir()
    left.write_text('{"http": "127.0.0.1:9"}')
    (tmp_path / "agents" / "1.json").write_text("not JSON")
    with pytest.raises(NoAgentError, match=r"http://127\.0\.0\.1:9 did not answer"):
        find_agent(tmp_path)
    with announced(tmp_path, listening):
        assert not left.exists()
        assert (tmp_path / "agents" / f"{os.getpid()}.json").exists()
        assert find_agent(tmp_path) == f"http://{listening}"


def test_an_agent_may_be_named_with_or_without_its_scheme(tmp_path: Path) -> None:
    assert agent_url(tmp_path, "127.0.0.1:80/") == "http://127.0.0.1:80"
    assert agent_url(tmp_path, "https://logs.example") == "https://logs.example"
    for wrong in ("ftp://host", "http://", "http://host:port"):
        with pytest.raises(InvalidInputError, match="agent address"):
            agent_url(tmp_path, wrong)
