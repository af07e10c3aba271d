"""The command's front door: which commands there are, and the one place where their errors end.

A command's module is loaded when the command is called, so that `siltstone --help` answers at once and
`siltstone topics list` does not wait for Spark. The summaries stand here for that reason; a test compares
them with the commands themselves.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from typing_extensions import override

from core.errors import RetryableError, SiltstoneError
from siltstone.interrupts import interrupt_on_signals
from siltstone.settings.sources import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED = 1
WRONG_USAGE = 2
TEMPORARY_FAILURE = 75  # EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

COMMANDS = {
    "agent": "Run an agent: take records, write segment files, answer reads.",
    "topics": "Create, list, describe and delete topics.",
    "produce": "Send lines of standard input, or of FILES, to TOPIC as a Kafka producer.",
    "consume": "Print the records of TOPIC, read as a Kafka consumer.",
    "plan": "Explain what compaction would do now, and why.",
    "simulate": "Simulate what a workload would need and cost over a year.",
    "compact": "Compact on Spark until nothing is left to do, then delete what is dead.",
    "quarantine": "List files that spoil every compaction job, or let them be tried again.",
    "expire": "Let go of what topics need not keep any longer, and delete what is dead.",
    "fsck": "Compare the catalog with the object store; change nothing without --repair or --restored.",
    "demo": "Take a year of real flights through the whole system, and check every record.",
}


class LazyGroup(click.Group):
    """A group that loads its commands by name, and turns every error into words and an exit code."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"siltstone.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupt_on_signals():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (Exception, KeyboardInterrupt) as failure:  # noqa: BLE001 - the outermost place, and it says so
            debug = bool(ctx.meta.get("siltstone.debug"))
            ctx.exit(report_error(failure, debug=debug))


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="siltstone", message="%(prog)s %(version)s")
def cli() -> None:
    """A Kafka-compatible log whose durable home is an object store.

    Settings come from `siltstone.toml` in the data directory (or --config), then SILTSTONE_* variables, then
    options, each winning over the one before. Every command has its own --help.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code.

    0, 1 failed, 2 wrong usage, 75 try again later, 130 interrupted.
    """
    cli.main(args=None if arguments is None else list(arguments), prog_name="siltstone")
    sys.exit(0)  # pragma: no cover - click has left already


def report_error(failure: BaseException, *, debug: bool) -> int:
    """Say what went wrong on standard error, and return the exit code; `debug` shows the traceback."""
    if isinstance(failure, KeyboardInterrupt | click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    if isinstance(failure, BrokenPipeError) or getattr(failure, "errno", None) == errno.EPIPE:
        # The reader of our output has left; say nothing, and let the interpreter's last flush go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if debug:
        traceback.print_exception(failure)
    if isinstance(failure, SiltstoneError):
        click.echo(f"error: {failure}", err=True)
        return _exit_code(failure)
    click.echo(f"error: unexpected {type(failure).__name__}: {failure}", err=True)
    if not debug:
        click.echo(f"  this is a bug in Siltstone; its traceback is in {_keep(failure)}", err=True)
    return FAILED


def _exit_code(failure: SiltstoneError) -> int:
    if isinstance(failure, ConfigurationError):
        return WRONG_USAGE
    if isinstance(failure, RetryableError):
        return TEMPORARY_FAILURE
    return FAILED


def _keep(failure: BaseException) -> Path:
    handle, name = tempfile.mkstemp(prefix="siltstone-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        traceback.print_exception(failure, file=file)
    return Path(name)
