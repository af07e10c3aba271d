"""Options that `siltstone produce` and `siltstone consume` share as Kafka clients."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from siltstone.kafka_client.agent_discovery import bootstrap_servers
from siltstone.kafka_client.connection import parse_properties
from siltstone.kafka_client.text_records import ENCODINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from siltstone.settings.configuration import Settings

    Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,…",
        help="Brokers to connect to first.  [default: the running agents of the data directory]",
    ),
    click.option(
        "-F",
        "--client-config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        multiple=True,
        help="File of librdkafka properties, one NAME=VALUE a line. Use it for passwords. It overrides the "
        "file of the setting client_config.",
    ),
    click.option(
        "-X",
        "--property",
        "client_property",
        metavar="NAME=VALUE",
        multiple=True,
        help="librdkafka property; overrides every other option. May be repeated. Other users of the machine "
        "can see it: give passwords in a file.",
    ),
)


def with_kafka_client(body: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a Kafka client to a command, and pass it the resulting librdkafka properties.

    Apply it below `with_settings`: agents are discovered in the data directory of the settings.
    """

    @functools.wraps(body)
    def call(
        settings: Settings,
        *,
        bootstrap_server: str | None,
        client_config: tuple[Path, ...],
        client_property: tuple[str, ...],
        **arguments: object,
    ) -> None:
        configured = () if settings.client_config is None else (settings.client_config,)
        given = parse_properties((*configured, *client_config), client_property)
        if bootstrap_server is not None:
            given = {"bootstrap.servers": bootstrap_server, **given}
        elif not {"bootstrap.servers", "metadata.broker.list"} & set(given):
            given["bootstrap.servers"] = bootstrap_servers(settings.data_dir)
        body(settings, given, **arguments)

    wrapped: Callable[..., None] = call
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def encoding_option(part: str, text: str) -> Decorator:
    """Return the option `--key-encoding` or `--value-encoding` with a help text."""
    return click.option(
        f"--{part}-encoding", type=click.Choice(ENCODINGS), default="text", show_default=True, help=text
    )
