"""Pausing the cycle collector."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest

from core.cycle_collector import collector_paused

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 60.0
_BRIEFLY = 0.5


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_the_collector_runs_again_after_an_error() -> None:
    """And not before."""

    def fail() -> None:
        assert not gc.isenabled()
        raise KeyError

    with pytest.raises(KeyError), collector_paused():
        fail()
    assert gc.isenabled()


def test_a_decorated_function_pauses_it_in_each_call() -> None:
    """A function within another one does not end the pause."""

    @collector_paused()
    def inner() -> bool:
        return gc.isenabled()

    @collector_paused()
    def outer() -> tuple[bool, bool]:
        return inner(), gc.isenabled()

    assert [outer(), outer()] == [(False, False), (False, False)]
    assert gc.isenabled()


def test_it_is_not_enabled_for_a_process_that_has_disabled_it() -> None:
    """Such a process has its reasons."""
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_a_pause_that_begins_while_another_one_ends_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread would resume the collector between the two calls with which this one pauses it."""
    paused, seen, resumed = threading.Event(), threading.Event(), threading.Event()
    is_enabled = gc.isenabled

    def pause_first() -> None:
        with collector_paused():
            paused.set()
            seen.wait(_SECONDS)
        resumed.set()

    def see() -> bool:
        found = is_enabled()
        seen.set()
        resumed.wait(_BRIEFLY)  # without a result: the other thread waits for this one
        return found

    first = threading.Thread(target=pause_first)
    first.start()
    assert paused.wait(_SECONDS)
    monkeypatch.setattr(gc, "isenabled", see)
    with collector_paused():
        pass
    first.join(_SECONDS)
    assert is_enabled()
