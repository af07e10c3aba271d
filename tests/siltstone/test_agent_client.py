from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typing_extensions import override

from bedrock.clock import ManualClock
from bedrock.errors import FatalError, InvalidInputError, NotFoundError, RetryableError, SiltstoneError
from siltstone.agent_client import AgentClient, RecordOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator

Answer = tuple[int, bytes, dict[str, str]]


class _Scripted(http.server.ThreadingHTTPServer):
    """Answers what it is told to, in order, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, Any]] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Scripted

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        self.server.asked.append((self.command, self.path, orjson.loads(body) if body else None))
        status, content, headers = self.server.answers.pop(0)
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _reply  # noqa: N815 - the base class wants these names

    @override
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Scripted]:
    with _Scripted() as scripted:
        thread = threading.Thread(target=scripted.serve_forever, args=(0.01,))
        thread.start()
        yield scripted
        scripted.shutdown()
        thread.join()


def _url(server: _Scripted) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def _error(status: int, code: str, **headers: str) -> Answer:
    body = {"error": {"code": code, "message": f"it is {code}", "remedy": "do something"}}
    return status, orjson.dumps(body), {name.replace("_", "-"): value for name, value in headers.items()}


def _well(body: dict[str, Any]) -> Answer:
    return 200, orjson.dumps(body), {}


def test_a_busy_agent_is_asked_again_after_the_pause_it_wants(server: _Scripted) -> None:
    result = {"results": [{"partition": 1, "offset": 7, "timestamp": 3}]}
    server.answers = [
        _error(503, "busy", retry_after="2"),
        _error(429, "busy", retry_after="soon"),
        _well(result),
    ]
    clock = ManualClock()
    with AgentClient(_url(server), clock) as client:
        assert client.produce("t", [{"value": "v"}]) == [RecordOutcome(1, 7, None)]
    assert clock.monotonic() == 3.0
    assert server.asked == [("POST", "/v1/topics/t/records", {"records": [{"value": "v"}]})] * 3


def test_what_may_have_been_appended_is_not_sent_again(server: _Scripted) -> None:
    server.answers = [_error(503, "append_failed", retry_after="1")]
    with (
        AgentClient(_url(server), ManualClock()) as client,
        pytest.raises(RetryableError, match="append_failed"),
    ):
        client.produce("t", [{"value": "v"}], 3)
    assert server.asked[0][1] == "/v1/topics/t/partitions/3/records"


def test_patience_has_an_end(server: _Scripted) -> None:
    server.answers = [_error(503, "busy") for _ in range(100)]
    with AgentClient(_url(server), ManualClock()) as client, pytest.raises(RetryableError, match="busy"):
        client.partitions("t")
    assert len(server.answers) == 40


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (_error(404, "topic_not_found"), NotFoundError, r"topic_not_found \(do something\)"),
        (_error(422, "invalid_config"), InvalidInputError, "invalid_config"),
        (_error(500, "internal_error"), FatalError, "internal_error"),
        ((404, b"<html>", {}), NotFoundError, "status 404.*check the agent's address"),
        ((502, b"", {}), FatalError, "status 502"),
        ((200, b"<html>", {}), FatalError, "does not answer as an agent does"),
        ((200, b"[]", {}), FatalError, "does not answer as an agent does"),
    ],
)
def test_an_error_keeps_its_kind_and_words(
    server: _Scripted, answer: Answer, kind: type[SiltstoneError], words: str
) -> None:
    server.answers = [answer]
    with AgentClient(_url(server), ManualClock()) as client, pytest.raises(kind, match=words):
        client.partitions("t")


def test_an_agent_that_is_not_there_is_named() -> None:
    url = "http://127.0.0.1:9"
    with AgentClient(url, ManualClock()) as client, pytest.raises(RetryableError, match=f"{url} does not"):
        client.partitions("t")


def test_reading_goes_on_at_the_next_offset_and_decodes_bytes(server: _Scripted) -> None:
    def page(records: list[dict[str, Any]], next_offset: int) -> Answer:
        bounds = {"log_start_offset": 0, "high_watermark": 9, "next_offset": next_offset}
        return _well({"records": records, **bounds})

    binary = {
        "offset": 3,
        "timestamp": 1,
        "headers": [],
        "key": "/wA=",
        "key_encoding": "base64",
        "value": None,
    }
    text = {"offset": 8, "timestamp": 2, "headers": [], "key": None, "value": "é"}
    server.answers = [page([binary], 4), page([], 6), page([text], 9)]
    with AgentClient(_url(server), ManualClock()) as client:
        pages = list(client.read_all("a/b", 2, max_records=5, max_bytes=6))
    records = [(each.offset, each.key, each.value) for one in pages for each in one.records]
    assert records == [(3, b"\xff\x00", None), (8, None, "é".encode())]
    assert [path for _, path, _ in server.asked] == [
        f"/v1/topics/a%2Fb/partitions/2/records?offset={offset}&max_records=5&max_bytes=6"
        for offset in (0, 4, 6)
    ]


def test_a_read_that_does_not_advance_ends_in_an_error(server: _Scripted) -> None:
    stuck = _well({"records": [], "log_start_offset": 0, "high_watermark": 9, "next_offset": 0})
    server.answers = [stuck]
    with (
        AgentClient(_url(server), ManualClock()) as client,
        pytest.raises(FatalError, match="beyond offset 0"),
    ):
        list(client.read_all("t", 0, max_records=1, max_bytes=1))
