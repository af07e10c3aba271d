"""What the requests of a connection, and answers whose turn has not come, may hold."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from agent.kafka.connection.frames import RECEIVE_BYTES
from agent.kafka.connection.limits import SlowClientPolicy
from agent.runtime.byte_budget import ByteBudget
from tests.agent.kafka.scripted import LONG, Scripted

pytestmark = pytest.mark.anyio

_MIB = 1024 * 1024


def _looks(count: int, *, scarce: int, memory: ByteBudget | None = None) -> SlowClientPolicy:
    return SlowClientPolicy(
        check_seconds=0, max_checks=count, max_checks_while_scarce=scarce, memory=[memory] if memory else []
    )


@pytest.mark.parametrize("size", [3_000, 40_000, RECEIVE_BYTES, 300_000])
async def test_few_bytes_wait_behind_a_request_that_takes_a_while(size: int) -> None:
    """Of however many requests; all of them are counted, and all are taken in the end."""
    scripted = Scripted(pending=10_000)
    count = 6 * _MIB // size
    scripted.send("w")
    scripted.send("o" * count, size=size)
    await scripted.settle()
    was_read = scripted.transport.is_reading
    held = scripted.budget.used
    scripted.dispatch.committed.set()
    await scripted.settle()
    assert not was_read
    assert _MIB < held <= _MIB + 2 * max(RECEIVE_BYTES, size)
    assert scripted.answered == list(range(count + 1))
    assert scripted.transport.is_reading
    assert scripted.budget.used == 0
    scripted.lose()


async def test_few_bytes_of_answers_wait_for_their_turn() -> None:
    """The requests behind them are not even taken."""
    scripted = Scripted()
    scripted.send("l" + "b" * 20)
    await scripted.settle()
    taken, held = len(scripted.dispatch.taken), scripted.budget.used
    scripted.dispatch.committed.set()
    await scripted.settle()
    assert taken == 1 + _MIB // LONG + 1
    assert held <= _MIB + LONG + 21 * 9
    assert scripted.dispatch.taken == list(range(21))
    assert sorted(set(scripted.answered)) == list(range(21))
    assert scripted.budget.used == 0
    scripted.lose()


@pytest.mark.parametrize(("kind", "held"), [("h", 0), ("g", 1)])
@pytest.mark.parametrize("before", ["", "l"])
async def test_only_a_large_answer_is_held_for_a_client_that_reads_nothing(
    before: str, kind: str, held: int
) -> None:
    """What a small one holds is let go of, whether it is written at once or in its turn."""
    scripted = Scripted()
    scripted.transport.fills_up = True
    scripted.send(before + kind)
    scripted.dispatch.committed.set()
    await scripted.settle()
    held_meanwhile = scripted.dispatch.held
    scripted.transport.fill(full=False)
    await scripted.settle()
    assert held_meanwhile == held
    assert scripted.dispatch.held == 0
    assert not scripted.transport.is_closed
    scripted.lose()


async def test_few_answers_that_hold_memory_wait_for_their_turn() -> None:
    """One connection cannot use that memory up behind a request that takes a while."""
    scripted = Scripted()
    scripted.send("l" + "g" * 20)
    await scripted.settle()
    held = scripted.dispatch.held
    scripted.dispatch.committed.set()
    await scripted.settle()
    assert held == _MIB // LONG + 1
    assert sorted(set(scripted.answered)) == list(range(21))
    assert scripted.dispatch.held == scripted.budget.used == 0
    scripted.lose()


async def test_beyond_the_budget_only_those_with_nothing_open_are_read() -> None:
    """So members of groups go on, and who has used it up is read again as what it sent is answered."""
    budget = ByteBudget("requests", 100_000)
    greedy, modest = Scripted(budget=budget), Scripted(budget=budget)
    for _ in range(20):
        greedy.send("l", size=20_000)
    was_read, held = greedy.transport.is_reading, budget.used
    modest.send("ococw")
    await modest.settle()
    assert modest.answered == list(range(4))
    modest.send("o" * 3)
    modest.send("o" * 3)
    is_modest_read = modest.transport.is_reading
    greedy.dispatch.committed.set()
    modest.dispatch.committed.set()
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        await modest.settle()
        while not greedy.is_read_to_the_end:
            await greedy.settle()
        await greedy.settle()
    assert (was_read, is_modest_read) == (False, False)
    assert held <= 100_000 + RECEIVE_BYTES
    assert greedy.answered == list(range(20))
    assert modest.answered == list(range(11))
    assert greedy.transport.is_reading
    assert modest.transport.is_reading
    assert budget.used == 0
    greedy.lose()
    modest.lose()


async def test_a_slow_reader_is_waited_for_as_long_as_bytes_leave() -> None:
    """Each look at what is left comes at the end of its time; only one that reads nothing is cut off."""
    scripted = Scripted(slow_clients=_looks(4, scarce=4))
    scripted.send("l")
    scripted.transport.fill(full=True)
    scripted.transport.is_draining = True
    scripted.transport.waiting = 10_000
    scripted.dispatch.committed.set()
    await scripted.settle()
    was_closed, left = scripted.transport.is_closed, scripted.transport.waiting
    scripted.transport.is_draining = False
    await scripted.settle()
    assert left < 10_000  # after more looks than a silent one is given
    assert not was_closed
    assert scripted.is_gone
    assert scripted.budget.used == 0


@pytest.mark.parametrize(
    ("kinds", "drains", "is_closed"),
    [("g", False, True), ("g", True, False), ("h", False, False), ("b", False, True), ("hl", False, True)],
)
async def test_who_takes_nothing_has_less_time_while_memory_is_scarce(
    kinds: str, *, drains: bool, is_closed: bool
) -> None:
    """If it holds any: in an answer, or in a request behind it; who takes a byte now and then goes on."""
    memory = ByteBudget("some memory", 100)
    scripted = Scripted(slow_clients=_looks(10**9, scarce=4, memory=memory))
    scripted.transport.fills_up = True
    scripted.transport.is_draining = drains
    scripted.send(kinds)
    memory.reserve(50)
    await scripted.settle()
    was_closed = scripted.transport.is_closed
    memory.reserve(1)
    await scripted.settle()
    assert not was_closed
    assert scripted.transport.is_closed == is_closed
    scripted.lose()
    assert scripted.dispatch.held == scripted.budget.used == 0


@pytest.mark.parametrize(("size", "held"), [(4096, 0), (4097, 4097), (100_000, 100_000), (300_000, 300_000)])
async def test_half_a_request_is_counted_unless_it_is_small(size: int, held: int) -> None:
    scripted = Scripted()
    rest = scripted.begin("c", size=size, count=100)
    held_meanwhile = scripted.budget.used
    scripted.go_on(rest)
    await scripted.settle()
    assert held_meanwhile == held
    assert scripted.answered == [0]
    assert scripted.budget.used == 0
    scripted.lose()


async def test_half_a_request_waits_for_memory_unless_it_is_small() -> None:
    """And nothing more of it is received until there is some."""
    scripted = Scripted(budget=10_000)
    scripted.budget.reserve(10_000)
    scripted.go_on(scripted.begin("o", size=4096, count=100))
    rest = scripted.begin("o", size=9_000, count=100)
    was_read = scripted.transport.is_reading
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        scripted.go_on(rest)
        await scripted.settle()
        answered = scripted.answered
        scripted.budget.release(10_000)
        while not scripted.transport.is_reading:  # noqa: ASYNC110  # a timer of the connection's comes first
            await asyncio.sleep(0)
        await scripted.settle()
    assert (was_read, answered) == (False, [0])
    assert scripted.answered == [0, 1]
    assert scripted.budget.used == 0
    scripted.lose()


async def test_half_a_request_keeps_memory_waiting_only_while_the_agent_would_read_more() -> None:
    scripted = Scripted(pending=1)
    moment = scripted.connection.last_active + 1_000
    rest = scripted.begin("o", size=5_000, count=100)
    late = [scripted.connection.is_stalled_since(moment)]
    assert not scripted.connection.is_stalled_since(scripted.connection.last_active)
    scripted.go_on(rest)
    rest = scripted.begin("o", size=6_000, count=100, before=scripted.frame("l", 5_000))
    late.append(scripted.connection.is_stalled_since(moment))
    held = scripted.budget.used
    scripted.connection.last_active = 0
    scripted.dispatch.committed.set()
    await scripted.settle()
    late += [scripted.connection.is_stalled_since(1), scripted.connection.is_stalled_since(moment)]
    scripted.go_on(rest)
    late.append(scripted.connection.is_stalled_since(moment))
    assert late == [True, False, False, True, False]
    assert held == 5_000 + 6_000
    scripted.lose()
