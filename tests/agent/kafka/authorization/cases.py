"""One request for each row of the table of rights: the rights it needs, and the refusal in its response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC, GROUP, MEMBERS = "topic", "group", "members"
"""A topic with one partition, a group with an offset of it, and a group with a member that has it."""

REFUSALS = {
    "Topic": ErrorCode.topic_authorization_failed,
    "Group": ErrorCode.group_authorization_failed,
    "Cluster": ErrorCode.cluster_authorization_failed,
    "TransactionalId": ErrorCode.transactional_id_authorization_failed,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request that needs a right, the names of its resources, and the other rights that it needs.

    `sees` returns True if the response shows that the client has the right: by default, if it has no
    error code of a refusal. `code` is the error code of the refusal, if it is not that of the resource.
    """

    api: str
    version: int
    right: str
    request: Struct
    others: tuple[str, ...] = ()
    sees: Callable[[Struct], bool] | None = None
    code: ErrorCode | None = None

    @property
    def row(self) -> tuple[str, str, str]:
        operation, kind, *_ = self.right.split()
        return self.api.title().replace("_", ""), operation, kind


def codes(response: Struct) -> Iterator[int]:
    """Yield all error codes of a response."""
    for name, value in vars(response).items():
        if name.endswith("error_code"):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                yield from codes(each)


def is_refused(response: Struct) -> bool:
    return bool({*codes(response)} & {*REFUSALS.values()})


def _topics(field_name: str, **fields: Any) -> list[Struct]:  # noqa: ANN401  # any field
    return [Struct(name=TOPIC, **{field_name: [Struct(**fields)]})]


