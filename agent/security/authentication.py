"""Authentication of an agent's clients: the one place that knows users, tokens, mechanisms and failed logins.

Kafka's and HTTP's listeners share it, so that both have the same users. Users are looked up, and passwords
and tokens verified, in threads apart from other work. An address uses one thread of each kind at a time
(`LoginPool`): a flood of logins delays other logins from the same address only. Failed logins are counted,
logged with the peer at a bounded rate, and their responses delayed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from agent.listeners import HttpAuthentication, SaslMechanism
from agent.runtime.errors import BusyError, StoppingError
from agent.security.errors import AuthenticationFailedError, LoginUnavailableError
from agent.security.login_pool import LoginPool
from agent.security.passwords import PasswordVerifier
from agent.security.sasl.oauthbearer import OAuthBearerExchange
from agent.security.sasl.plain import PlainExchange
from agent.security.sasl.scram import ScramExchange
from agent.security.signing_keys import SigningKeys
from agent.security.tokens import TokenVerifier
from catalog.security.scram import MAX_NAME_BYTES, ScramMechanism
from core.errors import InvalidInputError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.pools import Pools
    from agent.security.sasl.exchange import Identity, SaslExchange
    from agent.settings import AgentSettings
    from catalog.security.users import UserLookup, Users
    from core.clock import Clock
    from core.ids import Ids

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class _CachedUser(NamedTuple):
    found: UserLookup
    expires: float


class Authentication:
    """Verifies who clients are. Belongs to the event loop.

    InvalidInputError: a listener accepts tokens, and no setting says what verifies them.
    """

    def __init__(
        self,
        settings: AgentSettings,
        *,
        users: Users,
        pools: Pools,
        metrics: AgentMetrics,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.settings = settings.authentication
        self.clock = clock
        self._users = users
        max_waiting = self.settings.max_waiting_logins
        self._lookups = LoginPool(pools.users, max_waiting)
        logins = LoginPool(pools.logins, max_waiting)
        self._metrics = metrics
        self._ids = ids
        self._cache: OrderedDict[str, _CachedUser] = OrderedDict()
        self._passwords = PasswordVerifier(self.look_up, logins, ids)
        self._tokens: TokenVerifier | None = None
        url = self.settings.sasl_oauthbearer_jwks_endpoint_url
        if url is not None:
            keys = SigningKeys(url, self.settings, pools.signing_keys, clock, metrics.jwks_refreshes)
            self._tokens = TokenVerifier(self.settings, keys, logins, clock)
        for kafka in settings.kafka_listeners:
            self._check_tokens(kafka.name, kafka.mechanisms)
        for http in settings.http_listeners:
            self._check_tokens(http.name, http.authentication)

    def _check_tokens(self, listener: str, mechanisms: Iterable[SaslMechanism | HttpAuthentication]) -> None:
        """Raise InvalidInputError if a listener accepts tokens that nothing can verify."""
        for each in {SaslMechanism.OAUTHBEARER, HttpAuthentication.BEARER}.intersection(mechanisms):
            if self._tokens is None:
                raise InvalidInputError(
                    f"listener {listener} has {each}, but there are no keys to verify tokens",
                    remedy=f"set sasl_oauthbearer_jwks_endpoint_url, or remove {each} from its settings",
                )

    def exchange(self, mechanism: SaslMechanism, host: str) -> SaslExchange:
        """Return a new exchange of a mechanism with a client at that address."""
        look_up = partial(self.look_up, host=host)
        match mechanism:
            case SaslMechanism.PLAIN:
                return PlainExchange(partial(self.verify_password, host=host))
            case SaslMechanism.SCRAM_SHA_256:
                return ScramExchange(ScramMechanism.SHA_256, look_up, self._ids)
            case SaslMechanism.SCRAM_SHA_512:
                return ScramExchange(ScramMechanism.SHA_512, look_up, self._ids)
            case SaslMechanism.OAUTHBEARER:
                return OAuthBearerExchange(partial(self.verify_token, host=host))

    async def look_up(self, name: str, *, host: str) -> UserLookup:
        """Return the credentials of a name, real or simulated, from a cache for a second.

        AuthenticationFailedError: the name is longer than that of any user.
        """
        if len(name) > MAX_NAME_BYTES:
            raise AuthenticationFailedError("Authentication failed: the name is too long", reason="too_long")
        cached = self._cached(name)
        return await _available(self._read(name, host)) if cached is None else cached

    def _cached(self, name: str) -> UserLookup | None:
        cached = self._cache.get(name)
        return cached.found if cached is not None and self.clock.monotonic() < cached.expires else None

    async def _read(self, name: str, host: str) -> UserLookup:
        """Return the credentials of a name from the catalog, unless an earlier caller has read them."""
        async with self._lookups.turn(host) as pool:
            if (cached := self._cached(name)) is not None:
                return cached
            found = await pool.run(partial(self._users.lookup, name))
        expires = self.clock.monotonic() + self.settings.user_cache_ms / 1000
        self._cache[name] = _CachedUser(found, expires)
        self._cache.move_to_end(name)
        if len(self._cache) > self.settings.max_cached_users:
            self._cache.popitem(last=False)
        return found

    async def verify_password(self, name: str, password: str, *, host: str) -> Identity:
        """Return who the client is; raise AuthenticationFailedError for a wrong name or password."""
        return await _available(self._passwords.verify(name, password, host=host))

    async def verify_token(self, token: str, *, host: str) -> Identity:
        """Return who the token is for; raise AuthenticationFailedError for an invalid token."""
        if self._tokens is None:
            raise AuthenticationFailedError("tokens are not accepted", reason="no_keys")
        return await _available(self._tokens.verify(token, host=host))

    def succeeded(self, mechanism: str) -> None:
        """Count a login."""
        self._metrics.authentications.labels(mechanism, "success").inc()

    async def failed(self, mechanism: str, reason: str, *, host: str, listener: str) -> None:
        """Count and log a failed login, and return after the delay of failed logins."""
        self._metrics.authentications.labels(mechanism, "failure").inc()
        _log.warning(
            "a client failed to authenticate",
            mechanism=mechanism,
            reason=reason,
            client=host,
            listener=listener,
        )
        await asyncio.sleep(self.settings.connection_failed_authentication_delay_ms / 1000)


async def _available(call: Awaitable[T]) -> T:
    """Return the result of a verification; raise LoginUnavailableError if it is not possible now."""
    try:
        return await call
    except (BusyError, StoppingError) as error:
        raise LoginUnavailableError(error.message) from None
    except LoginUnavailableError:
        raise
    except RetryableError as error:
        _log.warning("a client cannot be authenticated now", reason=str(error))
        raise LoginUnavailableError("the agent cannot verify credentials now") from None
