"""CreateTopics: creates topics.

Versions 2 to 7. Version 4 made partition count and replication factor optional (-1, KIP-464). Version 5
returns the settings of the new topic (KIP-525), version 7 its id.

Differences from Kafka:

- Any replication factor except 0 is accepted and reported as 1: the object store replicates the data.
- A manual assignment only sets the number of partitions.
- A quota of mutations (KIP-599) is strict from version 6 on. A topic that exists is not charged.
- Topics are created in transactions of at most a hundred. A topic whose transaction did not start within the
  request's timeout is REQUEST_TIMED_OUT and is not created.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.configs.describe_configs import config_source
from agent.kafka.apis.topics.request_deadline import RequestDeadline
from agent.kafka.authorization import current_acls, is_allowed, refusal, refused_names
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of, to_kafka_error
from agent.kafka.throttling import MutationCharges
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import CREATE_IN_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS
from catalog.config.values import TopicConfig
from catalog.errors import InvalidTopicError
from catalog.topics.names import check_partition_count, check_topic_name
from catalog.topics.repository import NewTopic
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.security.acl_rules import AclIndex
    from catalog.model import Topic

# Kafka's controller accepts 10,000 partitions in one request (ReplicationControlManager). The agent bounds
# the size of the response, which has all settings of each topic.
_MAX_TOPICS = 2_000
# Bounds of one transaction. Only the first topic of a transaction may exceed the number of partitions.
_CHUNK_TOPICS, _CHUNK_PARTITIONS = 100, 10_000
_PROHIBITED = "__cluster_metadata"  # the log of the controllers (Kafka's ControllerApis.createTopics)
_STRICT_SINCE = 6
_VALIDATION_COST = 5  # items of the usual work on the event loop


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Create each topic, or report why not."""
    names = Counter(wanted.name for wanted in request.topics)
    if len(names) > _MAX_TOPICS:
        raise KafkaError(ErrorCode.policy_violation, f"a request creates at most {_MAX_TOPICS} topics")
    acls = current_acls(context)
    refused = await _refused(names, context)
    yielding = CooperativeYield()
    found: dict[str, Topic | SiltstoneError | None] = {}
    new: dict[str, NewTopic] = {}
    for wanted in {each.name: each for each in request.topics}.values():
        found[wanted.name] = None
        try:
            if names[wanted.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"topic {wanted.name!r} is named twice")
            if wanted.name in refused:
                raise refusal(CREATE_TOPIC)
            new[wanted.name] = _new(wanted, context)
        except SiltstoneError as error:
            found[wanted.name] = error
        await yielding.step(_VALIDATION_COST)
    create = _validate_only if request.validate_only else partial(_create, acls)
    charges = await _charge(new, context)
    found |= charges.refused
    wanted_topics = [each for name, each in new.items() if name not in charges.refused]
    found |= await create(wanted_topics, RequestDeadline(request.timeout, context.services.clock), context)
    rendered: dict[TopicConfig, list[Struct]] = {}
    hidden = await refused_names(context, DESCRIBE_TOPIC_CONFIGS, new, log_denied=False)
    responses = []
    for name, topic in found.items():
        responses.append(
            _failed(name, topic)
            if isinstance(topic, SiltstoneError)
            else _created_in_secret(name, topic)
            if name in hidden
            else _created(new[name], topic, rendered)
        )
        await yielding.step()
    return Struct(topics=responses, throttle_time=charges.throttle_ms)


