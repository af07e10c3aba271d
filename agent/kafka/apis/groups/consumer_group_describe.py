"""ConsumerGroupDescribe (KIP-848): describes groups of the consumer protocol.

Versions 0 and 1. Version 1 added the member type: the group protocol that the member uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.consumer_group_heartbeat import by_topic
from agent.kafka.apis.groups.group_requests import group_code_of
from agent.kafka.authorization import authorized_operations, refused_names, require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, message_of
from agent.security.rights import DESCRIBE_GROUP, DESCRIBE_TOPIC
from catalog.security.acl_bindings import ResourceType

if TYPE_CHECKING:
    from agent.groups.consumer.messages import Assignment, ConsumerGroupDescription, ConsumerMemberDescription
    from agent.groups.consumer.topics import TopicView
    from agent.kafka.api_definition import RequestContext

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
_HIDDEN_TOPICS = "the members have topics that the principal may not describe"


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe each group."""
    groups = dict.fromkeys(request.group_ids)  # a group that is named often is described once
    return Struct(groups=[await _describe(group_id, request, context) for group_id in groups])


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every group."""
    del context
    return Struct(groups=[_failed(group_id, error) for group_id in request.group_ids])


async def _describe(group_id: str, request: Struct, context: RequestContext) -> Struct:
    try:
        require(context, DESCRIBE_GROUP, group_id)
        group, topics = await context.services.groups.consumers.describe(group_id)
        assigned = {
            each.topic_id for member in group.members for each in (*member.assignment, *member.target)
        }
        hidden = await refused_names(context, DESCRIBE_TOPIC, topics.names(assigned).values())
    except Exception as error:  # noqa: BLE001  # each group has its own error code
        return _failed(group_id, error)
    if hidden:
        return _failed(group_id, KafkaError(ErrorCode.topic_authorization_failed, _HIDDEN_TOPICS))
    requested = request.include_authorized_operations
    operations = authorized_operations(context, ResourceType.GROUP, group_id, requested=requested)
    return _described(group, topics, operations)


def _described(group: ConsumerGroupDescription, topics: TopicView, operations: int) -> Struct:
    return Struct(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        authorized_operations=operations,
        members=[_member(member, topics) for member in group.members],
    )


def _member(member: ConsumerMemberDescription, topics: TopicView) -> Struct:
    return Struct(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(member.assignment, topics),
        target_assignment=_assignment(member.target, topics),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(assignment: Assignment, topics: TopicView) -> Struct:
    names = topics.names(each.topic_id for each in assignment)
    listed = by_topic(each for each in assignment if each.topic_id in names)
    for topic in listed:
        topic.topic_name = names[topic.topic_id]
    return Struct(topic_partitions=listed)


def _failed(group_id: str, error: Exception) -> Struct:
    return Struct(
        group_id=group_id,
        error_code=group_code_of(error),
        error_message=message_of(error),
        group_state="Dead",
        assignor_name="",
        members=[],
    )


API = Api(
    name="consumer_group_describe", min_version=0, max_version=1, handle=handle, error_response=error_response
)
