"""CreateTopics.

Versions 2 to 7. Any replication factor but 0 is taken and answered as 1: copies are the object store's
affair. A manual assignment gives the number of partitions and nothing else. -1 partitions are as many as the
configuration says.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.apis.describe_configs import config_source
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from bedrock.errors import SiltstoneError
from catalog.errors import InvalidTopicError
from catalog.topic_config import TopicConfig
from catalog.topic_names import check_partition_count, check_topic_name

if TYPE_CHECKING:
    from agent.kafka.api import Context
    from catalog.model import Topic

# Kafka's controller takes 10,000 partitions with one request (ReplicationControlManager); each answer has all
# settings.
_MOST_TOPICS = 2_000


async def handle(request: Struct, context: Context) -> Struct:
    """Create each topic, or say why not."""
    names = Counter(wanted.name for wanted in request.topics)
    if len(names) > _MOST_TOPICS:
        raise KafkaError(ErrorCode.policy_violation, f"at most {_MOST_TOPICS} topics are created at once")
    answers = []
    for wanted in {each.name: each for each in request.topics}.values():
        try:
            if names[wanted.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"topic {wanted.name!r} is named twice")
            answers.append(await _create(wanted, context, validate_only=request.validate_only))
        except SiltstoneError as error:
            answers.append(
                Struct(name=wanted.name, error_code=code_of(error), error_message=message_of(error))
            )
    return Struct(topics=answers)


def refuse(request: Struct, context: Context, error: Exception) -> Struct:
    """The same code for every topic."""
    del context
    code, words = code_of(error), message_of(error)
    return Struct(
        topics=[Struct(name=wanted.name, error_code=code, error_message=words) for wanted in request.topics]
    )


async def _create(wanted: Struct, context: Context, *, validate_only: bool) -> Struct:
    check_topic_name(wanted.name)
    count = _partition_count(wanted, context.services.settings.default_partitions)
    settings = _settings(wanted)
    config = TopicConfig.of(settings)
    topic: Topic | None = None
    if validate_only:
        require_free = partial(context.services.catalog.topics.require_free, wanted.name)
        await context.services.pools.catalog.run(require_free)
    else:
        create = partial(context.services.catalog.topics.create, wanted.name, count, settings)
        topic = await context.services.pools.catalog.run(create)
        context.services.directory.forget(wanted.name)
    return Struct(
        name=wanted.name,
        topic_id=topic.topic_id if topic is not None else None,
        num_partitions=count,
        replication_factor=1,
        configs=[
            Struct(name=name, value=config.text(name), config_source=config_source(config, name))
            for name in TopicConfig.known
        ],
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


API = Api(name="create_topics", lowest=2, highest=7, handle=handle, refuse=refuse, most_items=50_000)