async def _charge(new: Mapping[str, NewTopic], context: RequestContext) -> MutationCharges:
    """Charge the client's quota with the partitions of topics that do not exist."""
    charges = MutationCharges(context, strict_since=_STRICT_SINCE)
    if charges.is_limited and new:
        services = context.services
        find = partial(services.catalog.topics.name_conflicts, list(new))
        existing = await services.pools.catalog.run(find)
        for name, each in new.items():
            if name not in existing:
                charges.charge(name, each.partition_count)
    return charges


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every topic."""
    del context
    code, message = code_of(error), message_of(error)
    return Struct(
        topics=[
            Struct(name=wanted.name, error_code=code, error_message=message, configs=[])
            for wanted in request.topics
        ]
    )


def _new(wanted: Struct, context: RequestContext) -> NewTopic:
    check_topic_name(wanted.name)
    if wanted.name == _PROHIBITED:
        raise KafkaError(ErrorCode.invalid_request, f"a topic named {_PROHIBITED} cannot be created")
    count = _partition_count(wanted, context.services.settings.default_partitions)
    config = context.services.settings.local_tier.with_storage_mode(wanted.name, _settings(wanted))
    return NewTopic(name=wanted.name, partition_count=count, config=config).validated()


async def _validate_only(
    wanted: Sequence[NewTopic], deadline: RequestDeadline, context: RequestContext
) -> dict[str, SiltstoneError]:
    """Return the errors of topics that could not be created; create none."""
    deadline.check()
    names = [each.name for each in wanted]
    topics = context.services.catalog.topics
    return (
        dict(await context.services.pools.catalog.run(partial(topics.name_conflicts, names))) if names else {}
    )


async def _create(
    acls: AclIndex | None, wanted: Sequence[NewTopic], deadline: RequestDeadline, context: RequestContext
) -> dict[str, Topic | SiltstoneError]:
    """Create the topics chunk by chunk; return each topic or its error.

    Rights are checked again before each chunk if other ACLs than `acls` decide then.
    """
    services = context.services
    results: dict[str, Topic | SiltstoneError] = {}
    for planned in _chunks(wanted):
        chunk = planned
        if current_acls(context) is not acls:
            refused = await _refused([each.name for each in planned], context)
            results |= dict.fromkeys(refused, refusal(CREATE_TOPIC))
            chunk = [each for each in planned if each.name not in refused]
        if not chunk:
            continue
        try:
            deadline.check()
            create = partial(services.catalog.topics.create_many, chunk)
            results |= zip(
                [each.name for each in chunk], await services.pools.catalog.run(create), strict=True
            )
        except SiltstoneError as error:
            results |= dict.fromkeys([each.name for each in chunk], to_kafka_error(error))
        for each in chunk:
            services.directory.invalidate(each.name)
    return results


def _chunks(wanted: Sequence[NewTopic]) -> Iterator[list[NewTopic]]:
    """Split the topics into chunks that one transaction can create in a short time."""
    chunk: list[NewTopic] = []
    partitions = 0
    for each in wanted:
        partitions += each.partition_count
        if chunk and (len(chunk) == _CHUNK_TOPICS or partitions > _CHUNK_PARTITIONS):
            yield chunk
            chunk, partitions = [], each.partition_count
        chunk.append(each)
    if chunk:
        yield chunk


def _failed(name: str, error: SiltstoneError) -> Struct:
    # The schema allows null. Kafka never sends it.
    return Struct(name=name, error_code=code_of(error), error_message=message_of(error), configs=[])


def _created(new: NewTopic, topic: Topic | None, rendered: dict[TopicConfig, list[Struct]]) -> Struct:
    """Describe a topic that was created or validated.

    `rendered` holds the settings once for all topics that have the same.
    """
    config = TopicConfig.from_stored(new.config)
    if config not in rendered:
        rendered[config] = [
            Struct(name=name, value=config.text(name), config_source=config_source(config, name))
            for name in TopicConfig.schema
        ]
    return Struct(
        name=new.name,
        topic_id=topic.topic_id if topic is not None else None,
        num_partitions=new.partition_count,
        replication_factor=1,
        configs=rendered[config],
    )


def _created_in_secret(name: str, topic: Topic | None) -> Struct:
    """Describe a topic to a client that may not describe its configuration."""
    return Struct(
        name=name,
        topic_id=topic.topic_id if topic is not None else None,
        topic_config_error_code=refusal(CREATE_TOPIC).code,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


async def _refused(names: Iterable[str], context: RequestContext) -> frozenset[str]:
    """Return the names of topics that the client may not create."""
    if is_allowed(context, CREATE_IN_CLUSTER, log_denied=False):
        return frozenset()
    return await refused_names(context, CREATE_TOPIC, (name for name in names if name != _PROHIBITED))


def _settings(wanted: Struct) -> dict[str, str]:
    without = [each.name for each in wanted.configs if each.value is None]
    if without:
        raise KafkaError(ErrorCode.invalid_config, f"settings without a value: {', '.join(without)}")
    return {each.name: each.value for each in wanted.configs}


def _partition_count(wanted: Struct, default: int) -> int:
    if wanted.assignments:
        if wanted.num_partitions != -1 or wanted.replication_factor != -1:
            raise KafkaError(
                ErrorCode.invalid_request,
                "give either an assignment or a number of partitions and a replication factor",
            )
        if sorted(each.partition_index for each in wanted.assignments) != list(
            range(len(wanted.assignments))
        ):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment, "the assigned partitions must be 0, 1, 2 and so on"
            )
        return _validated_count(wanted.name, len(wanted.assignments))
    if wanted.replication_factor == 0 or wanted.replication_factor < -1:
        raise KafkaError(
            ErrorCode.invalid_replication_factor, "the replication factor must be positive or -1"
        )
    count: int = default if wanted.num_partitions == -1 else wanted.num_partitions
    return _validated_count(wanted.name, count)


def _validated_count(name: str, count: int) -> int:
    try:
        check_partition_count(name, count)
    except InvalidTopicError as error:
        raise KafkaError(ErrorCode.invalid_partitions, str(error)) from error
    return count


API = Api(
    name="create_topics",
    min_version=2,
    max_version=7,
    handle=handle,
    error_response=error_response,
    max_items=50_000,
)
