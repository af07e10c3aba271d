"""Configuration changes, for AlterConfigs and IncrementalAlterConfigs.

The checks and their order are those of Kafka's ConfigAdminManager and ConfigurationControlManager.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from agent.kafka.apis.configs.broker_settings import require_changeable
from agent.kafka.apis.configs.resources import (
    ResourceType,
    require_group_name,
    require_own_broker,
    require_resource_name,
    require_right,
    resource_type_of,
)
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.security.rights import ALTER_CLUSTER_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_TOPIC_CONFIGS
from catalog.errors import InvalidConfigError
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.config.values import ResourceConfig

Changes: TypeAlias = "Mapping[str, str | None]"
ChangesOf: TypeAlias = "Callable[[ResourceConfig], Changes]"

_IMMUTABLE = {
    ResourceType.BROKER_LOGGER: "an agent reads its log_level when it starts",
    ResourceType.CLIENT_METRICS: "agents do not collect metrics from clients",
}


async def alter_resources(
    request: Struct,
    context: RequestContext,
    changes_of: Callable[[Struct], ChangesOf],
    *,
    nullable: Sequence[int],
) -> list[Struct]:
    """Change every resource of a request, and return a response for each.

    `changes_of` returns a function that turns a resource's current configuration into its changes. A value
    may be null only where the entry's operation is in `nullable`.
    """
    named = Counter((each.resource_type, each.resource_name) for each in request.resources)
    responses = []
    for wanted in request.resources:
        response = Struct(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        try:
            if named[wanted.resource_type, wanted.resource_name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "the request names a resource more than once")
            _check_entries(wanted, nullable)
            require_right(
                context,
                resource_type_of(wanted.resource_type),
                wanted.resource_name,
                on_topic=ALTER_TOPIC_CONFIGS,
                on_group=ALTER_GROUP_CONFIGS,
                else_=ALTER_CLUSTER_CONFIGS,
            )
            await _change(wanted, context, changes_of(wanted), validate_only=request.validate_only)
        except SiltstoneError as error:
            response.error_code, response.error_message = code_of(error), message_of(error)
        responses.append(response)
    return responses


def _check_entries(wanted: Struct, nullable: Sequence[int]) -> None:
    names = Counter(each.name for each in wanted.configs)
    if names and max(names.values()) > 1:
        raise KafkaError(ErrorCode.invalid_request, "the request names a setting more than once")
    for each in wanted.configs:
        if each.value is None and getattr(each, "config_operation", None) not in nullable:
            raise KafkaError(ErrorCode.invalid_request, f"setting {each.name} has no value")
    if wanted.resource_type == ResourceType.BROKER:
        require_changeable(
            [each.name for each in wanted.configs if getattr(each, "config_operation", None) not in nullable]
        )


async def _change(
    wanted: Struct, context: RequestContext, changes: ChangesOf, *, validate_only: bool
) -> None:
    kind = resource_type_of(wanted.resource_type)
    if kind is ResourceType.TOPIC:
        await _change_topic(wanted.resource_name, context, changes, validate_only=validate_only)
    elif kind is ResourceType.GROUP:
        await _change_group(wanted.resource_name, context, changes, validate_only=validate_only)
    elif kind is ResourceType.BROKER:
        await _change_broker(wanted.resource_name, context, changes, validate_only=validate_only)
    else:
        if kind is ResourceType.BROKER_LOGGER and wanted.resource_name:
            require_own_broker(wanted.resource_name, context)
        raise KafkaError(ErrorCode.invalid_request, _IMMUTABLE[kind])


async def _change_topic(
    name: str, context: RequestContext, changes: ChangesOf, *, validate_only: bool
) -> None:
    require_resource_name(name)
    services = context.services
    if validate_only:
        topic = await services.pools.catalog.run(partial(services.catalog.topics.get, name))
        topic.config.with_changes(changes(topic.config))
        return
    await services.pools.catalog.run(partial(services.catalog.topics.alter_config, name, changes))
    services.directory.invalidate(name)


async def _change_group(
    name: str, context: RequestContext, changes: ChangesOf, *, validate_only: bool
) -> None:
    require_group_name(name)
    services = context.services
    check = services.settings.groups.check
    if validate_only:
        config = await services.pools.catalog.run(partial(services.catalog.group_configs.get, name))
        check(config.with_changes(changes(config)))
        return
    await services.pools.catalog.run(partial(services.catalog.group_configs.alter, name, changes, check))


async def _change_broker(
    name: str, context: RequestContext, changes: ChangesOf, *, validate_only: bool
) -> None:
    """Change the settings of this broker, or of all brokers if `name` is empty."""
    if name:
        require_own_broker(name, context)
    services = context.services
    configs = services.catalog.broker_configs

    try:
        if validate_only:
            config = (await services.pools.catalog.run(partial(configs.find, [name])))[name]
            config.with_changes(changes(config))
        else:
            await services.pools.catalog.run(partial(configs.alter, name, changes))
    except InvalidConfigError as error:  # Kafka has this code for brokers
        raise KafkaError(ErrorCode.invalid_request, str(error)) from error
