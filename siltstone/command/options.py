"""The options that commands share, made from the settings' own descriptions."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from siltstone.configuration import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    Decorator = Callable[[Callable[..., None]], Callable[..., None]]

COMMON = ("data_dir", "object_store", "s3_endpoint", "s3_region", "catalog")
_METAVARS = {
    "data_dir": "DIR",
    "object_store": "URL",
    "s3_endpoint": "URL",
    "catalog": "URL",
    "http": "HOST:PORT",
    "spark_master": "MASTER",
}


def with_settings(*names: str) -> Decorator:
    """Give a command the common settings' options and those of `names`; it gets the settings first."""
    chosen = (*COMMON, *names)

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def call(*, config: Path | None, debug: bool, **arguments: object) -> None:
            click.get_current_context().meta["siltstone.debug"] = debug
            options = {name: arguments.pop(name) for name in chosen}
            body(load_settings(options, config), **arguments)

        wrapped: Callable[..., None] = call
        declared: list[Decorator] = [*(_setting_option(name) for name in chosen), *_ALWAYS]
        for option in reversed(declared):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _setting_option(name: str) -> Decorator:
    description = (Settings.model_fields[name].description or "").replace("`", "")
    return click.option(
        f"--{name.replace('_', '-')}", name, metavar=_METAVARS.get(name, "VALUE"), help=description
    )


_ALWAYS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Settings in TOML. [default: siltstone.toml in the data directory, where there is one]",
    ),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Give the report as one JSON object on the last line of output."
)
