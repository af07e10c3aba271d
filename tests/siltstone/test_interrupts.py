from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from core.clock import ManualClock
from siltstone.interrupts import Interrupts, defer_signals
from siltstone.kafka_client.connection import connect


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_prints_a_message_raises_and_restores_the_handlers(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == "stopping…\n"


def test_a_signal_in_a_shielded_block_is_raised_at_its_end() -> None:
    steps = []
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it is about the order
        with interrupts.shielded() as requested:
            signal.raise_signal(signal.SIGINT)
            steps.append(requested.is_set())
        steps.append(False)
    assert steps == [True]


def test_a_second_signal_raises_only_after_a_moment() -> None:
    """A tool that signals a process and its group must not interrupt the cleanup."""
    clock = ManualClock()
    with Interrupts(clock) as interrupts, contextlib.suppress(KeyboardInterrupt), interrupts.shielded():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        clock.sleep(2)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


# Runs the command, with a signal while a module is imported, while the command runs, or at exit.
_INTERRUPTED = """
import atexit, runpy, signal, sys
_, number, moment, *arguments = sys.argv

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
sys.argv = ["siltstone", *arguments]
runpy.run_module("siltstone", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("moment", "is_handled"),
    [
        ("siltstone.cli", False),
        ("click", False),
        ("siltstone.cli.compaction.plan", False),
        ("running", True),
        ("exit", False),
    ],
)
def test_a_signal_shows_no_traceback_at_any_time(
    number: signal.Signals, moment: str, is_handled: bool
) -> None:
    """It silently ends the process during loading and at exit, and prints "interrupted" in between."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(int(number)), moment, "plan", "--help"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    code, expected = (130, "interrupted\n") if is_handled else (-number, "")
    assert (done.returncode, done.stderr) == (code, expected)


def test_interrupts_that_were_not_opened_handle_no_signal() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts().shielded() as requested:
        assert not requested.is_set()
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_deferring_block_ends_before_the_handler_runs(number: signal.Signals) -> None:
    steps = []
    with Interrupts() as interrupts:
        handler = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt), defer_signals():  # noqa: PT012 - it is about the order
            signal.raise_signal(number)
            steps.append(interrupts.requested.is_set())
        assert signal.getsignal(number) == handler
    assert steps == [False]


def test_a_signal_is_not_lost_to_an_error_of_a_deferring_block() -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt), defer_signals():  # noqa: PT012 - both at once
        signal.raise_signal(signal.SIGINT)
        raise ValueError


def test_signals_without_a_handler_keep_their_action() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_deferred() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(_defer_nothing).result() is None


def _defer_nothing() -> None:
    with defer_signals():
        pass


def test_an_interrupt_while_a_kafka_client_is_made_is_not_taken_for_a_bad_property() -> None:
    """The client's constructor replaces an exception of a signal handler by an error about a property."""

    def make(configuration: dict[str, object], **_: object) -> Producer:
        assert configuration["linger.ms"] == "5"
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("expected configuration property name as type unicode string") from None
        return Producer({"bootstrap.servers": "127.0.0.1:1"}, logger=logging.getLogger("quiet"))

    with Interrupts(), pytest.raises(KeyboardInterrupt):
        connect(make, {"linger.ms": "5"})


def test_a_signal_that_another_thread_receives_ends_a_wait_without_limit() -> None:
    """The system chooses the thread; after a freeze it may be any."""
    parked = threading.Event()
    other = threading.Thread(target=parked.wait)
    other.start()
    assert other.ident is not None
    send = threading.Timer(0.1, signal.pthread_kill, (other.ident, signal.SIGTERM))

    def wait(interrupts: Interrupts) -> None:
        with interrupts.shielded():
            assert not interrupts.wait(0)
            send.start()
            assert interrupts.wait()

    try:
        with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
            wait(interrupts)
    finally:
        parked.set()
        other.join()
        send.join()
