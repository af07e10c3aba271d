"""Coordinators of groups over a real catalog, each as if its agent were alone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agent.group_settings import GroupSettings
from agent.groups.coordinator import GroupCoordinator
from agent.runtime.work_pool import WorkPool
from catalog.model import Broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from agent.groups.interfaces import GroupConfigTable, GroupTable, TopicTable
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


class Alone:
    """The only agent there is."""

    own = Broker(node_id=1, host="h", port=1, rack=None)

    async def live(self) -> Sequence[Broker]:
        return [self.own]

    async def coordinator(self, key: str, /) -> Broker:
        del key
        return self.own

    def term(self) -> int:
        return 0


@asynccontextmanager
async def coordinating(
    catalog: Catalog,
    clock: Clock,
    ids: Ids,
    settings: GroupSettings | None = None,
    *,
    groups: GroupTable | None = None,
    topics: TopicTable | None = None,
    configs: GroupConfigTable | None = None,
) -> AsyncIterator[GroupCoordinator]:
    """A coordinator that was not started, and is stopped in any case; the others stand for the catalog's."""
    pool = WorkPool("catalog", threads=2, max_waiting=10)
    made = GroupCoordinator(
        groups=groups or catalog.groups,
        offsets=catalog.group_offsets,
        topics=topics or catalog.topics,
        configs=configs or catalog.group_configs,
        brokers=Alone(),
        pool=pool,
        clock=clock,
        ids=ids,
        settings=settings or GroupSettings(),
    )
    try:
        yield made
    finally:
        await made.stop()
        pool.close()
