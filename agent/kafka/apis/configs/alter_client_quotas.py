"""AlterClientQuotas (KIP-546): sets and removes quotas of users, client ids and IP addresses.

Versions 0 and 1. Version 1 is the first flexible one. The checks are those of Kafka's
`ClientQuotaControlManager`. Differences from Kafka:

- An IP address is not a host name, which Kafka resolves.
- None of the entries of an entity that the request names twice is applied. Kafka applies the first one.

The new quotas hold on this agent when the response is sent, and on others within two seconds.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of, to_kafka_error
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import ALTER_CLUSTER_CONFIGS
from catalog.config.quota_entities import QuotaEntity, checked_changes
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Change the quotas of each entity, or report why not."""
    require(context, ALTER_CLUSTER_CONFIGS)
    named = Counter(_key(each) for each in request.entries)
    outcomes: list[tuple[Struct, SiltstoneError | None]] = []
    changes: dict[QuotaEntity, Mapping[str, float | None]] = {}
    yielding = CooperativeYield()
    for key, entry in {_key(each): each for each in request.entries}.items():
        error = None
        try:
            entity = QuotaEntity.of(key)
            if named[key] > 1 or entity in changes:
                raise KafkaError(ErrorCode.invalid_request, f"the request names {entity} more than once")
            changes[entity] = checked_changes(
                entity, [(each.key, None if each.remove else each.value) for each in entry.ops]
            )
        except SiltstoneError as failure:
            error = failure
        outcomes.append((entry, error))
        await yielding.step()
    if changes and not request.validate_only:
        not_stored = await _alter(changes, context)
        outcomes = [(entry, error or not_stored) for entry, error in outcomes]
    return Struct(entries=[_result(entry, error) for entry, error in outcomes])


async def _alter(
    changes: Mapping[QuotaEntity, Mapping[str, float | None]], context: RequestContext
) -> SiltstoneError | None:
    """Change the catalog, then this agent; return the error if nothing was changed."""
    services = context.services
    try:
        await services.pools.catalog.run(partial(services.catalog.client_quotas.alter, changes))
    except SiltstoneError as error:
        return to_kafka_error(error)
    await services.quotas.refresh_soon()
    return None


def _key(entry: Struct) -> tuple[tuple[str, str | None], ...]:
    """Return the parts of an entity in a fixed order."""
    return tuple(sorted(((each.entity_type, each.entity_name) for each in entry.entity), key=repr))


def _result(entry: Struct, error: SiltstoneError | None) -> Struct:
    entity: Sequence[Struct] = entry.entity
    if error is None:
        return Struct(entity=entity)
    return Struct(error_code=code_of(error), error_message=message_of(error), entity=entity)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error for every entity."""
    del context
    code, message = code_of(error), message_of(error)
    return Struct(
        entries=[
            Struct(error_code=code, error_message=message, entity=each.entity) for each in request.entries
        ]
    )


API = Api(
    name="alter_client_quotas",
    min_version=0,
    max_version=1,
    handle=handle,
    error_response=error_response,
)
