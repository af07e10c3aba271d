"""Verification of passwords that the server receives: PLAIN, and Basic authentication over HTTP.

They are verified with the SCRAM credentials of the catalog. That takes milliseconds, in a thread. A verified
password is cached as a digest under a random key of this process, with the credential that it matched. Later
requests of the same user are then cheap. A changed password affects no other user's digest.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from agent.security.errors import AuthenticationFailedError
from agent.security.sasl.exchange import Identity
from catalog.security.scram import salted_password, stored_key

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from agent.security.login_pool import LoginPool
    from catalog.security.scram import ScramCredential
    from catalog.security.users import UserLookup
    from core.ids import Ids

_MAX_REMEMBERED: Final = 10_000


class _LookUp(Protocol):
    """Returns the credentials of a name for a client at an address."""

    def __call__(self, name: str, *, host: str) -> Awaitable[UserLookup]: ...


class PasswordVerifier:
    """Verifies passwords with the credentials of users. Belongs to the event loop."""

    def __init__(self, look_up: _LookUp, pool: LoginPool, ids: Ids) -> None:
        self._look_up = look_up
        self._pool = pool
        self._secret = ids.random_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()

    async def verify(self, name: str, password: str, *, host: str) -> Identity:
        """Return who the client is; raise AuthenticationFailedError for a wrong name or password."""
        credential = (await self._look_up(name, host=host)).for_password()
        digest = self._digest(name, password, credential)
        if digest not in self._remembered:
            async with self._pool.turn(host) as pool:
                # An earlier caller may have verified the same password.
                if digest not in self._remembered and not await pool.run(
                    lambda: _matches(password, credential)
                ):
                    raise AuthenticationFailedError(
                        "Authentication failed: Invalid username or password", reason="invalid_credentials"
                    )
        self._remembered[digest] = None
        self._remembered.move_to_end(digest)
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return Identity(name)

    def _digest(self, name: str, password: str, credential: ScramCredential) -> bytes:
        """Return a keyed digest: without this process's secret, it says nothing about the password."""
        parts = (name.encode(), password.encode(), credential.stored_key)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._secret, message, "sha256")


def _matches(password: str, credential: ScramCredential) -> bool:
    mechanism = credential.mechanism
    salted = salted_password(mechanism, password.encode(), credential.salt, credential.iterations)
    return hmac.compare_digest(stored_key(mechanism, salted), credential.stored_key)
