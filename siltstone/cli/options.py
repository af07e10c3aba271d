"""Options that commands share; their help texts are the descriptions of the settings."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from core.addresses import is_loopback, join_address, split_address
from core.errors import InvalidInputError
from siltstone.logging_setup import configure_logs
from siltstone.settings.configuration import SETTINGS
from siltstone.settings.sources import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from siltstone.settings.configuration import Settings

    Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_SHORTER = {"spark_master": ("--master",)}
_HINTS = {
    "catalog": " Other users of the machine can see options: give a URL with a password in the settings "
    "file or in SILTSTONE_CATALOG.",
}
COMMON = ("data_dir", "object_store", "s3_endpoint", "s3_region", "catalog", "log_level")
_METAVARS = {
    "data_dir": "DIR",
    "object_store": "URL",
    "s3_endpoint": "URL",
    "catalog": "URL",
    "http": "HOST:PORT",
    "health": "HOST:PORT",
    "kafka": "HOST:PORT",
    "kafka_advertised": "HOST:PORT",
    "listeners": "NAME://HOST:PORT,…",
    "advertised_listeners": "NAME://HOST:PORT,…",
    "http_listeners": "NAME://HOST:PORT,…",
    "local_dirs": "DIR,…",
    "s3_region": "REGION",
    "log_level": "LEVEL",
    "spark_master": "MASTER",
}


def with_settings(*names: str, file_flags: tuple[str, ...] = ("--config", "--config-file")) -> Decorator:
    """Add options for the common settings and for `names` to a command, and pass it the loaded settings.

    `file_flags` name the option for the settings file, for a command that uses --config otherwise.
    """
    chosen = (*COMMON, *names)

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def call(*, config_file: Path | None, debug: bool, **arguments: object) -> None:
            click.get_current_context().meta["siltstone.debug"] = debug
            options = {name: arguments.pop(name) for name in chosen}
            settings = load_settings(options, config_file)
            # First of all: unconfigured, structlog writes to standard output, which is for reports.
            configure_logs(settings.log_level)
            body(settings, **arguments)

        wrapped: Callable[..., None] = call
        declared: list[Decorator] = [
            *(_setting_option(name) for name in chosen),
            _file_option(file_flags),
            _debug_option,
        ]
        for option in reversed(declared):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _setting_option(name: str) -> Decorator:
    setting = SETTINGS[name]
    description = setting.description.replace("`", "")
    default = "" if setting.default is None else f"  [default: {setting.default}]"
    return click.option(
        f"--{name.replace('_', '-')}",
        *_SHORTER.get(name, ()),
        name,
        metavar=_METAVARS.get(name, "VALUE"),
        help=description + _HINTS.get(name, "") + default,
    )


def _file_option(flags: tuple[str, ...]) -> Decorator:
    return click.option(
        *flags,
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="TOML file with settings.  [default: siltstone.toml in the data directory, if it exists]",
    )


def _address(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    try:
        return None if value is None else split_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_debug_option = click.option("--debug", is_flag=True, help="Print the traceback of an error.")
metrics_option = click.option(
    "--metrics",
    metavar="HOST:PORT",
    callback=_address,
    help="With --watch: address of Prometheus metrics; port 0 takes a free port. There is no authentication.",
)


def check_metrics_address(settings: Settings, address: tuple[str, int] | None) -> None:
    """Raise InvalidInputError if other machines could read metrics without authentication."""
    if address is None or is_loopback(address[0]) or settings.network.allow_insecure_listeners:
        return
    raise InvalidInputError(
        f"other machines could read the metrics on {join_address(*address)}, which have no authentication",
        remedy="give --metrics an address of loopback, or accept the risk with allow_insecure_listeners=true",
    )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the report as one JSON object on the last line of output."
)
