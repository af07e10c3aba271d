"""The end of a connection, and the requests that arrived before it."""

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
async def test_requests_before_the_end_get_responses(before: str, end: str) -> None:
    """Later requests get none. They are not handled if the end is known."""
    scripted = Scripted()
    scripted.send(before)
    _end(scripted, end)
    was_closed = scripted.transport.is_closed
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert not was_closed
    assert scripted.responses == [at for at, kind in enumerate(before) if kind != "0"]
    assert scripted.dispatcher.handled[: len(before)] == list(range(len(before)))
    assert end == "e" or len(scripted.dispatcher.handled) == len(before)
    assert scripted.is_gone
    assert scripted.budget.used == 0


async def test_an_idle_connection_ends_with_its_client() -> None:
    scripted = Scripted()
    scripted.send("o")
    _end(scripted, "eof")
    assert scripted.transport.is_closed
    await scripted.run_until_idle()
    assert scripted.is_gone


async def test_a_response_after_the_client_has_disconnected_is_no_error() -> None:
    """Even if the pending response ignores its cancellation."""
    scripted = Scripted()
    scripted.send("sl")
    await asyncio.sleep(0)
    with capture_logs() as logs:
        scripted.lose()
        await scripted.run_until_idle()
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
    await scripted.run_until_idle()
    scripted.transport.fill(full=False)
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    wanted = [number for number, kind in scripted.sent if kind not in "0nxye"]
    responses = list(dict.fromkeys(scripted.responses))  # a long response repeats its number
    assert responses == wanted[: len(responses)]
    assert scripted.is_gone
    assert scripted.connection.has_no_requests
    assert scripted.budget.used == scripted.dispatcher.retained == 0


@given(_BEFORE, _END, st.booleans())
def test_a_closed_connection_retains_no_memory(before: list[tuple[str, int]], end: str, full: bool) -> None:
    """For every way to end, in every state. The responses until then are in order."""
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        asyncio.run(_play(before, end, full=full))
