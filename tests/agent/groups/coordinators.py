"""Group coordinators over a real catalog, each as the only agent."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agent.group_settings import GroupSettings
from agent.groups.coordinator import GroupCoordinator
from agent.runtime.work_pool import WorkPool
from catalog.model import Broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from agent.groups.interfaces import GroupConfigTable, GroupTable, TopicTable
    from agent.runtime.health import CallHealth
    from agent.security.acl_rules import AccessRules
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


class SingleBroker:
    """A cluster with one agent."""

    own = Broker(node_id=1, host="h", port=1, rack=None)

    async def live(self) -> Sequence[Broker]:
        return [self.own]

    async def coordinator(self, key: str, /) -> Broker:
        del key
        return self.own

    def term(self) -> int:
        return 0


@asynccontextmanager
async def open_coordinator(
    catalog: Catalog,
    clock: Clock,
    ids: Ids,
    settings: GroupSettings | None = None,
    *,
    groups: GroupTable | None = None,
    topics: TopicTable | None = None,
    configs: GroupConfigTable | None = None,
    catalog_health: CallHealth | None = None,
    rules: Callable[[], AccessRules | None] = lambda: None,
) -> AsyncIterator[GroupCoordinator]:
    """Open a coordinator without background tasks; the optional tables replace those of the catalog."""
    pool = WorkPool("catalog", threads=2, max_waiting=10)
    coordinator = GroupCoordinator(
        groups=groups or catalog.groups,
        offsets=catalog.group_offsets,
        topics=topics or catalog.topics,
        configs=configs or catalog.group_configs,
        brokers=SingleBroker(),
        pool=pool,
        clock=clock,
        ids=ids,
        settings=settings or GroupSettings(),
        catalog_health=catalog_health,
        rules=rules,
    )
    try:
        yield coordinator
    finally:
        await coordinator.stop()
        pool.close()
