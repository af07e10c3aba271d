"""CreateTopics.

Versions 2 to 7. Topics are made a hundred at a time; what is not begun within the request's timeout is
REQUEST_TIMED_OUT, and not made. Any replication factor but 0 is taken and answered as 1: copies are the
object store's affair. A manual assignment gives the number of partitions and nothing else. -1 partitions are
as many as the configuration says.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.describe_configs import config_source
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of, to_kafka_error
from agent.kafka.request_deadline import RequestDeadline
from agent.runtime.cooperative_yield import Turns
from catalog.config.topic_config import TopicConfig
from catalog.errors import InvalidTopicError
from catalog.topics.creation import NewTopic
from catalog.topics.names import check_partition_count, check_topic_name
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic

# Kafka's controller takes 10,000 partitions with one request (ReplicationControlManager); each answer has all
# settings.
_MAX_TOPICS = 2_000
# With one transaction: no more than the first topic may have many partitions.
_AT_ONCE, _PARTITIONS_AT_ONCE = 100, 10_000
_PROHIBITED = "__cluster_metadata"  # the controllers' log (Kafka's ControllerApis.createTopics)
_CHECKED_IN_ONE = 5  # of a turn's items, with some settings


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Create each topic, or say why not."""
    names = Counter(wanted.name for wanted in request.topics)
    if len(names) > _MAX_TOPICS:
        raise KafkaError(ErrorCode.policy_violation, f"at most {_MAX_TOPICS} topics are created at once")
    turns = Turns()
    found: dict[str, Topic | SiltstoneError | None] = {}
    new: dict[str, NewTopic] = {}
    for wanted in {each.name: each for each in request.topics}.values():
        found[wanted.name] = None
        try:
            if names[wanted.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"topic {wanted.name!r} is named twice")
            new[wanted.name] = _new(wanted, context)
        except SiltstoneError as error:
            found[wanted.name] = error
        await turns.did(_CHECKED_IN_ONE)
    make = _check_free if request.validate_only else _create
    found |= await make(list(new.values()), RequestDeadline(request.timeout, context.services.clock), context)
    shown: dict[TopicConfig, list[Struct]] = {}
    answers = []
    for name, topic in found.items():
        answers.append(
            _failed(name, topic) if isinstance(topic, SiltstoneError) else _made(new[name], topic, shown)
        )
        await turns.did()
    return Struct(topics=answers)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """The same code for every topic."""
    del context
    code, words = code_of(error), message_of(error)
    return Struct(
        topics=[Struct(name=wanted.name, error_code=code, error_message=words) for wanted in request.topics]
    )


def _new(wanted: Struct, context: RequestContext) -> NewTopic:
    check_topic_name(wanted.name)
    if wanted.name == _PROHIBITED:
        raise KafkaError(ErrorCode.invalid_request, f"a topic named {_PROHIBITED} cannot be created")
    count = _partition_count(wanted, context.services.settings.default_partitions)
    new = NewTopic(name=wanted.name, partition_count=count, config=_settings(wanted))
    new.check()
    return new


async def _check_free(
    wanted: Sequence[NewTopic], deadline: RequestDeadline, context: RequestContext
) -> dict[str, SiltstoneError]:
    """What is in the way of topics that nobody wants to have yet."""
    deadline.begin()
    names = [each.name for each in wanted]
    topics = context.services.catalog.topics
    return dict(await context.services.pools.catalog.run(partial(topics.occupied, names))) if names else {}


async def _create(
    wanted: Sequence[NewTopic], deadline: RequestDeadline, context: RequestContext
) -> dict[str, Topic | SiltstoneError]:
    """Topics, or what is in their way; some at a time."""
    services = context.services
    made: dict[str, Topic | SiltstoneError] = {}
    for some in _portions(wanted):
        try:
            deadline.begin()
            create = partial(services.catalog.topics.create_many, some)
            made |= zip([each.name for each in some], await services.pools.catalog.run(create), strict=True)
        except SiltstoneError as error:
            made |= dict.fromkeys([each.name for each in some], to_kafka_error(error))
        for each in some:
            services.directory.forget(each.name)
    return made


def _portions(wanted: Sequence[NewTopic]) -> Iterator[list[NewTopic]]:
    """Those that are made in one transaction: few enough to take no long time."""
    some: list[NewTopic] = []
    partitions = 0
    for each in wanted:
        partitions += each.partition_count
        if some and (len(some) == _AT_ONCE or partitions > _PARTITIONS_AT_ONCE):
            yield some
            some, partitions = [], each.partition_count
        some.append(each)
    if some:
        yield some


def _failed(name: str, error: SiltstoneError) -> Struct:
    return Struct(name=name, error_code=code_of(error), error_message=message_of(error))


def _made(new: NewTopic, topic: Topic | None, shown: dict[TopicConfig, list[Struct]]) -> Struct:
    """A topic that is there now, or could be; settings are `shown` once for all that have the same."""
    config = TopicConfig.stored(new.config)
    if config not in shown:
        shown[config] = [
            Struct(name=name, value=config.text(name), config_source=config_source(config, name))
            for name in TopicConfig.known
        ]
    return Struct(
        name=new.name,
        topic_id=topic.topic_id if topic is not None else None,
        num_partitions=new.partition_count,
        replication_factor=1,
        configs=shown[config],
    )


def _settings(wanted: Struct) -> dict[str, str]:
    without = [each.name for each in wanted.configs if each.value is None]
    if without:
        raise KafkaError(ErrorCode.invalid_config, f"settings without a value: {', '.join(without)}")
    return {each.name: each.value for each in wanted.configs}


def _partition_count(wanted: Struct, default: int) -> int:
    if wanted.assignments:
        if wanted.num_partitions != -1 or wanted.replication_factor != -1:
            raise KafkaError(
                ErrorCode.invalid_request, "give an assignment, or numbers of partitions and replicas"
            )
        if sorted(each.partition_index for each in wanted.assignments) != list(
            range(len(wanted.assignments))
        ):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment, "the partitions assigned are not 0, 1, 2 and so on"
            )
        return _checked(wanted.name, len(wanted.assignments))
    if wanted.replication_factor == 0 or wanted.replication_factor < -1:
        raise KafkaError(
            ErrorCode.invalid_replication_factor, "the replication factor must be positive, or -1"
        )
    count: int = default if wanted.num_partitions == -1 else wanted.num_partitions
    return _checked(wanted.name, count)


def _checked(name: str, count: int) -> int:
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
