"""Which limit holds for a client, who shares it, and what an agent keeps of its clients."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.quotas.client_quotas import IDLE_MS, ClientQuotas
from agent.quotas.limits import ClientLimits, Limit
from agent.quotas.rates import Windows
from catalog.config.quota_entities import DEFAULT, QuotaEntity, QuotaKey
from core.clock import ManualClock

if TYPE_CHECKING:
    from catalog.config.client_quotas import Quotas

_PRODUCE, _FETCH = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
_NAMES = st.sampled_from([None, DEFAULT, "a", "b"])
_ENTITIES = st.builds(QuotaEntity, user=_NAMES, client_id=_NAMES).filter(lambda each: each != (None,) * 3)


def quotas_with(quotas: Quotas, clock: ManualClock | None = None, max_tracked: int = 100) -> ClientQuotas:
    windows = Windows(count=11, window_ms=1000)
    found = ClientQuotas(
        clock or ManualClock(), windows=windows, mutation_windows=windows, max_tracked=max_tracked
    )
    found.set_limits(quotas)
    return found


def by_precedence(quotas: Quotas, user: str, client_id: str) -> Limit | None:
    """Try Kafka's eight paths in their order (the table of ClientQuotaManager)."""
    for path, shared_by in (
        (QuotaEntity(user, client_id), (user, client_id)),
        (QuotaEntity(user, DEFAULT), (user, client_id, True)),
        (QuotaEntity(user, None), (user, None)),
        (QuotaEntity(DEFAULT, client_id), (user, client_id)),
        (QuotaEntity(DEFAULT, DEFAULT), (user, client_id, True)),
        (QuotaEntity(DEFAULT, None), (user, None)),
        (QuotaEntity(None, client_id), (None, client_id)),
        (QuotaEntity(None, DEFAULT), (None, client_id, True)),
    ):
        if _PRODUCE in quotas.get(path, {}):
            return Limit(quotas[path][_PRODUCE], *shared_by)
    return None


@given(
    st.dictionaries(
        _ENTITIES, st.dictionaries(st.sampled_from([_PRODUCE, _FETCH]), st.floats(1, 9)), max_size=12
    ),
    st.sampled_from("abc"),
    st.sampled_from("abc"),
)
def test_the_first_of_eight_entities_decides(quotas: Quotas, user: str, client_id: str) -> None:
    assert ClientLimits(quotas, _PRODUCE).find(user, client_id) == by_precedence(quotas, user, client_id)


def test_each_client_of_a_default_has_the_limit_for_itself() -> None:
    """Clients of one user share the user's limit. A client without an id is one of the default's."""
    quotas = quotas_with(
        {QuotaEntity(user="a"): {_PRODUCE: 10.0}, QuotaEntity(client_id=DEFAULT): {_PRODUCE: 10.0}}
    )
    assert quotas.record(_PRODUCE, "a", "1", 100) == 0
    assert quotas.record(_PRODUCE, "a", "2", 100) == 10_000
    assert quotas.record(_PRODUCE, "b", "1", 100) == 0
    assert quotas.record(_PRODUCE, "b", "2", 100) == 0
    assert quotas.record(_PRODUCE, "b", None, 200) == 10_000
    assert quotas.record(_PRODUCE, "c", "1", 20) == 2000
    assert quotas.record(_FETCH, "a", "1", 1e9) == 0
    assert quotas.throttled() == 3


