from __future__ import annotations

import contextlib
import signal

import pytest

from bedrock.clock import ManualClock
from siltstone.interrupts import Interrupts


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
        with interrupts.held() as requested:
            signal.raise_signal(signal.SIGINT)
            steps.append(requested.is_set())
        steps.append(False)
    assert steps == [True]


def test_a_second_interrupt_counts_once_a_moment_has_passed() -> None:
    """A tool that signals a process and its group would else cut the tidying up short."""
    clock = ManualClock()
    with Interrupts(clock) as interrupts, contextlib.suppress(KeyboardInterrupt), interrupts.held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        clock.sleep(2)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_one_that_was_not_opened_takes_no_signal() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts().held() as requested:
        assert not requested.is_set()
        assert signal.getsignal(signal.SIGINT) is before
