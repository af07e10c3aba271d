"""Every API that is served: to add one, write its module and add its line."""

from agent.kafka.api import Api
from agent.kafka.apis import (
    api_versions,
    delete_groups,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)

APIS: tuple[Api, ...] = (
    metadata.API,
    produce.API,
    offset_for_leader_epoch.API,
    list_offsets.API,
    init_producer_id.API,
    fetch.API,
    api_versions.API,
    find_coordinator.API,
    join_group.API,
    sync_group.API,
    heartbeat.API,
    leave_group.API,
    offset_commit.API,
    offset_fetch.API,
    offset_delete.API,
    describe_groups.API,
    list_groups.API,
    delete_groups.API,
)
