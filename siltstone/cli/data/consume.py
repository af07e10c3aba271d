"""`siltstone consume`: print the records of a topic, as a Kafka consumer."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from core.clock import SystemClock
from core.ids import SystemIds
from siltstone.cli.data.kafka_options import encoding_option, with_kafka_client
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json
from siltstone.interrupts import Interrupts
from siltstone.kafka_client.reader import Reader, StartPosition
from siltstone.kafka_client.text_records import TextFormat, create_text_renderer, render_json

if TYPE_CHECKING:
    from siltstone.kafka_client.text_records import Render
    from siltstone.settings.configuration import Settings

_WORDS = {
    "earliest": StartPosition("earliest"),
    "beginning": StartPosition("earliest"),
    "latest": StartPosition("latest"),
    "end": StartPosition("latest"),
}


@click.command()
@click.argument("topic")
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), help="Read only this partition.  [default: all]"
)
@click.option(
    "-o",
    "--offset",
    metavar="WHERE",
    help="Where to start: earliest, latest, an offset (with --partition), or -N for the last N records of "
    "each partition.  [default: earliest]",
)
@click.option(
    "--timestamp",
    metavar="WHEN",
    help="Start at this time: milliseconds since 1970, or ISO 8601 such as 2013-06-01T12:00Z.",
)
@click.option(
    "-G",
    "--group",
    metavar="NAME",
    help="Join this consumer group: start at its committed offsets and commit what is printed. --offset "
    "earliest or latest applies to partitions without a committed offset.",
)
@click.option(
    "-c",
    "--max-messages",
    "--max-records",
    "max_records",
    type=click.IntRange(min=1),
    help="Stop after this many records.",
)
@click.option(
    "--follow/--exit",
    "-f/-e",
    default=None,
    help="At the end, wait for more records until ^C, or exit.  [default: exit; with --group: follow]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "value", "json"]),
    default="text",
    show_default=True,
    help="text: key, separator, value. value: only the value. json: all fields, as siltstone produce "
    "--json-lines reads them.",
)
@click.option(
    "-K",
    "--key-separator",
    metavar="TEXT",
    default="\t",
    help="Text between key and value, for --format text.  [default: a tab]",
)
@encoding_option("key", "Encoding of keys, for --format text.")
@encoding_option("value", "Encoding of values, for --format text and value.")
@click.option("-Z", "--null", metavar="TEXT", default="", help="Text that stands for null.  [default: empty]")
@json_option
@with_settings()
@with_kafka_client
def command(
    settings: Settings,
    client: dict[str, str],
    *,
    topic: str,
    partition: int | None,
    offset: str | None,
    timestamp: str | None,
    group: str | None,
    max_records: int | None,
    follow: bool | None,
    form: str,
    key_separator: str,
    key_encoding: str,
    value_encoding: str,
    null: str,
    as_json: bool,
) -> None:
    """Print the records of TOPIC, as a Kafka consumer.

    Each partition is read from the given start to the end that it had when the command started, unless
    --follow is given. Records of one partition are printed in order. With --json, the last line is a report
    with the number of records and the next offset of each partition.
    """
    del settings
    start = _start(offset, timestamp, partition)
    if group is not None and (partition is not None or start.kind not in {"earliest", "latest"}):
        raise click.UsageError(
            "--group can be combined only with --offset earliest or latest; the group assigns the partitions "
            "and has committed offsets"
        )
    text = TextFormat(
        key_separator=None if form == "value" else key_separator,
        key_encoding=key_encoding,
        value_encoding=value_encoding,
        null=null,
    )
    reader = Reader({**_as_member_or_not(group, start), **client}, topic, SystemClock())
    follows = group is not None if follow is None else follow
    try:
        if group is None:
            reader.start_at(partition, start)
        else:
            reader.join()
        _print(
            reader,
            render_json if form == "json" else create_text_renderer(text),
            follow=follows,
            max_records=max_records,
        )
    except KeyboardInterrupt:
        if not follows:
            raise
    finally:
        reader.close()
    if as_json:
        emit_json(_report(topic, reader))


def _as_member_or_not(group: str | None, start: StartPosition) -> dict[str, str]:
    if group is not None:
        return {"group.id": group, "enable.auto.commit": "true", "auto.offset.reset": start.kind}
    # librdkafka needs a group name; nothing is committed under it, and no group is joined.
    nameless = f"siltstone-consume-{SystemIds(SystemClock()).new_uuid()}"
    return {"group.id": nameless, "enable.auto.commit": "false"}


def _print(reader: Reader, render: Render, *, follow: bool, max_records: int | None) -> None:
    out = sys.stdout.buffer
    with Interrupts() as interrupts:
        for records in reader.batches(follow=follow, max_records=max_records):
            # Between these calls ^C would lose count of printed records, and the group would repeat them.
            with interrupts.shielded():
                out.write(b"".join(map(render, records)))
                out.flush()
                reader.mark_consumed(records)


def _report(topic: str, reader: Reader) -> dict[str, Any]:
    return {
        "topic": topic,
        "records": reader.count,
        "next_offsets": {str(number): offset for number, offset in sorted(reader.next_offsets.items())},
    }


def _start(offset: str | None, timestamp: str | None, partition: int | None) -> StartPosition:
    if timestamp is not None:
        if offset is not None:
            raise click.UsageError("--offset and --timestamp cannot be combined")
        return StartPosition("timestamp", _milliseconds(timestamp))
    if offset is None or offset in _WORDS:
        return _WORDS[offset or "earliest"]
    number = offset.removeprefix("-")
    if not (number.isascii() and number.isdecimal()):
        raise click.UsageError(f"--offset {offset!r} is not earliest, latest or a number")
    if offset.startswith("-"):
        return StartPosition("last", int(number))
    if partition is None:
        raise click.UsageError(
            "--offset with a number needs --partition, because offsets differ by partition"
        )
    return StartPosition("offset", int(offset))


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--timestamp {text!r} is not a time: give milliseconds since 1970, or a time such as "
            "2013-06-01T12:00Z"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
