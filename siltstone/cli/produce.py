"""`siltstone produce`: lines of standard input, or of files, become records."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from core.clock import SystemClock
from core.errors import InvalidInputError, NotFoundError, RetryableError, SiltstoneError
from core.quantities import count
from siltstone.cli.kafka_options import encoding_option, with_kafka_client
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json
from siltstone.kafka_client.connection import fetch_partitions
from siltstone.kafka_client.sender import Sender
from siltstone.kafka_client.text_records import (
    OutgoingRecord,
    TextFormat,
    create_json_parser,
    create_text_parser,
    decode,
    read_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from siltstone.kafka_client.sender import DeliveryCounts
    from siltstone.kafka_client.text_records import Headers, Parse
    from siltstone.settings.configuration import Settings

_INTERRUPTED_SECONDS = 10.0
_MAX_PRINTED = 1_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class _Input(NamedTuple):
    """What is read, and how records are made of it."""

    files: tuple[Path, ...]
    whole_files: bool
    parse: Parse


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option(
    "-K",
    "--key-separator",
    metavar="TEXT",
    help="What parts key from value, such as : or $'\\t'. [default: lines have no key]",
)
@click.option("-k", "--key", metavar="TEXT", help="The key of every record.")
@encoding_option("key", "How keys are written.")
@encoding_option("value", "How values are written.")
@click.option("-Z", "--null", metavar="TEXT", help="A key or value of this text is null: '' for empty ones.")
@click.option(
    "--json-lines",
    is_flag=True,
    help="Each line is a record as JSON: key, value, headers, timestamp, partition; key_encoding and "
    "value_encoding may be base64.",
)
@click.option("--whole-files", is_flag=True, help="Each of FILES is the value of one record.")
@click.option(
    "-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record."
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Send all to this partition.")
@click.option("-z", "--compression", type=click.Choice(CODECS), help="How batches are compressed.")
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="When a record counts as sent: at once, or when it is durable (1 and all are the same here).",
)
@click.option(
    "--idempotence/--no-idempotence",
    default=None,
    help="Let no retry double or reorder records. [default: with acks all]",
)
@click.option(
    "--batch-records",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="How many records go into one batch at most.",
)
@json_option
@with_settings()
@with_kafka_client
def command(
    settings: Settings,
    client: dict[str, str],
    *,
    topic: str,
    files: tuple[Path, ...],
    key_separator: str | None,
    key: str | None,
    key_encoding: str,
    value_encoding: str,
    null: str | None,
    json_lines: bool,
    whole_files: bool,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str | None,
    acks: str,
    idempotence: bool | None,
    batch_records: int,
    as_json: bool,
) -> None:
    """Send lines of standard input, or of FILES, to TOPIC as a Kafka producer.

    A line is a value without a key, unless --key-separator, --key or --json-lines say otherwise. Records are
    sent as they come and acknowledged when they are durable. Refused records are listed on standard error, by
    line, and the exit code is then 1; it is 75 when it is not known of some whether they were appended. A
    batch is taken or refused as a whole. ^C or SIGTERM ends the input; what was read is still
    sent.
    """
    del settings
    if json_lines and (key_separator is not None or key is not None):
        raise click.UsageError("--key-separator and --key have no meaning with --json-lines")
    if key_separator is not None and key is not None:
        raise click.UsageError("--key-separator and --key both say what the key is; give one of them")
    if whole_files and not files:
        raise click.UsageError("--whole-files needs FILES")
    common = _headers(headers)
    form = TextFormat(
        key_separator=key_separator,
        key_encoding=key_encoding,
        value_encoding=value_encoding,
        null=null,
        key=None if key is None else _key(key, key_encoding),
        headers=common,
    )
    source = _Input(
        files, whole_files, create_json_parser(common) if json_lines else create_text_parser(form)
    )
    configuration = {
        "acks": acks,
        "enable.idempotence": str(acks == "all" if idempotence is None else idempotence).lower(),
        "batch.num.messages": str(batch_records),
        **({} if compression is None else {"compression.type": compression}),
        **client,
    }
    tally, interrupted = _produce(configuration, topic, source, partition)
    _print_report(tally, as_json=as_json)
    if interrupted:
        raise KeyboardInterrupt


def _produce(
    configuration: dict[str, str], topic: str, source: _Input, partition: int | None
) -> tuple[DeliveryCounts, bool]:
    """Send all of the input; also whether ^C ended it. An error is told what was acknowledged before it."""
    failures = _FailureList()
    sender: Sender[str] = Sender(configuration, topic, failures.print_failure)
    # An unknown topic is an error also where there is nothing to send.
    known = fetch_partitions(sender.producer, topic, sender.errors, SystemClock())
    if partition is not None and partition not in known:
        raise NotFoundError(
            f"topic {topic!r} has no partition {partition}",
            remedy=f"see: siltstone topics describe {topic}",
        )
    with sender:
        try:
            for where, record in _records(source):
                sender.send(where, record, partition)
                sender.raise_if_unable()
            sender.finish(waiting=_print_waiting)
        except KeyboardInterrupt:
            click.echo("no more is read; what was read is being sent (^C once more gives it up)", err=True)
            _finish_soon(sender)
            return sender.tally, True
        except SiltstoneError:
            _finish_soon(sender)
            if sender.tally.accepted:
                click.echo(
                    f"{sender.tally.accepted:,} records had been accepted before this error:", err=True
                )
            raise
    return sender.tally, False


def _print_waiting(records: int) -> None:
    click.echo(
        f"waiting for {count(records, 'record')} to be acknowledged; when it lasts, the agents' logs say why",
        err=True,
    )


def _finish_soon(sender: Sender[str]) -> None:
    try:
        sender.finish(_INTERRUPTED_SECONDS)
    except KeyboardInterrupt:
        sender.finish(0)


def _records(source: _Input) -> Iterator[tuple[str, OutgoingRecord]]:
    """Every record with the words for its place in the input."""
    if not source.files:
        yield from _lines(sys.stdin.buffer, "", source.parse)
    for file in source.files:
        with _open(file) as stream:
            if source.whole_files:
                yield str(file), source.parse(str(file), stream.read())
            else:
                yield from _lines(stream, "" if len(source.files) == 1 else f"{file}, ", source.parse)


@contextlib.contextmanager
def _open(file: Path) -> Iterator[BinaryIO]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as failure:
        raise InvalidInputError(f"{file} cannot be read: {failure.strerror}") from None
    with stream:
        yield stream


def _lines(stream: BinaryIO, prefix: str, parse: Parse) -> Iterator[tuple[str, OutgoingRecord]]:
    number = 0
    for lines in read_lines(stream):
        for line in lines:
            number += 1
            where = f"{prefix}line {number}"
            yield where, parse(where, line.removesuffix(b"\r"))


def _headers(words: Sequence[str]) -> Headers:
    parted = [word.partition("=") for word in words]
    for word, (name, separator, _) in zip(words, parted, strict=True):
        if not name or not separator:
            raise click.UsageError(f"--header {word!r} is not NAME=VALUE")
    return tuple((name, value.encode()) for name, _, value in parted)


def _key(text: str, encoding: str) -> bytes:
    try:
        return decode(text.encode(), encoding)
    except ValueError as failure:
        raise click.UsageError(f"--key {text!r} is not {encoding}: {failure}") from None


class _FailureList:
    """Lists failed records on standard error, so many and no more."""

    def __init__(self) -> None:
        self._count = 0

    def print_failure(self, where: str, why: str, is_unconfirmed: bool) -> None:
        self._count += 1
        if self._count <= _MAX_PRINTED:
            click.echo(f"{where}: {'unconfirmed' if is_unconfirmed else 'refused'}: {why}", err=True)
        elif self._count == _MAX_PRINTED + 1:
            click.echo("… and more, which are only counted", err=True)


def _print_report(tally: DeliveryCounts, *, as_json: bool) -> None:
    if as_json:
        emit_json(tally.report())
    else:
        refused = f", {tally.refused:,} refused" if tally.refused else ""
        click.echo(f"{tally.accepted:,} records accepted{refused}")
    if tally.unconfirmed:
        raise RetryableError(
            f"of {tally.unconfirmed:,} records it is not known whether they were appended",
            remedy="read what the topic holds before sending them again, which may double them",
        )
    if tally.refused:
        click.get_current_context().exit(1)
