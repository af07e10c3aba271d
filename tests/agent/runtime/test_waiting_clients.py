"""Which of many waiting connections makes room for another one."""

from __future__ import annotations

from agent.runtime.waiting_clients import WaitingClients


def test_an_address_with_many_connections_evicts_its_own() -> None:
    """The oldest of them go first, and those of other addresses stay."""
    waiting = WaitingClients[int]()
    waiting.add(0, "honest")
    evicted = []
    for number in range(1, 1_000):
        waiting.add(number, "attacker")
        if len(waiting) > 10:
            evicted.append(waiting.to_evict())
            waiting.remove(evicted[-1])
    assert evicted == list(range(1, 991))
    assert waiting.all() == [0, *range(991, 1_000)]
    for number in waiting.all():
        waiting.remove(number)
        waiting.remove(number)
        assert number not in waiting
    assert not len(waiting)
    waiting.add(7, "honest")
    assert waiting.to_evict() == 7


def test_the_addresses_of_one_network_evict_each_other() -> None:
    """A client of IPv6 has many."""
    waiting = WaitingClients[int]()
    waiting.add(0, "2001:db8::1")
    for number in range(1, 10):
        waiting.add(number, f"2001:db8:0:1::{number}")
    assert [waiting.count(each) for each in ("2001:db8::1", "2001:db8:0:1::9", "2001:db8:0:1::a")] == [
        1,
        1,
        0,
    ]
    for number in range(1, 9):
        assert waiting.to_evict() == number
        waiting.remove(number)
    waiting.remove(9)
    waiting.remove(0)
    assert (len(waiting), waiting.count("2001:db8::1")) == (0, 0)
