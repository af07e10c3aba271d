"""Resources that most parts of an agent share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.outage import Outage

if TYPE_CHECKING:
    from agent.cluster.catalog_epoch import CatalogEpoch
    from agent.runtime.byte_budget import ByteBudget
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Settings, store, catalog, time, threads and metrics of one agent, and the catalog's epoch.

    The requests of all clients share the memory of `request_budget`, and after parsing that of
    `parsing_budget`.
    """

    settings: AgentSettings
    store: ObjectStore
    catalog: Catalog
    clock: Clock
    ids: Ids
    pools: Pools
    metrics: AgentMetrics
    epoch: CatalogEpoch
    request_budget: ByteBudget
    parsing_budget: ByteBudget

    def outage(self, what: str) -> Outage:
        """Return the log of outages of `what`."""
        return Outage(what, clock=self.clock, ids=self.ids)
