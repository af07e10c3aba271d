"""Output of commands: reports on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
import getpass
import warnings
from typing import TYPE_CHECKING, Any

import click
import orjson
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from core.clock import Clock

_PLAIN_WIDTH = 110


def report_console() -> Console:
    """Return the console for reports on standard output; without a terminal, plain text of a fixed width."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def print_whole(console: Console, text: str, style: str | None = None) -> None:
    """Print a line without breaks, however narrow the terminal is, so that names in it can be copied."""
    console.print(text, style=style, markup=False, soft_wrap=True)


class ProgressDisplay:
    """Progress on standard error: bars on a terminal, lines elsewhere."""

    def __init__(self, clock: Clock, *, quiet: bool = False) -> None:
        self._clock = clock
        self._console = Console(stderr=True, highlight=False, quiet=quiet)

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False)

    @contextlib.contextmanager
    def phase(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show that the block runs; the block calls the yielded function with each step it has done."""
        started = self._clock.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            *((MofNCompleteColumn(),) if total is not None else ()),
            TimeElapsedColumn(),
        )
        with Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        ) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.advance(task, done)
        self.say(f"✓ {title} ({self._clock.monotonic() - started:.1f} s)")


def confirm(question: str, refused: str) -> None:
    """Ask for confirmation on the terminal; if the user refuses, print `refused` and exit with code 1.

    Raises InvalidInputError if standard input ends before a response.
    """
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort as failure:
        if not isinstance(failure.__context__, EOFError):  # ^C
            raise
        click.echo(err=True)  # ends the line of the question
        raise InvalidInputError(
            "standard input has no response to this question", remedy="use --yes to proceed without it"
        ) from None
    click.echo(refused, err=True)
    click.get_current_context().exit(1)


def ask_for_password() -> str:
    """Ask twice for a password, which the terminal does not show.

    Raises InvalidInputError if there is no terminal, or if standard input ends.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # the password would be visible
            return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    except (click.Abort, getpass.GetPassWarning) as failure:
        if isinstance(failure, click.Abort) and not isinstance(failure.__context__, EOFError):  # ^C
            raise
        raise InvalidInputError(
            "the password cannot be asked for: there is no terminal",
            remedy="use --password-file FILE, or --password-file - for standard input",
        ) from None


def emit_json(report: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of standard output, and flush it."""
    click.echo(orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS).decode())


def table(title: str | None, *columns: str, rows: Iterable[Iterable[object]] = ()) -> Table:
    """Return a table; a column whose name starts with `>` is aligned to the right."""
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
