"""PLAIN (RFC 4616): the client sends its name and its password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.security.sasl.exchange import decode, fail

if TYPE_CHECKING:
    from agent.security.sasl.exchange import Identity, VerifyPassword

_PLAIN: Final = "PLAIN"


class PlainExchange:
    """One login with PLAIN."""

    def __init__(self, verify: VerifyPassword) -> None:
        self.identity: Identity | None = None
        self._verify = verify
        self._is_over = False

    async def respond(self, message: bytes) -> bytes:
        """Verify the only message of the client."""
        if self._is_over:
            fail(_PLAIN, "out_of_order")
        self._is_over = True
        parts = decode(message, _PLAIN).split("\0")
        if len(parts) != 3 or not parts[1] or not parts[2]:  # authorized as, name, password
            fail(_PLAIN, "malformed")
        if parts[0] not in {"", parts[1]}:
            fail(_PLAIN, "unsupported_extension")
        self.identity = await self._verify(parts[1], parts[2])
        return b""
