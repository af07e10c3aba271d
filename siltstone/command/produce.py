"""`siltstone produce`: lines of standard input become records."""

from __future__ import annotations

import base64
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import orjson

from bedrock.clock import SystemClock
from bedrock.errors import InvalidInputError, RetryableError, SiltstoneError
from siltstone.agent_client import AgentClient, RequestLostError
from siltstone.command.options import agent_option, json_option, with_settings
from siltstone.nearby_agents import agent_url
from siltstone.output import emit_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from siltstone.agent_client import RecordOutcome
    from siltstone.configuration import Settings

READ_BYTES = 1024 * 1024
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_BATCH_BYTES = 8 * 1024 * 1024

# How an agent names a record that is not of the documented form, and the part of it that is not
_RECORD = re.compile(r"\brecords\.(\d+)(?:\.([\w.]+))?")

Numbered = tuple[int, dict[str, Any]]


@click.command()
@click.argument("topic")
@click.option("--key-separator", metavar="TEXT", help="What parts key from value, such as : or $'\\t'.")
@click.option(
    "--json-lines",
    is_flag=True,
    help="Each line is a record as JSON: key, value, headers, timestamp, partition; key_encoding and "
    "value_encoding may be base64.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Send all to this partition.")
@click.option(
    "--batch-records",
    type=click.IntRange(1, 100_000),
    default=10_000,
    show_default=True,
    help="How many records go into one request at most.",
)
@agent_option
@json_option
@with_settings()
def command(
    settings: Settings,
    *,
    topic: str,
    key_separator: str | None,
    json_lines: bool,
    partition: int | None,
    batch_records: int,
    agent: str | None,
    as_json: bool,
) -> None:
    """Send lines of standard input to TOPIC, through an agent.

    A line is a value without a key, unless --key-separator or --json-lines say otherwise. Records are sent as
    they come and acknowledged when they are durable. Refused records are listed on standard error, by line,
    and the exit code is then 1.
    """
    if json_lines and key_separator is not None:
        raise click.UsageError("--key-separator has no meaning with --json-lines")
    parse = _json_record if json_lines else _line_parser(key_separator)
    tally = _Tally(topic)
    with AgentClient(agent_url(settings.data_dir, agent), SystemClock()) as client:
        client.partitions(topic)  # an unknown topic is an error also where there is nothing to send
        try:
            for batch in batches(read_lines(sys.stdin.buffer), parse, batch_records):
                tally.add(batch, _send(client, topic, batch, partition))
        except SiltstoneError as failure:
            if tally.accepted:
                click.echo(f"{tally.accepted:,} records had been accepted before this error:", err=True)
            raise failure from None
    if as_json:
        emit_json(tally.report())
    else:
        refused = f", {tally.refused:,} refused" if tally.refused else ""
        click.echo(f"{tally.accepted:,} records accepted{refused}")
    if tally.refused:
        click.get_current_context().exit(1)


def _send(
    client: AgentClient, topic: str, batch: list[Numbered], partition: int | None
) -> list[RecordOutcome]:
    """One request; its errors speak of lines of the input."""
    first, last = batch[0][0], batch[-1][0]
    lines = f"line {first}" if first == last else f"lines {first} to {last}"
    try:
        return client.produce(topic, [record for _, record in batch], partition)
    except RequestLostError as failure:
        raise RetryableError(
            f"{failure.message}; {lines} of the input may have been appended or not",
            remedy="read what the topic holds before sending them again, which may double them",
        ) from failure
    except InvalidInputError as failure:
        named = _RECORD.sub(lambda found: _line_of(batch, found), failure.message)
        if named == failure.message:
            raise
        raise InvalidInputError(
            f"{named}; nothing of {lines} was appended", remedy="correct the input, and send it from there on"
        ) from failure


def _line_of(batch: list[Numbered], found: re.Match[str]) -> str:
    """`records.3.key` of a request, in terms of the input."""
    index = int(found[1])
    if index >= len(batch):
        return found[0]
    return f"line {batch[index][0]}" + (f", field {found[2]}" if found[2] else "")


def read_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The complete lines of whatever there is to read, without waiting for more; then the next such list."""
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while chunk := read(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidInputError(f"a line is longer than {MAX_LINE_BYTES:,} bytes")
        if lines:
            yield lines
    if rest:
        yield [rest]


def batches(
    groups: Iterator[list[bytes]], parse: Callable[[int, bytes], dict[str, Any]], batch_records: int
) -> Iterator[list[Numbered]]:
    """Parsed records with their line numbers, in lists that one request can carry."""
    number = 0
    for lines in groups:
        batch: list[Numbered] = []
        size = 0
        for line in lines:
            number += 1
            if batch and (len(batch) == batch_records or size + len(line) > MAX_BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append((number, parse(number, line.removesuffix(b"\r"))))
            size += len(line)
        if batch:
            yield batch


def _line_parser(separator: str | None) -> Callable[[int, bytes], dict[str, Any]]:
    def parse(number: int, line: bytes) -> dict[str, Any]:
        if separator is None:
            return _fields("value", line)
        key, found, value = line.partition(separator.encode())
        if not found:
            raise InvalidInputError(
                f"line {number} has no {separator!r} between key and value", remedy="correct --key-separator"
            )
        return _fields("key", key) | _fields("value", value)

    if separator == "":
        raise click.UsageError("--key-separator is empty")
    return parse


def _fields(name: str, data: bytes) -> dict[str, Any]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def _json_record(number: int, line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as failure:
        raise InvalidInputError(
            f"line {number} is not JSON: {failure.msg} at column {failure.colno}"
        ) from None
    if not isinstance(record, dict):
        raise InvalidInputError(
            f"line {number} is JSON, but not an object",
            remedy='write records such as {"key": "k", "value": "v"}',
        )
    return record


@dataclass(slots=True)
class _Tally:
    topic: str
    accepted: int = 0
    refused: int = 0
    partitions: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, batch: list[Numbered], outcomes: list[RecordOutcome]) -> None:
        for (number, _), outcome in zip(batch, outcomes, strict=True):
            if outcome.error is not None or outcome.partition is None or outcome.offset is None:
                self.refused += 1
                click.echo(f"line {number}: refused: {outcome.error}", err=True)
                continue
            self.accepted += 1
            place = self.partitions.setdefault(
                outcome.partition,
                {"records": 0, "first_offset": outcome.offset, "last_offset": outcome.offset},
            )
            place["records"] += 1
            place["last_offset"] = outcome.offset

    def report(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "accepted": self.accepted,
            "refused": self.refused,
            "partitions": {str(number): place for number, place in sorted(self.partitions.items())},
        }
