"""SaslHandshake (KIP-43): chooses the SASL mechanism of a login.

Versions 0 and 1. After version 0, the client sends bare tokens; after version 1, SaslAuthenticate requests. A
listener without SASL, and an authenticated connection whose session does not end, respond with
ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.login import IllegalSaslStateError, UnsupportedMechanismError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_WITH_AUTHENTICATE = 1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Choose the mechanism; an unknown one fails the login, and the response lists the others."""
    login = context.client.login
    if login is None:
        return Struct(error_code=ErrorCode.illegal_sasl_state)
    try:
        await login.handshake(request.mechanism, bare_tokens=context.version < _WITH_AUTHENTICATE)
    except IllegalSaslStateError:
        return Struct(error_code=ErrorCode.illegal_sasl_state)
    except UnsupportedMechanismError:
        return Struct(
            error_code=ErrorCode.unsupported_sasl_mechanism,
            mechanisms=[str(each) for each in login.mechanisms],
        )
    return Struct(mechanisms=[str(each) for each in login.mechanisms])


API = Api(name="sasl_handshake", min_version=0, max_version=1, handle=handle, max_items=16)