_AT_0: dict[str, Any] = {"partition_index": 0}
_EPOCH = {"current_leader_epoch": -1}
_COMMIT = _AT_0 | {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
_NEW = Struct(name="new", num_partitions=1, replication_factor=-1, assignments=[], configs=[])
_PRODUCED = Struct(
    transactional_id=None,
    acks=-1,
    timeout=60_000,
    topic_data=[
        Struct(name=TOPIC, partition_data=[Struct(index=0, records=bytes(encode_batch([1], [b"k"], [b"v"])))])
    ],
)
_FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": "User:nobody",
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_ACL = {
    "resource_type": 2,
    "resource_name": "unused",
    "resource_pattern_type": 3,
    "principal": "User:nobody",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_BROKER, _TOPIC_CONFIG, _GROUP_CONFIG = 8, 2, 32


def _config(kind: int, name: str, **fields: Any) -> Struct:  # noqa: ANN401  # any field
    return Struct(resource_type=kind, resource_name=name, **fields)


def _altered(kind: int, name: str) -> Struct:
    return Struct(resources=[_config(kind, name, configs=[])], validate_only=True)


def _described(kind: int, name: str) -> Struct:
    resource = _config(kind, name, configuration_keys=None)
    return Struct(resources=[resource], include_synonyms=False, include_documentation=False)


def _metadata(name: str, *, creates: bool = False) -> Struct:
    return Struct(
        topics=[Struct(name=name, topic_id=None)],
        allow_auto_topic_creation=creates,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


def _offsets(topics: list[Struct] | None) -> Struct:
    group = Struct(group_id=GROUP, member_id=None, member_epoch=-1, topics=topics)
    return Struct(groups=[group], require_stable=False)


def _created(*, validate_only: bool = True) -> Struct:
    return Struct(topics=[_NEW], timeout=60_000, validate_only=validate_only)


def heartbeat(group: str, member: str) -> Struct:
    return Struct(
        group_id=group,
        member_id=member,
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=60_000,
        subscribed_topic_names=[TOPIC],
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=[],
    )


def _lists_group(response: Struct) -> bool:
    return GROUP in [each.group_id for each in response.groups]


_MEMBER = {"group_id": GROUP, "generation_id": 1, "member_id": "m", "group_instance_id": None}
_JOIN = Struct(
    group_id=GROUP,
    session_timeout=45_000,
    rebalance_timeout=60_000,
    member_id="",
    group_instance_id=None,
    protocol_type="consumer",
    protocols=[Struct(name="range", metadata=b"")],
    reason=None,
)
_LIST_GROUPS = Struct(states_filter=[], types_filter=[])

CASES: tuple[Case, ...] = (
    Case(api="produce", version=9, right="Write Topic topic", request=_PRODUCED),
    Case(
        api="fetch",
        version=12,
        right="Read Topic topic",
        request=Struct(
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=1000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[
                Struct(
                    topic=TOPIC,
                    partitions=[
                        Struct(
                            partition=0,
                            **_EPOCH,
                            fetch_offset=0,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            partition_max_bytes=1000,
                        )
                    ],
                )
            ],
            forgotten_topics_data=[],
            rack_id="",
        ),
    ),
    Case(
        api="list_offsets",
        version=7,
        right="Describe Topic topic",
        request=Struct(
            replica_id=-1,
            isolation_level=0,
            topics=_topics("partitions", **_AT_0, **_EPOCH, timestamp=-1),
        ),
    ),
    Case(api="metadata", version=12, right="Describe Topic topic", request=_metadata(TOPIC)),
    Case(
        api="metadata",
        version=12,
        right="Create Cluster",
        others=("Describe Topic made-1",),
        request=_metadata("made-1", creates=True),
        code=ErrorCode.topic_authorization_failed,
    ),
    Case(
        api="metadata",
        version=12,
        right="Create Topic made-2",
        others=("Describe Topic made-2",),
        request=_metadata("made-2", creates=True),
    ),
    *(
        Case(
            api="offset_commit",
            version=8,
            right=right,
            others=(other,),
            request=Struct(
                group_id=GROUP,
                generation_id_or_member_epoch=-1,
                member_id="",
                group_instance_id=None,
                topics=_topics("partitions", **_COMMIT),
            ),
        )
        for right, other in (
            ("Read Group group", "Read Topic topic"),
            ("Read Topic topic", "Read Group group"),
        )
    ),
    *(
        Case(
            api="offset_fetch",
            version=9,
            right=right,
            others=(other,),
            request=_offsets([Struct(name=TOPIC, partition_indexes=[0])]),
        )
        for right, other in (
            ("Describe Group group", "Describe Topic topic"),
            ("Describe Topic topic", "Describe Group group"),
        )
    ),
    Case(
        api="find_coordinator",
        version=4,
        right="Describe Group group",
        request=Struct(key_type=0, coordinator_keys=[GROUP]),
    ),
    Case(api="join_group", version=9, right="Read Group group", request=_JOIN),
    Case(api="heartbeat", version=4, right="Read Group group", request=Struct(**_MEMBER)),
    Case(
        api="leave_group",
        version=5,
        right="Read Group group",
        request=Struct(group_id=GROUP, members=[Struct(member_id="m", group_instance_id=None, reason=None)]),
    ),
    Case(
        api="sync_group",
        version=5,
        right="Read Group group",
        request=Struct(**_MEMBER, protocol_type="consumer", protocol_name="range", assignments=[]),
    ),
    Case(
        api="describe_groups",
        version=5,
        right="Describe Group group",
        request=Struct(groups=[GROUP], include_authorized_operations=False),
    ),
    *(
        Case(api="list_groups", version=5, right=right, request=_LIST_GROUPS, sees=_lists_group)
        for right in ("Describe Cluster", "Describe Group group")
    ),
    Case(
        api="create_topics",
        version=7,
        right="Create Cluster",
        request=_created(),
        others=("DescribeConfigs Topic new",),
        code=ErrorCode.topic_authorization_failed,
    ),
    Case(
        api="create_topics",
        version=7,
        right="Create Topic new",
        others=("DescribeConfigs Topic new",),
        request=_created(),
    ),
    Case(
        api="create_topics",
        version=7,
        right="DescribeConfigs Topic new",
        others=("Create Topic new",),
        request=_created(),
    ),
    Case(
        api="delete_topics",
        version=6,
        right="Delete Topic doomed",
        request=Struct(topics=[Struct(name="doomed", topic_id=None)], timeout=60_000),
    ),
    Case(
        api="delete_records",
        version=2,
        right="Delete Topic topic",
        request=Struct(topics=_topics("partitions", **_AT_0, offset=0), timeout=60_000),
    ),
    Case(
        api="init_producer_id",
        version=4,
        right="IdempotentWrite Cluster",
        request=Struct(transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1),
    ),
    *(
        Case(
            api="offset_for_leader_epoch",
            version=4,
            right=right,
            request=Struct(
                replica_id=-2,
                topics=[Struct(topic=TOPIC, partitions=[Struct(partition=0, **_EPOCH, leader_epoch=0)])],
            ),
            code=ErrorCode.topic_authorization_failed,
        )
        for right in ("ClusterAction Cluster", "Describe Topic topic")
    ),
    Case(api="describe_acls", version=3, right="Describe Cluster", request=Struct(**_FILTER)),
    Case(api="create_acls", version=3, right="Alter Cluster", request=Struct(creations=[Struct(**_ACL)])),
    Case(api="delete_acls", version=3, right="Alter Cluster", request=Struct(filters=[Struct(**_FILTER)])),
    *(
        Case(api="describe_configs", version=4, right=right, request=_described(kind, name))
        for right, kind, name in (
            ("DescribeConfigs Cluster", _BROKER, ""),
            ("DescribeConfigs Topic topic", _TOPIC_CONFIG, TOPIC),
            ("DescribeConfigs Group group", _GROUP_CONFIG, GROUP),
        )
    ),
    *(
        Case(api=api, version=1, right=right, request=_altered(kind, name))
        for api in ("alter_configs", "incremental_alter_configs")
        for right, kind, name in (
            ("AlterConfigs Cluster", _BROKER, ""),
            ("AlterConfigs Topic topic", _TOPIC_CONFIG, TOPIC),
            ("AlterConfigs Group group", _GROUP_CONFIG, GROUP),
        )
    ),
    Case(
        api="alter_replica_log_dirs",
        version=2,
        right="Alter Cluster",
        request=Struct(dirs=[Struct(path="/none", topics=[Struct(name=TOPIC, partitions=[0])])]),
    ),
    Case(
        api="describe_log_dirs",
        version=4,
        right="Describe Cluster",
        request=Struct(topics=None),
    ),
    Case(
        api="create_partitions",
        version=3,
        right="Alter Topic topic",
        request=Struct(
            topics=[Struct(name=TOPIC, count=2, assignments=None)], timeout=60_000, validate_only=True
        ),
    ),
    Case(
        api="delete_groups",
        version=2,
        right="Delete Group gone",
        request=Struct(groups_names=["gone"]),
    ),
    Case(
        api="alter_partition_reassignments",
        version=0,
        right="Alter Cluster",
        request=Struct(timeout=60_000, topics=[]),
    ),
    Case(
        api="list_partition_reassignments",
        version=0,
        right="Describe Cluster",
        request=Struct(timeout=60_000, topics=None),
    ),
    *(
        Case(
            api="offset_delete",
            version=0,
            right=right,
            others=(other,),
            request=Struct(group_id=GROUP, topics=_topics("partitions", partition_index=7)),
        )
        for right, other in (
            ("Delete Group group", "Read Topic topic"),
            ("Read Topic topic", "Delete Group group"),
        )
    ),
    Case(
        api="describe_client_quotas",
        version=1,
        right="DescribeConfigs Cluster",
        request=Struct(components=[], strict=False),
    ),
    Case(
        api="alter_client_quotas",
        version=1,
        right="AlterConfigs Cluster",
        request=Struct(
            entries=[Struct(entity=[Struct(entity_type="user", entity_name="nobody")], ops=[])],
            validate_only=True,
        ),
    ),
    Case(
        api="describe_user_scram_credentials",
        version=0,
        right="Describe Cluster",
        request=Struct(users=None),
    ),
    Case(
        api="alter_user_scram_credentials",
        version=0,
        right="Alter Cluster",
        request=Struct(deletions=[Struct(name="nobody", mechanism=1)], upsertions=[]),
    ),
    Case(
        api="describe_cluster",
        version=1,
        right="Describe Cluster",
        request=Struct(include_cluster_authorized_operations=True, endpoint_type=1),
        sees=lambda response: bool(response.cluster_authorized_operations) and bool(response.brokers),
    ),
    Case(
        api="describe_producers",
        version=0,
        right="Read Topic topic",
        request=Struct(topics=[Struct(name=TOPIC, partition_indexes=[0])]),
    ),
    *(
        Case(
            api="consumer_group_heartbeat",
            version=1,
            right=right,
            others=(other,),
            request=heartbeat("joined", f"member-{right}"),
        )
        for right, other in (
            ("Read Group joined", "Describe Topic topic"),
            ("Describe Topic topic", "Read Group joined"),
        )
    ),
    *(
        Case(
            api="consumer_group_describe",
            version=1,
            right=right,
            others=(other,),
            request=Struct(group_ids=[MEMBERS], include_authorized_operations=True),
        )
        for right, other in (
            ("Describe Group members", "Describe Topic topic"),
            ("Describe Topic topic", "Describe Group members"),
        )
    ),
    Case(
        api="list_config_resources",
        version=1,
        right="DescribeConfigs Cluster",
        request=Struct(resource_types=[]),
    ),
    Case(
        api="describe_topic_partitions",
        version=0,
        right="Describe Topic topic",
        request=Struct(topics=[Struct(name=TOPIC)], response_partition_limit=2000, cursor=None),
    ),
)
