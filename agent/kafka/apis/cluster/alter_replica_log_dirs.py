"""AlterReplicaLogDirs (KIP-113): moves the logs of local topics between the log directories of this agent.

Versions 1 and 2. Version 2 is the first flexible one. The response means that a move has begun, and
DescribeLogDirs shows its progress. As in Kafka, a move to the directory where the log is cancels a running
move. Deviations:

- A restart of the agent ends a move, so the request must be sent again.
- A log that does not exist yet is created, then moved. Kafka remembers the directory and responds with
  REPLICA_NOT_AVAILABLE.
- The records of other topics are in the object store: they are in `/object-store` and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from agent.cluster.topic_directory import require_partition
from agent.kafka.api_definition import Api
from agent.kafka.apis.cluster.describe_log_dirs import OBJECT_STORE
from agent.kafka.authorization import is_allowed, refusal
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import ALTER_CLUSTER
from core.errors import SiltstoneError
from local_tier.files.file_names import MAX_NAME_BYTES, DirectoryState, PartitionDirectory

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic

_UNIQUE = "0" * 32  # as long as the random part of a name
_log = structlog.get_logger(__name__)


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Begin or cancel each move, or report why not."""
    is_refused = not is_allowed(context, ALTER_CLUSTER)
    names = [] if is_refused else [topic.name for wanted in request.dirs for topic in wanted.topics]
    known = await context.services.directory.get_many(names)
    results: dict[str, Struct] = {}
    yielding = CooperativeYield()
    for wanted in request.dirs:
        for topic in wanted.topics:
            result = results.setdefault(topic.name, Struct(topic_name=topic.name, partitions=[]))
            for index in topic.partitions:
                code = refusal(ALTER_CLUSTER).code
                if not is_refused:
                    code = await _move(wanted.path, topic.name, index, known.get(topic.name), context)
                result.partitions.append(Struct(partition_index=index, error_code=code))
                await yielding.step()
    return Struct(results=list(results.values()))


async def _move(path: str, name: str, index: int, topic: Topic | None, context: RequestContext) -> ErrorCode:
    logs = context.services.local_logs
    try:
        future = PartitionDirectory(name, index, DirectoryState.FUTURE, _UNIQUE)
        if len(future.name) > MAX_NAME_BYTES:
            raise KafkaError(ErrorCode.invalid_topic_exception, "the name of the topic is too long")
        directory = logs.directory_at(path)
        if directory is None and path != OBJECT_STORE:
            raise KafkaError(ErrorCode.log_dir_not_found, f"{path} is not a log directory of this agent")
        if path in logs.offline:
            raise KafkaError(ErrorCode.kafka_storage_error, f"log directory {path} is offline")
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        require_partition(topic, index)
        if not topic.is_local and directory is not None:
            raise KafkaError(ErrorCode.replica_not_available, "the records are in the object store")
        if topic.is_local and directory is None:
            raise KafkaError(ErrorCode.log_dir_not_found, f"{OBJECT_STORE} has no local topics")
        if directory is not None:
            await logs.move(topic, index, directory)
    except SiltstoneError as error:
        code = code_of(error)
        _log.warning("log_not_moved", topic=name, partition=index, path=path, reason=str(error))
        is_led_elsewhere = code is ErrorCode.not_leader_or_follower
        return ErrorCode.replica_not_available if is_led_elsewhere else code  # for compatibility, as in Kafka
    return ErrorCode.none


API = Api(name="alter_replica_log_dirs", min_version=1, max_version=2, handle=handle)
