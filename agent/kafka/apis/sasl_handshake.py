"""SaslHandshake: there is no authentication yet, and a client that wants some is told so.

Versions 0 and 1. As a Kafka broker answers on a listener without SASL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Refuse."""
    del request, context
    return Struct(error_code=ErrorCode.illegal_sasl_state)


API = Api(name="sasl_handshake", min_version=0, max_version=1, handle=handle)
