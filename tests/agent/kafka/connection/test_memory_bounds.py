"""Bounds of the memory that a connection uses for its requests and for responses that wait."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from agent.kafka.connection.frames import RECEIVE_BYTES
from agent.kafka.connection.incoming_memory import MAX_LOGIN_BYTES, IncomingMemory
from agent.kafka.connection.limits import SlowClientPolicy
from agent.runtime.byte_budget import ByteBudget
from tests.agent.kafka.scripted import LONG, Scripted, ScriptedLogin

pytestmark = pytest.mark.anyio

_MIB = 1024 * 1024


def _policy(count: int, *, scarce: int, memory: ByteBudget | None = None) -> SlowClientPolicy:
    return SlowClientPolicy(
        check_seconds=0, max_checks=count, max_checks_while_scarce=scarce, memory=[memory] if memory else []
    )


@pytest.mark.parametrize("size", [3_000, 40_000, RECEIVE_BYTES, 300_000])
async def test_requests_that_wait_for_a_slow_one_are_bounded_in_bytes(size: int) -> None:
    """All of them count in the budget, and all are handled in the end."""
    scripted = Scripted(pending=10_000)
    count = 6 * _MIB // size
    scripted.send("w")
    scripted.send("o" * count, size=size)
    await scripted.run_until_idle()
    was_read = scripted.transport.is_reading
    used = scripted.budget.used
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert not was_read
    assert _MIB < used <= _MIB + 2 * max(RECEIVE_BYTES, size)
    assert scripted.responses == list(range(count + 1))
    assert scripted.transport.is_reading
    assert scripted.budget.used == 0
    scripted.lose()


async def test_responses_that_wait_for_an_earlier_one_are_bounded_in_bytes() -> None:
    """Later requests are not handled yet."""
    scripted = Scripted()
    scripted.send("l" + "b" * 20)
    await scripted.run_until_idle()
    handled, used = len(scripted.dispatcher.handled), scripted.budget.used
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert handled == 1 + _MIB // LONG + 1
    assert used <= _MIB + LONG + 21 * 512
    assert scripted.dispatcher.handled == list(range(21))
    assert sorted(set(scripted.responses)) == list(range(21))
    assert scripted.budget.used == 0
    scripted.lose()


@pytest.mark.parametrize(("kind", "used"), [("h", 0), ("g", 1)])
@pytest.mark.parametrize("before", ["", "l"])
async def test_only_a_large_response_retains_memory_for_a_client_that_does_not_read(
    before: str, kind: str, used: int
) -> None:
    """A small one releases its memory once it is written, at once or after an earlier response."""
    scripted = Scripted()
    scripted.transport.fills_up = True
    scripted.send(before + kind)
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    used_meanwhile = scripted.dispatcher.retained
    scripted.transport.fill(full=False)
    await scripted.run_until_idle()
    assert used_meanwhile == used
    assert scripted.dispatcher.retained == 0
    assert not scripted.transport.is_closed
    scripted.lose()


async def test_waiting_responses_that_retain_memory_are_bounded() -> None:
    """One connection cannot exhaust that memory while a slow request delays its responses."""
    scripted = Scripted()
    scripted.send("l" + "g" * 20)
    await scripted.run_until_idle()
    used = scripted.dispatcher.retained
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert used == _MIB // LONG + 1
    assert sorted(set(scripted.responses)) == list(range(21))
    assert scripted.dispatcher.retained == scripted.budget.used == 0
    scripted.lose()


async def test_with_a_full_budget_only_connections_without_open_requests_receive() -> None:
    """So heartbeats continue. The greedy connection receives again once it gets its responses."""
    budget = ByteBudget("requests", 100_000)
    greedy, modest = Scripted(budget=budget), Scripted(budget=budget)
    for _ in range(20):
        greedy.send("l", size=20_000)
    was_read, used = greedy.transport.is_reading, budget.used
    modest.send("ococw")
    await modest.run_until_idle()
    assert modest.responses == list(range(4))
    modest.send("o" * 3)
    modest.send("o" * 3)
    is_modest_read = modest.transport.is_reading
    greedy.dispatcher.committed.set()
    modest.dispatcher.committed.set()
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        await modest.run_until_idle()
        while not greedy.is_read_to_the_end:
            await greedy.run_until_idle()
        await greedy.run_until_idle()
    assert (was_read, is_modest_read) == (False, False)
    assert used <= 100_000 + RECEIVE_BYTES
    assert greedy.responses == list(range(20))
    assert modest.responses == list(range(11))
    assert greedy.transport.is_reading
    assert modest.transport.is_reading
    assert budget.used == 0
    greedy.lose()
    modest.lose()


async def test_a_slow_reader_stays_connected_as_long_as_it_reads_anything() -> None:
    """Only a client that reads nothing is disconnected."""
    scripted = Scripted(slow_clients=_policy(4, scarce=4))
    scripted.send("l")
    scripted.transport.fill(full=True)
    scripted.transport.is_draining = True
    scripted.transport.waiting = 10_000
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    was_closed, left = scripted.transport.is_closed, scripted.transport.waiting
    scripted.transport.is_draining = False
    await scripted.run_until_idle()
    assert left < 10_000  # after more checks than a silent client gets
    assert not was_closed
    assert scripted.is_gone
    assert scripted.budget.used == 0


@pytest.mark.parametrize(
    ("kinds", "drains", "is_closed"),
    [("g", False, True), ("g", True, False), ("h", False, False), ("b", False, True), ("hl", False, True)],
)
async def test_a_client_that_reads_nothing_has_less_time_while_memory_is_scarce(
    kinds: str, *, drains: bool, is_closed: bool
) -> None:
    """If a response or a later request of it retains memory. One that reads a little stays connected."""
    memory = ByteBudget("some memory", 100)
    scripted = Scripted(slow_clients=_policy(10**9, scarce=4, memory=memory))
    scripted.transport.fills_up = True
    scripted.transport.is_draining = drains
    scripted.send(kinds)
    memory.reserve(50)
    await scripted.run_until_idle()
    was_closed = scripted.transport.is_closed
    memory.reserve(1)
    await scripted.run_until_idle()
    assert not was_closed
    assert scripted.transport.is_closed == is_closed
    scripted.lose()
    assert scripted.dispatcher.retained == scripted.budget.used == 0


@pytest.mark.parametrize(("size", "used"), [(4096, 0), (4097, 4097), (100_000, 100_000), (300_000, 300_000)])
async def test_an_incomplete_request_counts_in_the_budget_unless_it_is_small(size: int, used: int) -> None:
    scripted = Scripted()
    rest = scripted.begin("c", size=size, count=100)
    used_meanwhile = scripted.budget.used
    scripted.send_bytes(rest)
    await scripted.run_until_idle()
    assert used_meanwhile == used
    assert scripted.responses == [0]
    assert scripted.budget.used == 0
    scripted.lose()


async def test_an_incomplete_request_waits_for_memory_unless_it_is_small() -> None:
    """Nothing more of it is received until memory is available."""
    scripted = Scripted(budget=10_000)
    scripted.budget.reserve(10_000)
    scripted.send_bytes(scripted.begin("o", size=4096, count=100))
    rest = scripted.begin("o", size=9_000, count=100)
    was_read = scripted.transport.is_reading
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        scripted.send_bytes(rest)
        await scripted.run_until_idle()
        responses = scripted.responses
        scripted.budget.release(10_000)
        while not scripted.transport.is_reading:  # noqa: ASYNC110  # a timer of the connection fires first
            await asyncio.sleep(0)
        await scripted.run_until_idle()
    assert (was_read, responses) == (False, [0])
    assert scripted.responses == [0, 1]
    assert scripted.budget.used == 0
    scripted.lose()


async def test_an_incomplete_request_is_slow_only_while_the_agent_receives() -> None:
    """A check without an incomplete request, with enough bytes, or without a minimum begins again."""
    scripted = Scripted(pending=1)
    slow = scripted.connection.slow_checks
    checks = [slow(100)]
    rest = scripted.begin("o", size=5_000, count=100)
    checks += [slow(100), slow(100), slow(100), slow(0), slow(100)]
    scripted.send_bytes(rest)
    checks.append(slow(100))
    rest = scripted.begin("o", size=6_000, count=100, before=scripted.frame("l", 5_000))
    checks += [slow(10_000), slow(10_000)]  # it is not read, because another request is open
    used = scripted.budget.used
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    checks += [slow(100), slow(100)]
    scripted.send_bytes(rest)
    checks.append(slow(100))
    assert checks == [0, 0, 1, 2, 0, 1, 0, 0, 0, 1, 2, 0]
    assert used == 5_000 + 6_000
    scripted.lose()


async def test_while_memory_is_scarce_a_request_takes_memory_as_it_arrives() -> None:
    """Its client receives no more than was announced, and the others can send meanwhile."""
    scripted = Scripted(budget=1_000_000)
    scripted.budget.reserve(450_000)
    rest = scripted.begin("o", size=400_000, count=1_000)
    first = scripted.budget.used - 450_000
    scripted.send_bytes(rest[:100_000])
    second = scripted.budget.used - 450_000
    scripted.send_bytes(rest[100_000:])
    await scripted.run_until_idle()
    assert 1_000 <= first < 100_000
    assert 101_000 <= second <= 202_000
    assert scripted.responses == [0]
    assert scripted.budget.used == 450_000
    scripted.lose()


async def test_a_request_that_waits_for_memory_keeps_little_of_what_has_arrived() -> None:
    scripted = Scripted(budget=1_000_000)
    scripted.budget.reserve(1_000_000)
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        rest = scripted.begin("o", size=500_000, count=400_000)
        kept = scripted.connection._receiver._blocked
        used = scripted.budget.used
        scripted.budget.release(1_000_000)
        scripted.send_bytes(rest)
        while scripted.responses != [0]:
            await scripted.run_until_idle()
    assert kept is not None
    assert 0 < len(kept) <= 4 * 1024
    assert used == 1_000_000
    assert scripted.budget.used == 0
    scripted.lose()


async def test_requests_that_share_the_last_memory_are_all_completed() -> None:
    """One of them at a time may exceed the budget."""
    budget = ByteBudget("requests", 300_000)
    memory = IncomingMemory(budget)
    clients = [Scripted(memory=memory) for _ in range(4)]
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        for each in clients:
            each.send("o", size=200_000)
        highest = budget.used
        while not all(each.responses == [0] for each in clients):
            for each in clients:
                await each.run_until_idle()
            highest = max(highest, budget.used)
    assert highest <= 500_000
    assert budget.used == 0
    for each in clients:
        each.lose()


async def test_clients_that_have_not_logged_in_take_no_memory_from_requests() -> None:
    """Announced lengths take next to nothing, and what has arrived counts for requests after the login."""
    memory = IncomingMemory(ByteBudget("requests", 10 * _MIB))
    before = IncomingMemory(ByteBudget("logins", MAX_LOGIN_BYTES), trusts_lengths=False)
    for _ in range(1_000):
        before.reserve(object(), 0, 12, 512 * 1024)
    assert before.budget.used <= MAX_LOGIN_BYTES // 2
    before.budget.release(before.budget.used)
    login = ScriptedLogin()
    scripted = Scripted(memory=memory, login=login, login_memory=before)
    rest = scripted.begin("c", size=8_000, count=1_000)
    used = [before.budget.used, memory.budget.used]
    login.ends_next = True
    next_rest = scripted.begin("c", size=9_000, count=1_000, before=rest)
    await scripted.run_until_idle()
    used += [before.budget.used, memory.budget.used]
    scripted.send_bytes(next_rest)
    await scripted.run_until_idle()
    assert 1_000 <= used[0] <= 8_000
    assert used[1:3] == [0, 0]
    assert used[3] >= 1_000
    assert scripted.responses == [0, 1]
    assert before.budget.used == memory.budget.used == 0
    scripted.lose()


async def test_requests_that_arrive_together_before_the_login_are_few() -> None:
    """The connection is closed after the responses to the first ones."""
    scripted = Scripted(login=ScriptedLogin())
    scripted.send_bytes(b"".join(scripted.frame("c", 9) for _ in range(10_000)))
    waiting = len(scripted.connection._frames)
    await scripted.run_until_idle()
    assert waiting <= 4
    assert scripted.dispatcher.handled == list(range(waiting))
    assert scripted.transport.is_closed
    assert scripted.budget.used == 0


@pytest.mark.parametrize("kind", ["c", "l"])
async def test_small_requests_count_with_their_objects(kind: str) -> None:
    scripted = Scripted(pending=1)
    scripted.send_bytes(b"".join(scripted.frame(kind, 9) for _ in range(1_000)))
    used = scripted.budget.used
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert used == 1_000 * 512
    assert scripted.responses == list(range(1_000))
    assert scripted.budget.used == 0
    scripted.lose()
