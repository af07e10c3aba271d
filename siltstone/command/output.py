"""Where words go: reports to standard output, progress and logs to standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def report_console() -> Console:
    """For people, on standard output; plain text when that is not a terminal."""
    return Console(highlight=False, soft_wrap=False)


def progress_console() -> Console:
    """For people who wait, on standard error."""
    return Console(stderr=True, highlight=False)


def emit_json(report: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of standard output, and flush it."""
    click.echo(orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS).decode())


def table(title: str | None, *columns: str, rows: Iterable[Iterable[object]] = ()) -> Table:
    """A light table; columns whose name starts with `>` are numbers, set to the right."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        number = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if number else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return "-" if value is None else str(value)
    return f"{value:,}"


def human_bytes(count: float) -> str:
    """Bytes as people read them: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
