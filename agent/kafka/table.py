"""Every API that is served: to add one, write its module and add its line."""

from agent.kafka.api import Api
from agent.kafka.apis import (
    api_versions,
    metadata,
)

APIS: tuple[Api, ...] = (
    metadata.API,
    api_versions.API,
)
