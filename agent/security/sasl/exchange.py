"""The server's side of one SASL exchange, and what it proves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from agent.security.errors import AuthenticationFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from catalog.security.users import UserLookup

MAX_PASSWORD_MESSAGE_BYTES = 16 * 1024
"""Bound on a message of PLAIN and SCRAM; names and passwords are far shorter."""


class Identity(NamedTuple):
    """The name that a client has proven, and when its credentials expire (milliseconds, or never)."""

    name: str
    expires_ms: int | None = None


class SaslExchange(Protocol):
    """One exchange of one mechanism. `identity` is set once the client has proven who it is."""

    identity: Identity | None

    async def respond(self, message: bytes) -> bytes:
        """Process a message of the client and return the server's.

        AuthenticationFailedError: the exchange has failed, and must not be continued. LoginUnavailableError:
        the credentials cannot be verified now.
        """
        ...


if TYPE_CHECKING:
    LookUp = Callable[[str], Awaitable[UserLookup]]
    VerifyPassword = Callable[[str, str], Awaitable[Identity]]
    VerifyToken = Callable[[str], Awaitable[Identity]]


def fail(mechanism: str, reason: str) -> NoReturn:
    """Raise the same error for every mistake, so that a client cannot learn which users exist."""
    raise AuthenticationFailedError(
        f"Authentication failed due to invalid credentials with SASL mechanism {mechanism}", reason=reason
    )


def decode(message: bytes, mechanism: str) -> str:
    """Return the text of a bounded message."""
    if len(message) > MAX_PASSWORD_MESSAGE_BYTES:
        fail(mechanism, "too_long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        fail(mechanism, "malformed")
