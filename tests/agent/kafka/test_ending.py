"""How a connection ends, and what becomes of requests that came before."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.agent.kafka.scripted import Scripted

pytestmark = pytest.mark.anyio

_BEFORE = st.lists(st.tuples(st.text("ohg0lcwn", max_size=6), st.sampled_from([9, 300_000])), max_size=4)
_END = st.sampled_from(["x", "y", "length", "eof", "finish", "lose", "e", "abort"])


def _end(scripted: Scripted, end: str) -> None:
    if len(end) == 1:
        scripted.send(end + "oc0")
    elif end == "length":
        scripted.send_length(-1)
    elif end == "eof":
        assert scripted.connection.eof_received()
    elif end == "finish":
        scripted.connection.finish()
    elif end == "abort":
        scripted.connection.abort()
    else:
        scripted.lose()


@pytest.mark.parametrize("end", ["x", "y", "length", "eof", "e"])
@pytest.mark.parametrize("before", ["l", "w", "c", "lwoc0l"])
async def test_what_came_before_the_end_is_answered(before: str, end: str) -> None:
    """And nothing behind it is; nothing is even taken behind what is known not to be answered."""
    scripted = Scripted()
    scripted.send(before)
    _end(scripted, end)
    was_closed = scripted.transport.is_closed
    scripted.dispatch.committed.set()
    await scripted.settle()
    assert not was_closed
    assert scripted.answered == [at for at, kind in enumerate(before) if kind != "0"]
    assert scripted.dispatch.taken[: len(before)] == list(range(len(before)))
    assert end == "e" or len(scripted.dispatch.taken) == len(before)
    assert scripted.is_gone
    assert scripted.budget.used == 0


async def test_an_idle_connection_ends_with_its_client() -> None:
    scripted = Scripted()
    scripted.send("o")
    _end(scripted, "eof")
    assert scripted.transport.is_closed
    await scripted.settle()
    assert scripted.is_gone


async def test_an_answer_that_comes_after_the_client_has_gone_is_no_error() -> None:
    """Even when it does not hear that it is not wanted any more."""
    scripted = Scripted()
    scripted.send("sl")
    await asyncio.sleep(0)
    with capture_logs() as logs:
        scripted.lose()
        await scripted.settle()
    assert logs == []
    assert scripted.transport.writes == []
    assert scripted.budget.used == 0


async def _play(before: list[tuple[str, int]], end: str, *, full: bool) -> None:
    scripted = Scripted(pending=4, budget=700_000)
    for kinds, size in before:
        scripted.send(kinds, size=size)
    scripted.transport.fill(full=full)
    await asyncio.sleep(0)
    _end(scripted, end)
    await scripted.settle()
    scripted.transport.fill(full=False)
    scripted.dispatch.committed.set()
    await scripted.settle()
    wanted = [number for number, kind in scripted.sent if kind not in "0nxye"]
    answered = list(dict.fromkeys(scripted.answered))  # a long answer repeats its number
    assert answered == wanted[: len(answered)]
    assert scripted.is_gone
    assert scripted.connection.has_no_requests
    assert scripted.budget.used == scripted.dispatch.held == 0


@given(_BEFORE, _END, st.booleans())
def test_nothing_is_held_for_a_connection_that_ended(
    before: list[tuple[str, int]], end: str, full: bool
) -> None:
    """However it ended, and whatever it was doing; and what was answered until then was in order."""
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        asyncio.run(_play(before, end, full=full))
