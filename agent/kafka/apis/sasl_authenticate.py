"""SaslAuthenticate: nobody is asked to authenticate, as on a Kafka listener without SASL.

Versions 0 to 2.
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
    return Struct(error_code=ErrorCode.illegal_sasl_state, error_message="this listener has no SASL")


API = Api(name="sasl_authenticate", min_version=0, max_version=2, handle=handle)
