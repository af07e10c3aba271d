"""Every API that is served: to add one, write its module and add its line."""

from agent.kafka.api_definition import Api
from agent.kafka.apis.cluster import (
    alter_replica_log_dirs,
    api_versions,
    describe_cluster,
    describe_log_dirs,
)
from agent.kafka.apis.configs import (
    alter_client_quotas,
    alter_configs,
    describe_client_quotas,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from agent.kafka.apis.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from agent.kafka.apis.records import (
    delete_records,
    describe_producers,
    fetch,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from agent.kafka.apis.rejected import REJECTED_APIS
from agent.kafka.apis.security import alter_user_scram_credentials, describe_user_scram_credentials
from agent.kafka.apis.topics import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    describe_topic_partitions,
    metadata,
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
    consumer_group_heartbeat.API,
    consumer_group_describe.API,
    describe_groups.API,
    list_groups.API,
    delete_groups.API,
    alter_client_quotas.API,
    alter_configs.API,
    alter_partition_reassignments.API,
    alter_replica_log_dirs.API,
    create_partitions.API,
    create_topics.API,
    delete_records.API,
    delete_topics.API,
    describe_cluster.API,
    describe_client_quotas.API,
    describe_configs.API,
    describe_log_dirs.API,
    describe_producers.API,
    describe_topic_partitions.API,
    incremental_alter_configs.API,
    list_config_resources.API,
    describe_user_scram_credentials.API,
    alter_user_scram_credentials.API,
    *(rejected.api for rejected in REJECTED_APIS),
)
