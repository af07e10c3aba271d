"""Topics that clients create by asking for their metadata (`auto.create.topics.enable`).

As in Kafka, the response does not wait: it says that the topic is unknown, and the client asks again. So a
client that learns of a topic's deletion does not see a new topic of this name in the same response.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from catalog.errors import TopicExistsError
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.cluster.topic_directory import TopicDirectory
    from agent.local_tier_settings import LocalTierSettings
    from agent.runtime.pools import Pools
    from catalog.open import Catalog

MAX_PENDING: Final = 100
"""Topics that are created at the same time. Names beyond are ignored: their clients ask again."""

# Kafka's own topics. A tool that reads them finds nothing here, and must not create them.
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_log = structlog.get_logger(__name__)


class AutomaticTopics:
    """Creates topics in the background. Belongs to the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        directory: TopicDirectory,
        pools: Pools,
        partitions: int,
        local_tier: LocalTierSettings,
    ) -> None:
        self._local_tier = local_tier
        self._catalog = catalog
        self._directory = directory
        self._pools = pools
        self._partitions = partitions
        self._pending: dict[str, asyncio.Task[None]] = {}

    def can_create(self, name: str) -> bool:
        """Return False if `create` would do nothing: it has begun already, or is not possible."""
        return name not in self._pending and name not in _INTERNAL and len(self._pending) < MAX_PENDING

    @property
    def partitions(self) -> int:
        """The number of partitions of each created topic."""
        return self._partitions

    def create(self, name: str) -> None:
        """Begin to create a topic whose name is valid, if that is possible."""
        if not self.can_create(name):
            return
        task = asyncio.get_running_loop().create_task(self._create(name), name=f"create topic {name}")
        self._pending[name] = task
        task.add_done_callback(lambda _: self._pending.pop(name))

    async def stop(self) -> None:
        """Cancel what is pending; a topic may still be created."""
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _create(self, name: str) -> None:
        config = self._local_tier.with_storage_mode(name, {})
        create = partial(self._catalog.topics.create, name, self._partitions, config)
        try:
            with contextlib.suppress(TopicExistsError):  # another client created it first
                await self._pools.catalog.run(create)
                _log.info("created a topic that a client asked for", topic=name, partitions=self._partitions)
        except SiltstoneError as error:
            _log.warning("a topic could not be created", topic=name, reason=str(error))
        self._directory.invalidate(name)
