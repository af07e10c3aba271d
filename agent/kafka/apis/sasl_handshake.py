"""SaslHandshake: there is no authentication yet, and a client that wants some is told so.

Versions 0 and 1. As a Kafka broker answers on a listener without SASL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api import Context


async def handle(request: Struct, context: Context) -> Struct:
    """Refuse."""
    del request, context
    return Struct(error_code=ErrorCode.illegal_sasl_state)


API = Api(name="sasl_handshake", lowest=0, highest=1, handle=handle)
