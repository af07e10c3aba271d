"""Floods of logins from one address, against logins from others."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from agent.authentication_settings import AuthenticationSettings
from agent.runtime.metrics import AgentMetrics
from agent.runtime.work_pool import WorkPool
from agent.security import passwords
from agent.security.authentication import Authentication
from agent.security.errors import LoginUnavailableError
from catalog.security.scram import ScramMechanism, new_credential
from catalog.security.users import UserLookup
from core.clock import ManualClock
from core.ids import SeededIds

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
_IDS = SeededIds(1, ManualClock())
_CREDENTIALS = {ScramMechanism.SHA_256: new_credential(ScramMechanism.SHA_256, "right", _IDS)}
_ATTACKER, _OTHER = "192.0.2.1", "192.0.2.2"
_MAX_WAITING = 50


class _Flood:
    """Users and passwords whose verification lasts until the test ends it, and counts of both."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.looked_up: list[str] = []
        self.hashed: list[str] = []
        settings = AuthenticationSettings(max_waiting_logins=_MAX_WAITING)
        self._pools = [
            WorkPool(name, threads=settings.threads, max_waiting=_MAX_WAITING) for name in ("users", "logins")
        ]
        self.authentication = Authentication(
            cast("Any", SimpleNamespace(authentication=settings, kafka_listeners=(), http_listeners=())),
            users=cast("Any", self),
            pools=cast("Any", SimpleNamespace(users=self._pools[0], logins=self._pools[1])),
            metrics=AgentMetrics(),
            clock=ManualClock(),
            ids=_IDS,
        )

    def lookup(self, name: str) -> UserLookup:
        self.looked_up.append(name)
        if name.startswith("slow"):
            assert self.end.wait(60)
        return UserLookup(_CREDENTIALS, _CREDENTIALS, ScramMechanism.SHA_256)

    def matches(self, password: str, _: object) -> bool:
        self.hashed.append(password)
        if password == "slow":
            assert self.end.wait(60)
        return True

    async def verify(self, name: str, password: str, host: str) -> str:
        async with asyncio.timeout(60):
            return (await self.authentication.verify_password(name, password, host=host)).name

    def close(self) -> None:
        self.end.set()
        for pool in self._pools:
            pool.close()


@pytest.fixture
def flood(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Flood]:
    opened = _Flood()
    monkeypatch.setattr(passwords, "_matches", opened.matches)
    yield opened
    opened.close()


@pytest.mark.parametrize(("name", "password"), [("slow", "right"), ("eve", "slow")])
async def test_a_flood_from_one_address_delays_no_others(flood: _Flood, name: str, password: str) -> None:
    """Its look-ups and its passwords take one thread. Those that wait are verified once, by the first."""
    flooding = [asyncio.create_task(flood.verify(name, password, _ATTACKER)) for _ in range(_MAX_WAITING)]
    while password not in flood.hashed and name not in flood.looked_up:  # noqa: ASYNC110  # in a thread
        await asyncio.sleep(0)
    assert await flood.verify("ada", "right", _OTHER) == "ada"
    assert not any(each.done() for each in flooding)
    flood.end.set()
    assert await asyncio.gather(*flooding) == [name] * _MAX_WAITING
    assert flood.looked_up.count(name) == 1
    assert flood.hashed.count(password) <= 2


async def test_a_flood_from_the_addresses_of_one_network_takes_one_thread(flood: _Flood) -> None:
    """A client of IPv6 has many addresses. Those of another network are not delayed."""
    names = [f"slow {number}" for number in range(2 * _MAX_WAITING // 3)]
    flooding = [
        asyncio.create_task(flood.verify(name, "right", f"2001:db8:0:1::{number:x}"))
        for number, name in enumerate(names)
    ]
    while not flood.looked_up:  # noqa: ASYNC110  # in a thread
        await asyncio.sleep(0)
    assert await flood.verify("ada", "right", "2001:db8:0:2::1") == "ada"
    assert flood.looked_up == [names[0], "ada"]
    flood.end.set()
    assert await asyncio.gather(*flooding) == names


async def test_waiting_logins_of_one_address_are_bounded(flood: _Flood) -> None:
    """Others of the same address are refused, and no caller is remembered afterwards."""
    names = [f"slow {number}" for number in range(_MAX_WAITING + 1)]
    flooding = [asyncio.create_task(flood.verify(name, "right", _ATTACKER)) for name in names]
    while not flood.looked_up:  # noqa: ASYNC110  # in a thread
        await asyncio.sleep(0)
    with pytest.raises(LoginUnavailableError):
        await flood.verify("ada", "right", _ATTACKER)
    assert await flood.verify("ada", "right", _OTHER) == "ada"
    for each in flooding[1:]:
        each.cancel()
    flood.end.set()
    assert (await asyncio.gather(*flooding, return_exceptions=True))[0] == names[0]
    assert flood.looked_up == [names[0], "ada"]
    assert await flood.verify("ada", "right", _ATTACKER) == "ada"
