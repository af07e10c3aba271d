"""`siltstone produce`: send lines of standard input or of files as records."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from core.clock import SystemClock
from core.errors import InvalidInputError, NotFoundError, RetryableError, SiltstoneError
from core.quantities import count
from siltstone.cli.data.kafka_options import encoding_option, with_kafka_client
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json
from siltstone.kafka_client.connection import fetch_partitions, to_siltstone_error
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

    from siltstone.kafka_client.text_records import Headers, Parse
    from siltstone.settings.configuration import Settings

_STANDARD_INPUT = Path("-")
_INTERRUPTED_SECONDS = 10.0
_MAX_PRINTED = 1_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class _Input(NamedTuple):
    """Input of the command, and the parser that turns it into records."""

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
    help="Text between key and value, such as : or $'\\t'.  [default: lines have no key]",
)
@click.option("-k", "--key", metavar="TEXT", help="Key of every record.")
@encoding_option("key", "Encoding of keys in the input.")
@encoding_option("value", "Encoding of values in the input.")
@click.option(
    "-Z", "--null", metavar="TEXT", help="Send a key or value of this text as null; '' for empty ones."
)
@click.option(
    "--json-lines",
    is_flag=True,
    help="Read each line as a JSON object with key, value, headers, timestamp and partition. "
    "key_encoding and value_encoding may be base64.",
)
@click.option("--whole-files", is_flag=True, help="Send each of FILES as the value of one record.")
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="Header of every record. May be repeated.",
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Send all records to this partition.")
@click.option("-z", "--compression", type=click.Choice(CODECS), help="Codec of batches.  [default: none]")
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="When a record counts as sent. 0: at once. 1 and all: when it is durable.",
)
@click.option(
    "--idempotence/--no-idempotence",
    default=None,
    help="Prevent retries from duplicating or reordering records.  [default: on with --acks all]",
)
@click.option(
    "--batch-records",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="Maximum number of records in one batch.",
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
    """Send lines of standard input or of FILES to TOPIC, as a Kafka producer.

    A line is a value without a key unless --key-separator, --key or --json-lines is given. Lines are sent as
    they are read, and acknowledged when they are durable.

    Rejected records are listed on standard error with their line number, and the exit code is then 1. A
    broker accepts or rejects a batch as a whole. The exit code is 75 if some records were not confirmed, so
    that they may or may not have been appended. On ^C or SIGTERM, the command stops reading and sends what it
    has read.
    """
    del settings
    if json_lines and (key_separator is not None or key is not None):
        raise click.UsageError("--key-separator and --key cannot be combined with --json-lines")
    if key_separator is not None and key is not None:
        raise click.UsageError("--key-separator and --key cannot be combined")
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
    sender, interrupted = _produce(configuration, topic, source, partition)
    _print_report(sender, as_json=as_json)
    if interrupted:
        raise KeyboardInterrupt


def _produce(
    configuration: dict[str, str], topic: str, source: _Input, partition: int | None
) -> tuple[Sender[str], bool]:
    """Send the whole input; return the sender, and True if ^C ended the input.

    When an error ends it, the number of records that were accepted before is printed.
    """
    failures = _FailureList()
    sender: Sender[str] = Sender(configuration, topic, failures.print_failure)
    # An unknown topic is an error even if the input is empty.
    known = fetch_partitions(sender.producer, sender.purpose, sender.errors, SystemClock())
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
            sender.raise_if_unable()
        except KeyboardInterrupt:
            click.echo("stopped reading; sending what was read (press ^C again to stop)", err=True)
            _finish_soon(sender)
            return sender, True
        except SiltstoneError:
            _finish_soon(sender)
            if sender.counts.accepted:
                accepted = count(sender.counts.accepted, "record")
                click.echo(f"before this error, the agent had accepted {accepted}:", err=True)
            raise
    return sender, False


def _print_waiting(records: int) -> None:
    click.echo(
        f"waiting for {count(records, 'record')} to be acknowledged; if it takes long, see the agents' logs",
        err=True,
    )


def _finish_soon(sender: Sender[str]) -> None:
    try:
        sender.finish(_INTERRUPTED_SECONDS)
    except KeyboardInterrupt:
        sender.finish(0)


def _records(source: _Input) -> Iterator[tuple[str, OutgoingRecord]]:
    """Yield each record with its position in the input, as text for messages."""
    for file in source.files or (_STANDARD_INPUT,):
        with _open(file) as stream:
            if source.whole_files:
                yield str(file), source.parse(str(file), stream.read())
            else:
                yield from _lines(stream, f"{file}, " if len(source.files) > 1 else "", source.parse)


@contextlib.contextmanager
def _open(file: Path) -> Iterator[BinaryIO]:
    is_standard = file == _STANDARD_INPUT
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if is_standard else file.open("rb") as stream:
            yield stream
    except OSError as failure:
        name = "standard input" if is_standard else file
        raise InvalidInputError(f"{name} cannot be read: {failure.strerror}") from None


def _lines(stream: BinaryIO, prefix: str, parse: Parse) -> Iterator[tuple[str, OutgoingRecord]]:
    number = 0
    for lines in read_lines(stream):
        for line in lines:
            number += 1
            where = f"{prefix}line {number}"
            yield where, parse(where, line.removesuffix(b"\r"))


def _headers(texts: Sequence[str]) -> Headers:
    parted = [text.partition("=") for text in texts]
    for text, (name, separator, _) in zip(texts, parted, strict=True):
        if not name or not separator:
            raise click.UsageError(f"--header {text!r} is not NAME=VALUE")
    return tuple((name, value.encode()) for name, _, value in parted)


def _key(text: str, encoding: str) -> bytes:
    try:
        return decode(text.encode(), encoding)
    except ValueError as failure:
        raise click.UsageError(f"--key {text!r} is not {encoding}: {failure}") from None


class _FailureList:
    """Bounded list of failed records on standard error."""

    def __init__(self) -> None:
        self._count = 0

    def print_failure(self, where: str, why: str, is_unconfirmed: bool) -> None:
        self._count += 1
        if self._count <= _MAX_PRINTED:
            click.echo(f"{where}: {'unconfirmed' if is_unconfirmed else 'rejected'}: {why}", err=True)
        elif self._count == _MAX_PRINTED + 1:
            click.echo("… and more, which are counted but not listed", err=True)


def _print_report(sender: Sender[str], *, as_json: bool) -> None:
    counts = sender.counts
    if as_json:
        emit_json(counts.report())
    else:
        rejected = f", {counts.rejected:,} rejected" if counts.rejected else ""
        click.echo(f"{count(counts.accepted, 'record')} accepted{rejected}")
    if counts.unconfirmed:
        raise RetryableError(
            f"{count(counts.unconfirmed, 'record')} may or may not have been appended (unconfirmed)",
            remedy="check the topic before you send them again, to avoid duplicates",
        )
    if sender.denial is not None:
        raise to_siltstone_error(sender.denial, sender.purpose)
    if counts.rejected:
        click.get_current_context().exit(1)
