"""ApiVersions (KIP-35): lists the APIs and versions that this agent serves.

Versions 0 to 4. Version 3 added the name and the version of the client software, which must be well-formed
(KIP-511). For an unknown version the dispatcher sends a response of version 0.

One feature is finalized: `transaction.version` 2. Clients then let their Produce and TxnOffsetCommit requests
add partitions and groups to a transaction, and take a new epoch from each EndTxn (KIP-890). It never changes,
so the epoch of the features is constant.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_TRANSACTION_VERSION = "transaction.version"
_VERSION_OF_KIP_890 = 2
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


async def handle(request: Struct, context: RequestContext) -> Struct:
    """List the APIs with their advertised versions."""
    if context.version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not _NAME.fullmatch(text):
                raise KafkaError(
                    ErrorCode.invalid_request, f"{text!r} is not a valid name or version of client software"
                )
    if context.client.login is not None:
        context.client.login.sent_versions()
    rows = []
    for key, api in sorted(context.apis.items()):
        if api.is_advertised:
            lowest, highest = api.advertised_versions
            rows.append(Struct(api_key=key, min_version=lowest, max_version=highest))
    return Struct(
        api_keys=rows,
        supported_features=[
            Struct(name=_TRANSACTION_VERSION, min_version=0, max_version=_VERSION_OF_KIP_890)
        ],
        finalized_features_epoch=0,
        finalized_features=[
            Struct(
                name=_TRANSACTION_VERSION,
                max_version_level=_VERSION_OF_KIP_890,
                min_version_level=_VERSION_OF_KIP_890,
            )
        ],
    )


API = Api(name="api_versions", min_version=0, max_version=4, handle=handle)
