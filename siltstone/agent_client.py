"""Speaks to an agent's HTTP API: what `siltstone produce`, `consume` and the demo have in common.

Calls block. One client may be used by many threads. A request that a busy agent turns away is made again
after the pause that it asks for, a bounded number of times; no other, since it may have been carried out.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, Self, TypedDict
from urllib.parse import quote

import httpx
import orjson

from bedrock.errors import FatalError, InvalidInputError, NotFoundError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from bedrock.clock import Clock

_ATTEMPTS = 60
_LONGEST_PAUSE_SECONDS = 5.0
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 120.0
_MISSING = 404
_ALL_REFUSED = 422
_HEAD_BYTES = 4096


class RequestLostError(RetryableError):
    """The agent went away before it answered: the request may have been carried out."""


class RecordToSend(TypedDict):
    """A record in the API's own form."""

    key: NotRequired[str | None]
    value: NotRequired[str | None]
    timestamp: NotRequired[int | None]


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """Where a record stands, or why it was refused."""

    partition: int | None
    offset: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """A record as it was read; `body` is the API's own form of it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """What one read gave; go on at `next_offset`."""

    records: list[FetchedRecord]
    next_offset: int
    log_start_offset: int
    high_watermark: int


class AgentClient:
    """One agent, by its base URL."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        # The agent is ours and near; a proxy from the environment is for the world outside.
        self._http = httpx.Client(
            base_url=url, timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS), trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    @property
    def url(self) -> str:
        """The agent's base URL."""
        return self._url

    def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> dict[str, Any]:
        """Create a topic; gives the API's description of it."""
        body = {"name": name, "partitions": partitions, "config": config}
        return self._call("POST", "/v1/topics", body=body)

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        """The bounds of a topic's partitions, by number."""
        answer = self._call("GET", f"/v1/topics/{_quoted(topic)}/partitions")
        found: list[dict[str, Any]] = answer["partitions"]
        return found

    def produce(
        self,
        topic: str,
        records: Sequence[RecordToSend] | Sequence[dict[str, Any]],
        partition: int | None = None,
    ) -> list[RecordOutcome]:
        """Append records in their order; one outcome each. It returns when they are durable."""
        where = f"/v1/topics/{_quoted(topic)}" + ("" if partition is None else f"/partitions/{partition}")
        answer = self._call("POST", f"{where}/records", body={"records": records})
        return [_outcome(result) for result in answer["results"]]

    def fetch(self, topic: str, partition: int, **query: int) -> Page:
        """One read; `query` as the API has it: offset or timestamp, max_records, max_bytes, max_wait_ms."""
        answer = self._call("GET", f"/v1/topics/{_quoted(topic)}/partitions/{partition}/records", query=query)
        return Page(
            records=[_record(body) for body in answer["records"]],
            next_offset=answer["next_offset"],
            log_start_offset=answer["log_start_offset"],
            high_watermark=answer["high_watermark"],
        )

    def read_all(self, topic: str, partition: int, *, max_records: int, max_bytes: int) -> Iterator[Page]:
        """Every page of a partition from offset 0 to the high watermark that the last page tells."""
        offset = 0
        while True:
            page = self.fetch(topic, partition, offset=offset, max_records=max_records, max_bytes=max_bytes)
            yield page
            if page.next_offset >= page.high_watermark:
                return
            if page.next_offset <= offset:
                raise FatalError(f"a read of {topic}-{partition} does not get beyond offset {offset}")
            offset = page.next_offset

    def _call(
        self, method: str, path: str, *, body: object = None, query: dict[str, int] | None = None
    ) -> dict[str, Any]:
        content = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = self._http.request(method, path, content=content, params=query, headers=headers)
            except httpx.HTTPError as failure:
                never_sent = isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout)
                kind = RetryableError if never_sent or method == "GET" else RequestLostError
                raise kind(
                    f"agent at {self._url} does not answer: {type(failure).__name__}: {failure}",
                    remedy="see whether it runs, and at which address",
                ) from failure
            if answer.is_success or _has_results(answer):
                return _object(answer)
            if not _turned_away(answer) or attempt == _ATTEMPTS:
                raise _error(answer)
            self._clock.sleep(_pause(answer))
        raise AssertionError("unreachable")


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise FatalError(f"{answer.url} does not answer as an agent does", remedy="check the agent's address")
    return found


def _has_results(answer: httpx.Response) -> bool:
    """Whether each record was refused for itself: by its status an error, and an answer still."""
    return answer.status_code == _ALL_REFUSED and b'"results"' in answer.content[:_HEAD_BYTES]


def _turned_away(answer: httpx.Response) -> bool:
    """Whether the agent was too busy to take the request: only then is it sure that nothing was appended."""
    return answer.status_code in {429, 503} and _detail(answer).get("code") == "busy"


def _pause(answer: httpx.Response) -> float:
    try:
        seconds = float(answer.headers.get("retry-after", "1"))
    except ValueError:
        seconds = 1.0
    return min(max(seconds, 0.0), _LONGEST_PAUSE_SECONDS)


def _detail(answer: httpx.Response) -> dict[str, Any]:
    """What the agent says of its refusal; empty when something else answered in its place."""
    try:
        found = orjson.loads(answer.content)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _error(answer: httpx.Response) -> InvalidInputError | RetryableError | FatalError:
    detail = _detail(answer)
    message = str(detail.get("message", f"{answer.url} answered with status {answer.status_code}"))
    remedy = detail.get("remedy", None if detail else "check the agent's address")
    if answer.status_code == _MISSING:
        return NotFoundError(message, remedy=remedy)
    if answer.status_code in {429, 503, 504}:
        return RetryableError(message, remedy=remedy)
    if answer.is_client_error:
        return InvalidInputError(message, remedy=remedy)
    return FatalError(message, remedy=remedy)


def _outcome(result: dict[str, Any]) -> RecordOutcome:
    error = result.get("error")
    words = None if error is None else f"{error['code']}: {error['message']}"
    return RecordOutcome(result.get("partition"), result.get("offset"), words)


def _record(body: dict[str, Any]) -> FetchedRecord:
    return FetchedRecord(
        offset=body["offset"],
        timestamp=body["timestamp"],
        key=_bytes(body, "key"),
        value=_bytes(body, "value"),
        body=body,
    )


def _bytes(body: dict[str, Any], field: str) -> bytes | None:
    text = body[field]
    if text is None:
        return None
    return base64.b64decode(text) if body.get(f"{field}_encoding") == "base64" else str(text).encode()


def _quoted(name: str) -> str:
    """A topic's name as one step of a path, whatever a user typed."""
    return quote(name, safe="")
