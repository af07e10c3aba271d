"""SaslAuthenticate (KIP-152): carries the tokens of a SASL mechanism.

Versions 0 to 2. Version 1 added the lifetime of the session (KIP-368). A failed login is
SASL_AUTHENTICATION_FAILED after a delay, and the connection closes. If the agent cannot verify credentials,
the connection closes without a response, so that the client tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import MalformedMessageError, Struct
from agent.kafka.errors import ErrorCode
from agent.security.errors import AuthenticationFailedError, LoginUnavailableError
from agent.security.login import IllegalSaslStateError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


class InterruptedLoginError(MalformedMessageError):
    """The login can neither succeed nor fail now. The client reconnects after the close."""


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Process one token, and return the mechanism's response."""
    login = context.client.login
    if login is None:
        return Struct(
            error_code=ErrorCode.illegal_sasl_state, error_message="this listener has no SASL", auth_bytes=b""
        )
    try:
        step = await login.authenticate(bytes(request.auth_bytes))
    except IllegalSaslStateError as error:
        return Struct(error_code=ErrorCode.illegal_sasl_state, error_message=error.message, auth_bytes=b"")
    except AuthenticationFailedError as error:
        return Struct(
            error_code=ErrorCode.sasl_authentication_failed, error_message=error.message, auth_bytes=b""
        )
    except LoginUnavailableError as error:
        raise InterruptedLoginError(error.message) from None
    return Struct(auth_bytes=step.message, session_lifetime=step.session_lifetime_ms)


API = Api(name="sasl_authenticate", min_version=0, max_version=2, handle=handle, max_items=16)
