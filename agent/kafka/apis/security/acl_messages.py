"""ACLs and their filters, from and to the structs of DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agent.kafka.errors import ErrorCode, KafkaError
from catalog.security.acl_bindings import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

if TYPE_CHECKING:
    from enum import IntEnum

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct
    from agent.security.acl_follower import AclFollower

Code = TypeVar("Code", bound="IntEnum")


def follower_of(context: RequestContext) -> AclFollower:
    """Return the follower of the ACLs; raise SECURITY_DISABLED if there is no authorizer."""
    follower = context.services.acl_follower
    if follower is None:
        raise KafkaError(ErrorCode.security_disabled, "No Authorizer is configured on the broker")
    return follower


def read_binding(wanted: Struct) -> AclBinding:
    """Return the binding that CreateAcls names; raise INVALID_REQUEST or InvalidAclError if it is invalid."""
    binding = AclBinding(
        _code(ResourceType, wanted.resource_type),
        _code(PatternType, wanted.resource_pattern_type),
        wanted.resource_name,
        wanted.principal,
        wanted.host,
        _code(Operation, wanted.operation),
        _code(Permission, wanted.permission_type),
    )
    binding.check()
    return binding


def read_filter(wanted: Struct) -> AclFilter:
    """Return the filter that a request has; raise INVALID_REQUEST if it has an unknown code."""
    return AclFilter(
        _code(ResourceType, wanted.resource_type_filter),
        _code(PatternType, wanted.pattern_type_filter),
        wanted.resource_name_filter,
        wanted.principal_filter,
        wanted.host_filter,
        _code(Operation, wanted.operation),
        _code(Permission, wanted.permission_type),
    )


def _code(kind: type[Code], number: int) -> Code:
    try:
        return kind(number)
    except ValueError:
        raise KafkaError(ErrorCode.invalid_request, f"unknown {kind.__name__} {number}") from None
