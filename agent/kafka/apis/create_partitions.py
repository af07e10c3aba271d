"""CreatePartitions: more of them for a topic.

Versions 0 to 3. An assignment must name each new partition once; which brokers it names does not matter.
What is not begun within the request's timeout is REQUEST_TIMED_OUT, and stays as it is.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.kafka.request_deadline import RequestDeadline
from agent.runtime.cooperative_yield import Turns
from catalog.topics.names import MAX_PARTITIONS
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Let each topic grow, or say why not."""
    names = Counter(wanted.name for wanted in request.topics)
    deadline = RequestDeadline(request.timeout, context.services.clock)
    run = context.services.pools.catalog.run
    found = await run(partial(context.services.catalog.topics.named, list(names))) if names else []
    known = {topic.name: topic for topic in found}
    turns, results = Turns(), []
    for wanted in {each.name: each for each in request.topics}.values():
        try:
            if names[wanted.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"topic {wanted.name!r} is named twice")
            _check(wanted, known)
            if not request.validate_only:
                deadline.begin()
                await _grow(wanted.name, wanted.count, context)
        except SiltstoneError as error:
            results.append(
                Struct(name=wanted.name, error_code=code_of(error), error_message=message_of(error))
            )
        else:
            results.append(Struct(name=wanted.name))
        await turns.did()
    return Struct(results=results)


def _check(wanted: Struct, known: Mapping[str, Topic]) -> None:
    """Raise for what a topic cannot become."""
    topic = known.get(wanted.name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {wanted.name!r}")
    added = wanted.count - topic.partition_count
    if added <= 0:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"topic {wanted.name!r} has {topic.partition_count} partitions, {wanted.count} were asked for; "
            "they can only grow in number",
        )
    if wanted.assignments is not None and len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"{len(wanted.assignments)} partitions are assigned and {added} are new",
        )
    if wanted.count > MAX_PARTITIONS:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"a topic has at most {MAX_PARTITIONS} partitions, not {wanted.count}",
        )


async def _grow(name: str, count: int, context: RequestContext) -> None:
    services = context.services
    await services.pools.catalog.run(partial(services.catalog.topics.add_partitions, name, count))
    services.directory.forget(name)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """The same code for every topic."""
    del context
    code, words = code_of(error), message_of(error)
    return Struct(
        results=[
            Struct(name=name, error_code=code, error_message=words)
            for name in {each.name: None for each in request.topics}
        ]
    )


API = Api(
    name="create_partitions",
    min_version=0,
    max_version=3,
    handle=handle,
    error_response=error_response,
    max_items=50_000,
)
