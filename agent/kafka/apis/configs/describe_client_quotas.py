"""DescribeClientQuotas (KIP-546): lists the quotas of users, client ids and IP addresses.

Versions 0 and 1. Version 1 is the first flexible one. The rules of the filter are those of Kafka's
`ClientQuotasImage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import DESCRIBE_CLUSTER_CONFIGS
from catalog.config.quota_entities import DEFAULT, EntityType, canonical_address, matches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.kafka.api_definition import RequestContext

_EXACT, _DEFAULT, _ANY = 0, 1, 2


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Return the entities that match all components of the filter."""
    require(context, DESCRIBE_CLUSTER_CONFIGS)
    wanted = _filter(request)
    services = context.services
    quotas = await services.pools.catalog.run(services.catalog.client_quotas.list)
    entries, yielding = [], CooperativeYield()
    for entity, values in quotas.items():
        if matches(entity, wanted, strict=request.strict):
            parts = [Struct(entity_type=str(kind), entity_name=name) for kind, name in entity.parts()]
            named = [Struct(key=key, value=value) for key, value in values.items()]
            entries.append(Struct(entity=parts, values=named))
        await yielding.step()
    return Struct(entries=entries)


def _filter(request: Struct) -> Mapping[EntityType, str | None]:
    """Return the wanted name of each type, None being any; raise for a filter that Kafka rejects."""
    wanted: dict[EntityType, str | None] = {}
    for each in request.components:
        if not each.entity_type:
            raise KafkaError(ErrorCode.invalid_request, "Invalid empty entity type.")
        if each.entity_type not in set(EntityType):
            raise KafkaError(ErrorCode.unsupported_version, f"Unsupported entity type {each.entity_type!r}.")
        kind = EntityType(each.entity_type)
        if kind in wanted:
            raise KafkaError(
                ErrorCode.invalid_request, f"Entity type {kind} cannot appear more than once in the filter."
            )
        wanted[kind] = _name(kind, each)
    if EntityType.IP in wanted and len(wanted) > 1:
        raise KafkaError(
            ErrorCode.invalid_request,
            "Invalid entity filter component combination. IP filter component should not be used with"
            " user or clientId filter component.",
        )
    return wanted


def _name(kind: EntityType, component: Struct) -> str | None:
    name: str | None = component.match
    if component.match_type == _EXACT:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "an exact match needs a name")
        return _address(name) if kind is EntityType.IP else name
    if component.match_type not in {_DEFAULT, _ANY}:
        raise KafkaError(ErrorCode.invalid_request, f"Unknown match type {component.match_type}")
    if name is not None:
        raise KafkaError(ErrorCode.invalid_request, "only an exact match can have a name")
    return DEFAULT if component.match_type == _DEFAULT else None


def _address(text: str) -> str:
    try:
        return canonical_address(text)
    except ValueError:
        return text  # no quota has it


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error, and no entries."""
    del request, context
    return Struct(error_code=code_of(error), error_message=message_of(error), entries=None)


API = Api(
    name="describe_client_quotas",
    min_version=0,
    max_version=1,
    handle=handle,
    error_response=error_response,
)
