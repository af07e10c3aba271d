"""`siltstone consume`: a topic's records, as they are read through an agent."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import orjson

from bedrock.clock import SystemClock
from bedrock.errors import InvalidInputError, NotFoundError
from siltstone.agent_client import AgentClient
from siltstone.command.options import agent_option, json_option, with_settings
from siltstone.nearby_agents import agent_url
from siltstone.output import emit_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from bedrock.clock import Clock
    from siltstone.agent_client import FetchedRecord
    from siltstone.configuration import Settings

PAGE_RECORDS = 1_000
_POLL_SECONDS = 0.25
_LONG_POLL_MS = 5_000


@click.command()
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), help="Read this partition alone. [default: all]")
@click.option(
    "--offset",
    metavar="WHERE",
    help="Where to begin: earliest, latest, or a number (with --partition). [default: earliest]",
)
@click.option("--timestamp", metavar="WHEN", help="Begin at this time: milliseconds, or 2013-06-01T12:00Z.")
@click.option("--max-records", type=click.IntRange(min=1), help="Stop after so many.")
@click.option("--follow", is_flag=True, help="Wait for more at the end; stop with ^C.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text: key, tab, value. json: everything, lossless, as produce --json-lines takes it.",
)
@agent_option
@json_option
@with_settings()
def command(
    settings: Settings,
    *,
    topic: str,
    partition: int | None,
    offset: str | None,
    timestamp: str | None,
    max_records: int | None,
    follow: bool,
    form: str,
    agent: str | None,
    as_json: bool,
) -> None:
    """Print the records of TOPIC, read through an agent.

    Partitions are read one after the other, each from WHERE to the end that it had when the command began.
    With --json, the last line is a report: how many records, and where to go on.
    """
    clock = SystemClock()
    with AgentClient(agent_url(settings.data_dir, agent), clock) as client:
        reading = _Reading(client, topic, _PRINTERS[form], max_records)
        ends = reading.begin(partition, _start(offset, timestamp, partition))
        try:
            for number, end in ends.items():
                reading.read_to(number, end)
            if follow:
                reading.follow(clock)
        except KeyboardInterrupt:
            if not follow:
                raise
    if as_json:
        emit_json(reading.report())


class _Reading:
    """Where the reading stands, partition by partition."""

    def __init__(
        self,
        client: AgentClient,
        topic: str,
        printer: Callable[[int, FetchedRecord], bytes],
        max_records: int | None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._printer = printer
        self._left = max_records
        self._count = 0
        self._next: dict[int, int] = {}

    def begin(self, partition: int | None, start: tuple[str, int]) -> dict[int, int]:
        """Find each partition's first offset to read; gives the ends that they have now."""
        bounds = [
            each
            for each in self._client.partitions(self._topic)
            if partition is None or each["partition"] == partition
        ]
        if not bounds:
            raise NotFoundError(
                f"topic {self._topic} has no partition {partition}",
                remedy=f"see: siltstone topics describe {self._topic}",
            )
        for each in bounds:
            self._next[each["partition"]] = self._first_offset(each, *start)
        return {each["partition"]: each["high_watermark"] for each in bounds}

    def _first_offset(self, bounds: dict[str, Any], kind: str, value: int) -> int:
        """Where to begin in one partition; an offset outside of its bounds is the agent's to refuse."""
        match kind:
            case "earliest":
                return int(bounds["log_start_offset"])
            case "latest":
                return int(bounds["high_watermark"])
            case "timestamp":
                page = self._client.fetch(self._topic, bounds["partition"], timestamp=value, max_records=1)
                return page.records[0].offset if page.records else page.next_offset
            case _:
                if not bounds["log_start_offset"] <= value <= bounds["high_watermark"]:
                    self._client.fetch(self._topic, bounds["partition"], offset=value, max_records=1)
                return value

    @property
    def is_done(self) -> bool:
        return self._left is not None and self._left <= 0

    def read_to(self, partition: int, end: int, max_wait_ms: int = 0) -> None:
        """Print what lies before offset `end` (and what comes along with it)."""
        while self._next[partition] < end and not self.is_done:
            before = self._next[partition]
            self._read_page(partition, max_wait_ms)
            if self._next[partition] <= before:
                return

    def _read_page(self, partition: int, max_wait_ms: int) -> None:
        limit = PAGE_RECORDS if self._left is None else min(PAGE_RECORDS, self._left)
        page = self._client.fetch(
            self._topic,
            partition,
            offset=self._next[partition],
            max_records=limit,
            max_wait_ms=max_wait_ms,
        )
        sys.stdout.buffer.write(b"".join(self._printer(partition, record) for record in page.records))
        sys.stdout.buffer.flush()
        self._next[partition] = page.next_offset
        self._count += len(page.records)
        if self._left is not None:
            self._left -= len(page.records)

    def follow(self, clock: Clock) -> None:
        """Go on printing what comes; one partition is waited for at the agent, several are looked up."""
        while not self.is_done:
            if len(self._next) == 1:
                self._read_page(next(iter(self._next)), _LONG_POLL_MS)
                continue
            for bounds in self._client.partitions(self._topic):
                self.read_to(bounds["partition"], bounds["high_watermark"])
            clock.sleep(_POLL_SECONDS)

    def report(self) -> dict[str, Any]:
        """How much was read, and where to go on."""
        return {
            "topic": self._topic,
            "records": self._count,
            "next_offsets": {str(number): offset for number, offset in sorted(self._next.items())},
        }


def _start(offset: str | None, timestamp: str | None, partition: int | None) -> tuple[str, int]:
    if timestamp is not None:
        if offset is not None:
            raise click.UsageError("--offset and --timestamp both say where to begin; give one of them")
        return "timestamp", _milliseconds(timestamp)
    if offset is None or offset in {"earliest", "latest"}:
        return offset or "earliest", 0
    if not (offset.isascii() and offset.isdecimal()):
        raise click.UsageError(f"--offset {offset!r} is not earliest, latest or a number")
    if partition is None:
        raise click.UsageError("--offset with a number needs --partition: every partition counts its own")
    return "number", int(offset)


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(
            f"--timestamp {text!r} is not a time",
            remedy="give milliseconds since 1970, or a time such as 2013-06-01T12:00Z",
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _text_line(_partition: int, record: FetchedRecord) -> bytes:
    return b"%s\t%s\n" % (record.key or b"", record.value or b"")


def _json_line(partition: int, record: FetchedRecord) -> bytes:
    return orjson.dumps({"partition": partition, **record.body}, option=orjson.OPT_APPEND_NEWLINE)


_PRINTERS: dict[str, Callable[[int, FetchedRecord], bytes]] = {"text": _text_line, "json": _json_line}
