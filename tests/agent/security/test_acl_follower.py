"""An agent's ACLs follow those of the catalog: at the start, by polls, by notifications and after outages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, Counter

from agent.security import rights
from agent.security.acl_follower import AclFollower
from agent.security.audit import AuditLog
from agent.security.authorizer import Authorizer
from agent.security.identity import Client, Principal
from catalog.errors import CatalogUnavailableError
from catalog.security.acl_bindings import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from catalog.security.acls import StoredAcls
from core.clock import SystemClock
from core.ids import SeededIds
from core.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable

_READ = AclBinding(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    "a",
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
_DEADLINE_SECONDS = 120.0


class _Catalog:
    """ACLs that a test changes; calls fail during an outage."""

    def __init__(self) -> None:
        self.stored = StoredAcls(UUID(int=1), [_READ])
        self.is_out = False
        self.loads = 0

    def load(self, known: UUID | None = None, /) -> StoredAcls | None:
        self.loads += 1
        if self.is_out:
            raise CatalogUnavailableError("the catalog does not respond")
        return None if known == self.stored.version else self.stored


class _Scene:
    def __init__(self, poll_seconds: float) -> None:
        clock = SystemClock()
        registry = CollectorRegistry()
        audit = AuditLog(
            clock,
            lines_per_second=0,
            denied=Counter("denied", "-", ["type", "operation"], registry=registry),
            suppressed=Counter("suppressed", "-", registry=registry),
            logs_allowed=False,
        )
        self.catalog = _Catalog()
        self.authorizer = Authorizer(super_users="", allow_everyone=False, audit=audit)
        self.client = Client("10.0.0.1", "SASL", Principal("User", "alice"))
        outage = Outage(
            "ACLs", clock=clock, ids=SeededIds(1, clock), first_pause_seconds=0.01, max_pause_seconds=0.01
        )
        self.follower = AclFollower(
            self.catalog, self.authorizer, clock=clock, outage=outage, poll_seconds=poll_seconds
        )

    def may_read(self) -> bool:
        return self.authorizer.allows(self.client, rights.READ_TOPIC, "a")

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not reached():  # noqa: ASYNC110  # the state has no event
                await asyncio.sleep(0.005)

    def revoke(self, version: int = 2) -> None:
        self.catalog.stored = StoredAcls(UUID(int=version), [])


@pytest.mark.anyio
async def test_a_lost_notification_delays_the_end_of_a_right_by_one_poll() -> None:
    scene = _Scene(poll_seconds=0.01)
    await scene.follower.start()
    assert scene.may_read()
    scene.revoke()
    await scene.until(lambda: not scene.may_read())
    await scene.follower.stop()


@pytest.mark.anyio
async def test_a_notification_loads_the_acls_at_once() -> None:
    scene = _Scene(poll_seconds=3600)
    await scene.follower.start()
    scene.revoke()
    await asyncio.to_thread(scene.follower.notify)
    await scene.until(lambda: not scene.may_read())
    await scene.follower.stop()


@pytest.mark.anyio
async def test_an_agent_without_acls_does_not_start() -> None:
    scene = _Scene(poll_seconds=0.01)
    scene.catalog.is_out = True
    with pytest.raises(CatalogUnavailableError):
        await scene.follower.start()
    assert not scene.follower.is_running
    assert not scene.may_read()
    await scene.follower.stop()


@pytest.mark.anyio
async def test_the_last_acls_hold_during_an_outage_and_new_ones_after_it() -> None:
    scene = _Scene(poll_seconds=0.01)
    await scene.follower.start()
    scene.catalog.is_out = True
    before = scene.catalog.loads
    await scene.until(lambda: scene.catalog.loads > before + 3)
    assert scene.may_read()
    assert scene.follower.is_running
    scene.revoke()
    scene.catalog.is_out = False
    await scene.until(lambda: not scene.may_read())
    assert scene.follower.age_seconds < _DEADLINE_SECONDS
    await scene.follower.stop()


@pytest.mark.anyio
async def test_equal_versions_are_not_loaded_again() -> None:
    scene = _Scene(poll_seconds=3600)
    await scene.follower.start()
    index = scene.authorizer.index
    await scene.follower.refresh()
    assert scene.authorizer.index is index
    await scene.follower.stop()