def test_no_quota_keeps_nothing() -> None:
    quotas = quotas_with({QuotaEntity(user="a"): {_PRODUCE: 10.0}})
    quotas.record(_PRODUCE, "a", "1", 100)
    quotas.record(_PRODUCE, "b", "1", 100)
    assert (quotas.has_limits, len(quotas)) == (True, 1)
    quotas.set_limits({})
    assert (quotas.has_limits, len(quotas)) == (False, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, IDLE_MS // 2)), max_size=60))
def test_clients_that_were_active_last_are_kept(steps: list[tuple[int, int]]) -> None:
    """At most three of them, and none that has been idle for an hour."""
    clock = ManualClock()
    quotas = quotas_with({QuotaEntity(client_id=DEFAULT): {_PRODUCE: 1e9}}, clock, max_tracked=3)
    used: dict[int, int] = {}
    for client, pause_ms in steps:
        clock.advance(pause_ms / 1000)
        now = clock.now_ms()
        quotas.record(_PRODUCE, "a", str(client), 1)
        used.pop(client, None)
        used[client] = now
        used = {key: moment for key, moment in list(used.items())[-3:] if now - moment < IDLE_MS}
        tracked = [int(key[2] or "") for key in quotas._of_any]
        assert len(tracked) <= 3
        assert tracked[-len(used) :] == list(used)


def test_long_client_ids_take_little_memory() -> None:
    quotas = quotas_with({QuotaEntity(client_id=DEFAULT): {_PRODUCE: 1.0}})
    for letter in "xy":
        quotas.record(_PRODUCE, "a", letter * 30_000, 1)
    assert [len(key[2] or "") for key in quotas._of_any] == [64, 64]


def test_invented_client_ids_erase_no_rate_of_a_user() -> None:
    """A user could otherwise begin again without a past whenever its quota is used up."""
    clock = ManualClock()
    quotas = quotas_with(
        {QuotaEntity(user="a"): {_PRODUCE: 10.0}, QuotaEntity(client_id=DEFAULT): {_FETCH: 1.0}},
        clock,
        max_tracked=5,
    )
    assert quotas.record(_PRODUCE, "a", None, 200) == 10_000
    for number in range(20):
        quotas.record(_FETCH, "a", str(number), 1)
    assert len(quotas) == 5
    assert quotas.throttle_left(_PRODUCE, "a", None) == 10_000
    assert quotas.record(_PRODUCE, "a", None, 10) == 11_000
    assert quotas.throttle_left(_FETCH, "a", "19") == 0


def test_many_addresses_erase_no_rate_of_a_user() -> None:
    quotas = quotas_with(
        {
            QuotaEntity(user="a"): {_PRODUCE: 10.0},
            QuotaEntity(ip=DEFAULT): {QuotaKey.CONNECTION_CREATION_RATE: 100.0},
        },
        max_tracked=5,
    )
    assert quotas.record(_PRODUCE, "a", None, 200) == 10_000
    for number in range(20):
        assert quotas.connect(f"2001:db8::{number:x}") == 0
    assert len(quotas) == 5
    assert quotas.throttle_left(_PRODUCE, "a", None) == 10_000


def test_more_users_than_places_replace_each_other() -> None:
    quotas = quotas_with({QuotaEntity(user=DEFAULT): {_PRODUCE: 10.0}}, max_tracked=5)
    for number in range(20):
        quotas.record(_PRODUCE, f"user-{number}", None, 200)
    assert len(quotas) == 5
    assert [quotas.throttle_left(_PRODUCE, f"user-{each}", None) for each in (0, 19)] == [0, 10_000]


def test_a_rate_stays_when_a_client_id_gets_a_quota_of_its_own() -> None:
    limits: Quotas = {QuotaEntity(client_id=DEFAULT): {_PRODUCE: 10.0}}
    quotas = quotas_with(limits)
    assert quotas.record(_PRODUCE, "a", "1", 200) == 10_000
    quotas.set_limits({**limits, QuotaEntity(client_id="1"): {_PRODUCE: 10.0}})
    assert quotas.throttle_left(_PRODUCE, "a", "1") == 10_000
    assert quotas.record(_PRODUCE, "a", "1", 10) == 11_000
    assert len(quotas) == 1


def test_a_client_takes_two_kibibytes_at_most() -> None:
    """With a long name, in all windows."""
    clock = ManualClock()
    quotas = quotas_with({QuotaEntity(client_id=DEFAULT): {_PRODUCE: 1e9}}, clock, max_tracked=1000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(13):
            for number in range(500):
                quotas.record(_PRODUCE, "a", f"{number:0199}", 1.5)
            clock.advance(1)
        assert tracemalloc.get_traced_memory()[0] - before < 500 * 2048
    finally:
        tracemalloc.stop()


def test_a_fetch_may_return_what_the_windows_allow() -> None:
    clock = ManualClock()
    quotas = quotas_with({QuotaEntity(user="a"): {_FETCH: 100.0}}, clock)
    assert quotas.fetch_allowance("b", None) is None
    assert quotas.fetch_allowance("a", None) == (1000, 0)
    assert quotas.record(_FETCH, "a", None, 1500) == 5000
    clock.advance(1.0)
    assert quotas.fetch_allowance("a", None) == (1000, 4000)
    clock.advance(4.0)
    assert quotas.fetch_allowance("a", None) == (1000, 0)


def test_a_request_is_throttled_for_a_window_at_most() -> None:
    quotas = quotas_with({QuotaEntity(user="a"): {QuotaKey.REQUEST_PERCENTAGE: 1.0}})
    assert quotas.record(QuotaKey.REQUEST_PERCENTAGE, "a", None, 9.0) == 0
    assert quotas.record(QuotaKey.REQUEST_PERCENTAGE, "a", None, 1e6) == 1000


def test_strict_mutations_end_with_the_burst() -> None:
    """The mutation that uses it up is accepted, as in Kafka; permissive ones are accepted and throttle."""
    clock = ManualClock()
    quotas = quotas_with({QuotaEntity(user="a"): {QuotaKey.CONTROLLER_MUTATION_RATE: 1.0}}, clock)
    assert quotas.mutate("a", None, 15, strict=True) == (True, 0)
    assert quotas.mutate("a", None, 1, strict=True) == (False, 4000)
    assert quotas.mutate("a", None, 1, strict=False) == (True, 5000)
    assert quotas.mutate("b", None, 99, strict=True) == (True, 0)
    clock.advance(5)
    assert quotas.mutate("a", None, 1, strict=True) == (True, 0)


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1"])
def test_connections_beyond_the_rate_do_not_count(host: str) -> None:
    clock = ManualClock()
    rate = QuotaKey.CONNECTION_CREATION_RATE
    quotas = quotas_with(
        {QuotaEntity(ip="10.0.0.1"): {rate: 1.0}, QuotaEntity(ip=DEFAULT): {rate: 9.0}}, clock
    )
    assert [quotas.connect(host) for _ in range(13)] == [0] * 10 + [1000] * 3
    assert quotas.connect("::1") == 0
    assert quotas.connect("") == 0
    clock.advance(11.0)
    assert quotas.connect(host) == 0
