"""CreatePartitions: adds partitions to topics.

Versions 0 to 3. Version 2 is the first flexible one. An assignment must have one entry for each new
partition; the agent ignores the brokers that it names. From version 3 on, a quota of mutations (KIP-599) is
strict.

A topic that was not processed within the request's timeout is REQUEST_TIMED_OUT and does not change.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.topics.request_deadline import RequestDeadline
from agent.kafka.authorization import current_acls, refusal, refused_names, require_again
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.kafka.throttling import MutationCharges
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import ALTER_TOPIC
from catalog.topics.names import MAX_PARTITIONS
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic

_STRICT_SINCE = 3


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Add partitions to each topic, or report why not."""
    names = Counter(wanted.name for wanted in request.topics)
    deadline = RequestDeadline(request.timeout, context.services.clock)
    acls = current_acls(context)
    refused = await refused_names(context, ALTER_TOPIC, names)
    run = context.services.pools.catalog.run
    found = await run(partial(context.services.catalog.topics.by_names, list(names))) if names else []
    known = {topic.name: topic for topic in found}
    charges = MutationCharges(context, strict_since=_STRICT_SINCE)
    yielding, results = CooperativeYield(), []
    for wanted in {each.name: each for each in request.topics}.values():
        try:
            if names[wanted.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"topic {wanted.name!r} is named twice")
            if wanted.name in refused:
                raise refusal(ALTER_TOPIC)
            _check(wanted, known)
            charges.require(wanted.count - known[wanted.name].partition_count)
            if not request.validate_only:
                deadline.check()
                require_again(context, acls, ALTER_TOPIC, wanted.name)
                await _add_partitions(wanted.name, wanted.count, context)
        except SiltstoneError as error:
            results.append(
                Struct(name=wanted.name, error_code=code_of(error), error_message=message_of(error))
            )
        else:
            results.append(Struct(name=wanted.name))
        await yielding.step()
    return Struct(results=results, throttle_time=charges.throttle_ms)


def _check(wanted: Struct, known: Mapping[str, Topic]) -> None:
    """Raise if the topic cannot have the requested partitions."""
    topic = known.get(wanted.name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {wanted.name!r}")
    added = wanted.count - topic.partition_count
    if added <= 0:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"topic {wanted.name!r} has {topic.partition_count} partitions and cannot have {wanted.count}: "
            "partitions can only be added",
        )
    if wanted.assignments is not None and len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"{len(wanted.assignments)} partitions are assigned, but {added} are new",
        )
    if wanted.count > MAX_PARTITIONS:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"a topic has at most {MAX_PARTITIONS} partitions, not {wanted.count}",
        )


async def _add_partitions(name: str, count: int, context: RequestContext) -> None:
    services = context.services
    await services.pools.catalog.run(partial(services.catalog.topics.add_partitions, name, count))
    services.directory.invalidate(name)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every topic."""
    del context
    code, message = code_of(error), message_of(error)
    return Struct(
        results=[
            Struct(name=name, error_code=code, error_message=message)
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
