from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from core.clock import ManualClock
from siltstone.interrupts import Interrupts, defer_signals
from siltstone.kafka_client.connection import connect


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_announced_and_raised_and_the_handlers_come_back(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == "stopping…\n"


def test_a_held_interrupt_is_raised_when_the_block_is_over() -> None:
    steps = []
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it is about the order
        with interrupts.shielded() as requested:
            signal.raise_signal(signal.SIGINT)
            steps.append(requested.is_set())
        steps.append(False)
    assert steps == [True]


def test_a_second_interrupt_counts_once_a_moment_has_passed() -> None:
    """A tool that signals a process and its group would else cut the tidying up short."""
    clock = ManualClock()
    with Interrupts(clock) as interrupts, contextlib.suppress(KeyboardInterrupt), interrupts.shielded():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        clock.sleep(2)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


# Runs the command, and signals when a module is looked for, when the command runs, or when all is done.
_INTERRUPTED = """
import atexit, runpy, signal, sys
_, number, moment, *words = sys.argv

class Interrupting:
    @staticmethod
    def find_spec(name, *_):
        if name == moment:
            signal.raise_signal(int(number))

sys.meta_path.insert(0, Interrupting)
if moment == "running":
    import click
    click.Command.invoke = lambda *_: signal.raise_signal(int(number))
if moment == "exit":
    atexit.register(signal.raise_signal, int(number))
sys.argv = ["siltstone", *words]
runpy.run_module("siltstone", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("moment", "is_heard"),
    [
        ("siltstone.cli", False),
        ("click", False),
        ("siltstone.cli.plan", False),
        ("running", True),
        ("exit", False),
    ],
)
def test_an_interrupt_shows_no_traceback_whenever_it_comes(
    number: signal.Signals, moment: str, is_heard: bool
) -> None:
    """While the command is loaded and when it is over it ends the process; in between it is told of."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(int(number)), moment, "plan", "--help"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    code, told = (130, "interrupted\n") if is_heard else (-number, "")
    assert (done.returncode, done.stderr) == (code, told)


def test_one_that_was_not_opened_takes_no_signal() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts().shielded() as requested:
        assert not requested.is_set()
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_whole_block_ends_before_the_handler_runs(number: signal.Signals) -> None:
    steps = []
    with Interrupts() as interrupts:
        handler = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt), defer_signals():  # noqa: PT012 - it is about the order
            signal.raise_signal(number)
            steps.append(interrupts.requested.is_set())
        assert signal.getsignal(number) == handler
    assert steps == [False]


def test_an_interrupt_is_not_lost_to_an_error_of_the_whole_block() -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt), defer_signals():  # noqa: PT012 - both at once
        signal.raise_signal(signal.SIGINT)
        raise ValueError


def test_what_no_handler_waits_for_is_left_as_it_was() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_a_block_is_whole_anyway() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(_nothing_whole).result() is None


def _nothing_whole() -> None:
    with defer_signals():
        pass


def test_an_interrupt_while_a_kafka_client_is_made_is_not_taken_for_a_bad_property() -> None:
    """The constructor answers an exception of a signal's handler with one of its own about a property."""

    def make(configuration: dict[str, object], **_: object) -> Producer:
        assert configuration["linger.ms"] == "5"
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("expected configuration property name as type unicode string") from None
        return Producer({"bootstrap.servers": "127.0.0.1:1"}, logger=logging.getLogger("quiet"))

    with Interrupts(), pytest.raises(KeyboardInterrupt):
        connect(make, {"linger.ms": "5"})
