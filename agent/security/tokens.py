"""Verification of tokens: signed JWTs (RFC 7519, RFC 8725), for OAUTHBEARER and for HTTP (KIP-768).

joserfc (BSD-3-Clause) verifies the signature. Only asymmetric algorithms are allowed, and each key only for
its own: neither `none` nor a signature with a public key as a shared secret is accepted. Keys come from the
configured key set alone; those in a token's header are ignored. Issuer, audience, subject and expiration are
required.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, JoseError

from agent.security.errors import AuthenticationFailedError, LoginUnavailableError
from agent.security.sasl.exchange import Identity
from catalog.security.scram import check_user_name
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joserfc.jwk import Key

    from agent.authentication_settings import AuthenticationSettings
    from agent.security.login_pool import LoginPool
    from agent.security.signing_keys import SigningKeys
    from core.clock import Clock

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
# The errors that joserfc raises for an invalid token.
_WRONG: Final = (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
_MAX_TOKEN_BYTES: Final = 64 * 1024
_MAX_TRIED_KEYS: Final = 10
_MAX_REMEMBERED: Final = 10_000


class _Registry(jws.JWSRegistry):
    """Rules for the header of a token: it may have unknown fields that are not critical."""

    max_header_length = 8 * 1024

    def __init__(self) -> None:
        super().__init__(algorithms=ALGORITHMS, strict_check_header=False)


class TokenVerifier:
    """Verifies tokens with the current keys. Belongs to the event loop.

    A verified token is remembered by its digest until it expires, so that an HTTP client can send it with
    each request. It is verified again when the keys have changed.
    """

    def __init__(
        self, settings: AuthenticationSettings, keys: SigningKeys, pool: LoginPool, clock: Clock
    ) -> None:
        self._keys = keys
        self._pool = pool
        self._clock = clock
        self._issuer = (settings.sasl_oauthbearer_expected_issuer or "").strip()
        audiences = (settings.sasl_oauthbearer_expected_audience or "").split(",")
        self._audiences = [each.strip() for each in audiences if each.strip()]
        self._name_claim = settings.sasl_oauthbearer_sub_claim_name
        self._leeway = settings.sasl_oauthbearer_clock_skew_seconds
        self._registry = _Registry()
        self._remembered: OrderedDict[bytes, tuple[Key, Identity]] = OrderedDict()

    async def verify(self, token: str, *, host: str) -> Identity:
        """Return who the token is for; raise AuthenticationFailedError for an invalid token."""
        if len(token) > _MAX_TOKEN_BYTES:
            _reject("too_long")
        header = _header(token, self._registry)
        key_id = header.get("kid")
        candidates = await self._keys.candidates(key_id if isinstance(key_id, str) else None)
        if not self._keys.is_known:
            raise LoginUnavailableError("the keys that verify tokens cannot be read")
        digest = hashlib.sha256(token.encode()).digest()
        remembered = self._remembered.get(digest)
        if remembered is not None and any(remembered[0] is key for key in candidates):
            self._check_time(remembered[1])
            return remembered[1]
        async with self._pool.turn(host) as pool:
            key, identity = await pool.run(partial(self._verify, token, str(header["alg"]), candidates))
        self._remembered[digest] = (key, identity)
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return identity

    def _check_time(self, identity: Identity) -> None:
        assert identity.expires_ms is not None
        if identity.expires_ms <= self._clock.now_ms() - self._leeway * 1000:
            _reject("expired_token")

    def _verify(self, token: str, algorithm: str, candidates: Sequence[Key]) -> tuple[Key, Identity]:
        """Verify signature and claims; blocks for as long as a signature takes."""
        for key in candidates[:_MAX_TRIED_KEYS]:
            # The signature of another key, or a key for another algorithm.
            with suppress(*_WRONG):
                key.check_alg(algorithm)
                claims = jwt.decode(token, key, registry=self._registry).claims
                return key, self._identity(claims)
        return _reject("invalid_signature" if candidates else "unknown_key")

    def _identity(self, claims: dict[str, object]) -> Identity:
        rules = jwt.JWTClaimsRegistry(
            now=self._clock.now_ms() // 1000,
            leeway=self._leeway,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "values": self._audiences},
            exp={"essential": True},
            iat={"essential": True},
        )
        try:
            rules.validate(claims)
            name = claims.get(self._name_claim)
            check_user_name(name if isinstance(name, str) else "")
            expires_ms = int(float(str(claims["exp"])) * 1000)
        except ExpiredTokenError:
            _reject("expired_token")
        except (JoseError, InvalidInputError, TypeError, ValueError, OverflowError):
            _reject("invalid_claims")
        return Identity(str(name), expires_ms)


def _header(token: str, registry: jws.JWSRegistry) -> dict[str, object]:
    """Return the header of a token, which is not verified yet; it has an allowed algorithm."""
    try:
        header = jws.extract_compact(token.encode(), registry=registry).headers()
        registry.check_header(header)
        registry.get_alg(header["alg"])
    except _WRONG:
        _reject("malformed_token")
    return header


def _reject(reason: str) -> NoReturn:
    raise AuthenticationFailedError("Authentication failed: invalid token", reason=reason)
