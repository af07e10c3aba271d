"""How an error leaves the command: a sentence on standard error, and an exit code. Never a traceback."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from pathlib import Path

import click

from core.errors import RetryableError, SiltstoneError
from siltstone.settings.sources import ConfigurationError

FAILED = 1
WRONG_USAGE = 2
TRY_LATER = 75  # EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def explain_failure(failure: BaseException, *, debug: bool) -> int:
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
        return TRY_LATER
    return FAILED


def _keep(failure: BaseException) -> Path:
    handle, name = tempfile.mkstemp(prefix="siltstone-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        traceback.print_exception(failure, file=file)
    return Path(name)
