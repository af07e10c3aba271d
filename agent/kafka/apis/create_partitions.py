"""CreatePartitions: more of them for a topic.

Versions 0 to 3. An assignment must name each new partition once; which brokers it names does not matter.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from bedrock.errors import SiltstoneError
from catalog.topic_names import MAX_PARTITIONS

if TYPE_CHECKING:
    from agent.kafka.api import Context


async def handle(request: Struct, context: Context) -> Struct:
    """Let each topic grow, or say why not."""
    names = Counter(wanted.name for wanted in request.topics)
    results = []
    for wanted in {each.name: each for each in request.topics}.values():
        try:
            if names[wanted.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"topic {wanted.name!r} is named twice")
            await _grow(wanted, context, validate_only=request.validate_only)
        except SiltstoneError as error:
            results.append(
                Struct(name=wanted.name, error_code=code_of(error), error_message=message_of(error))
            )
        else:
            results.append(Struct(name=wanted.name))
    return Struct(results=results)


async def _grow(wanted: Struct, context: Context, *, validate_only: bool) -> None:
    services = context.services
    topic = await services.pools.catalog.run(partial(services.catalog.topics.get, wanted.name))
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
    if not validate_only:
        grow = partial(services.catalog.topics.add_partitions, wanted.name, wanted.count)
        await services.pools.catalog.run(grow)
        services.directory.forget(wanted.name)


API = Api(name="create_partitions", lowest=0, highest=3, handle=handle, most_items=50_000)
