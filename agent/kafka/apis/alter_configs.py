"""AlterConfigs: replaces all settings of a topic or of a consumer group.

Versions 0 to 2. What is not named goes back to its default, but for a topic's `storage.mode`, which no client
knows of and which cannot change. Agents take their own settings when they start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.config.changes import change_each

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from agent.kafka.config.changes import Changes, ChangesOf
    from catalog.config.configured import Configured

_KEPT = "storage.mode"


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Change each resource, or say why not."""
    return Struct(responses=await change_each(request, context, _replacing, nullable=()))


def _replacing(wanted: Struct) -> ChangesOf:
    def changes(config: Configured) -> Changes:
        dropped = dict.fromkeys(name for name in config.as_strings() if name != _KEPT)
        return {**dropped, **{each.name: each.value for each in wanted.configs}}

    return changes


API = Api(name="alter_configs", min_version=0, max_version=2, handle=handle)
