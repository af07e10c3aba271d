"""OAUTHBEARER (RFC 7628, KIP-255): the client sends a token.

As in Kafka, an invalid token is reported as JSON in a successful response, the client acknowledges it, and
the login fails then. Extensions of the client are ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.security.errors import AuthenticationFailedError
from agent.security.sasl.exchange import fail

if TYPE_CHECKING:
    from agent.security.sasl.exchange import Identity, VerifyToken

_OAUTHBEARER: Final = "OAUTHBEARER"
MAX_MESSAGE_BYTES: Final = 128 * 1024
_MESSAGE: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[^\0=,]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_BEARER: Final = re.compile(r"bearer +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)
_INVALID: Final = b'{"status":"invalid_token"}'


class OAuthBearerExchange:
    """One login with a token."""

    def __init__(self, verify: VerifyToken) -> None:
        self.identity: Identity | None = None
        self._verify = verify
        self._failure: AuthenticationFailedError | None = None
        self._is_over = False

    async def respond(self, message: bytes) -> bytes:
        """Verify the token, or fail after the client has acknowledged the report of an invalid one."""
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            fail(_OAUTHBEARER, "out_of_order")
        self._is_over = True
        found = _MESSAGE.fullmatch(_text(message))
        if found is None:
            fail(_OAUTHBEARER, "malformed")
        pairs = [each.split("=", 1) for each in found["pairs"].split("\x01") if each]
        tokens = [_BEARER.fullmatch(value) for name, value in pairs if name == "auth"]
        if len(tokens) != 1 or tokens[0] is None:
            fail(_OAUTHBEARER, "malformed")
        return await self._check(tokens[0]["token"], found["authzid"])

    async def _check(self, token: str, authorized_as: str | None) -> bytes:
        try:
            identity = await self._verify(token)
        except AuthenticationFailedError as failure:
            self._failure = AuthenticationFailedError(_INVALID.decode(), reason=failure.reason)
            return _INVALID
        if authorized_as is not None:
            authorized_as = authorized_as.replace("=2C", ",").replace("=3D", "=")
            if authorized_as != identity.name:
                fail(_OAUTHBEARER, "unsupported_extension")
        self.identity = identity
        return b""


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE_BYTES:
        fail(_OAUTHBEARER, "too_long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        fail(_OAUTHBEARER, "malformed")
