"""The login of one connection: Kafka's state machine (`SaslServerAuthenticator`), and its session (KIP-368).

::

    VERSIONS ──ApiVersions──▶ HANDSHAKE ──SaslHandshake──▶ TOKEN ──SaslAuthenticate…──▶ AUTHENTICATED
        └──────────────SaslHandshake──────────────────────▶ │ ▲                              │
                                                            ▼ └── SaslHandshake, if the ─────┘
                                                          FAILED        session ends

A client of SaslHandshake version 0 sends bare tokens instead of SaslAuthenticate requests. Every other
request before AUTHENTICATED fails the login. A session ends `connections_max_reauth_ms` after its login, or
when the client's token expires. A client may authenticate again before that, at most once a second, with the
same mechanism and as the same user. A request after the end closes the connection.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.listeners import SaslMechanism
from agent.security.errors import AuthenticationFailedError

if TYPE_CHECKING:
    from agent.security.authentication import Authentication
    from agent.security.sasl.exchange import Identity, SaslExchange

API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
_MIN_REAUTHENTICATION_SECONDS: Final = 1.0
_MAX_LIFETIME_MS: Final = 2**63 - 1  # what a response can say
_UNKNOWN: Final = "unknown"


class LoginState(Enum):
    """The next message that a login expects."""

    VERSIONS = auto()
    HANDSHAKE = auto()
    TOKEN = auto()
    AUTHENTICATED = auto()
    FAILED = auto()


_EXPECTED: Final = {
    LoginState.VERSIONS: frozenset({API_VERSIONS, SASL_HANDSHAKE}),
    LoginState.HANDSHAKE: frozenset({SASL_HANDSHAKE}),
    LoginState.TOKEN: frozenset({SASL_AUTHENTICATE}),
    LoginState.FAILED: frozenset[int](),
}


class LoginStep(NamedTuple):
    """The response to a token. The session's lifetime is 0 while the login goes on, or without an end."""

    message: bytes
    session_lifetime_ms: int = 0


class IllegalSaslStateError(AuthenticationFailedError):
    """The client sent a SASL request that its state does not allow."""


class UnsupportedMechanismError(AuthenticationFailedError):
    """The listener does not have the mechanism."""


class SaslLogin:
    """The login of one connection. Belongs to the event loop.

    `admits` says whether a request may be dispatched. The handlers of the SASL requests call `handshake` and
    `authenticate`. `user` is the name that the client has proven, None before that and after a failure. After
    an AuthenticationFailedError the connection sends the response and closes. `host` is the address of the
    client, for the log.
    """

    def __init__(
        self, authentication: Authentication, mechanisms: tuple[SaslMechanism, ...], listener: str
    ) -> None:
        self.host = ""
        self.user: str | None = None
        self.state = LoginState.VERSIONS
        self.mechanisms = mechanisms
        self.expects_bare_tokens = False
        self._authentication = authentication
        self._clock = authentication.clock
        self._listener = listener
        self._exchange: SaslExchange | None = None
        self._mechanism: SaslMechanism | None = None
        self._reauthenticates: str | None = None
        self._began_again: float | None = None
        self._ends: float | None = None

    @property
    def is_authenticated(self) -> bool:
        """Return True if the client may send all requests. It may be authenticating again."""
        return self.state is LoginState.AUTHENTICATED

    @property
    def is_failed(self) -> bool:
        """Return True if the connection must close after its last response."""
        return self.state is LoginState.FAILED

    @property
    def is_expired(self) -> bool:
        """Return True if the session has ended."""
        return self._ends is not None and self._clock.monotonic() > self._ends

    @property
    def is_current(self) -> bool:
        """Return True if the client is authenticated and its session has not ended."""
        return self.state is LoginState.AUTHENTICATED and not self.is_expired

    def admits(self, api_key: int) -> bool:
        """Return True if a request of this API may be handled now; a handshake may begin a new login."""
        if self.state is not LoginState.AUTHENTICATED:
            return api_key in _EXPECTED[self.state]
        if api_key == SASL_HANDSHAKE and self._may_authenticate_again():
            self._began_again = self._clock.monotonic()
            self._reauthenticates = self.user
            self.state = LoginState.HANDSHAKE
            return True
        return not self.is_expired

    def _may_authenticate_again(self) -> bool:
        if self._ends is None:
            return False
        began, now = self._began_again, self._clock.monotonic()
        return began is None or now - began >= _MIN_REAUTHENTICATION_SECONDS

    def sent_versions(self) -> None:
        """Note a successful ApiVersions request."""
        if self.state is LoginState.VERSIONS:
            self.state = LoginState.HANDSHAKE

    async def handshake(self, mechanism: str, *, bare_tokens: bool) -> None:
        """Choose the mechanism.

        IllegalSaslStateError: the session goes on. UnsupportedMechanismError: the login has failed.
        """
        if self.state not in {LoginState.VERSIONS, LoginState.HANDSHAKE}:
            raise IllegalSaslStateError("this connection is authenticated", reason="illegal_state")
        if mechanism not in self.mechanisms:
            await self.fail("unsupported_mechanism", _UNKNOWN)
            raise UnsupportedMechanismError(
                f"Unsupported SASL mechanism {mechanism[:40]}", reason="unsupported_mechanism"
            )
        chosen = SaslMechanism(mechanism)
        is_other = self._reauthenticates is not None and chosen is not self._mechanism
        # As in Kafka, another mechanism fails at the first token.
        self._exchange = None if is_other else self._authentication.exchange(chosen, self.host)
        if not is_other:
            self._mechanism = chosen
        self.expects_bare_tokens = bare_tokens
        self.state = LoginState.TOKEN

    async def authenticate(self, message: bytes) -> LoginStep:
        """Process a token of the client.

        IllegalSaslStateError: the session goes on. AuthenticationFailedError: the login has failed.
        LoginUnavailableError: close the connection, the client may try again.
        """
        if self.state is not LoginState.TOKEN:
            raise IllegalSaslStateError(
                "SaslAuthenticate request received after successful authentication", reason="illegal_state"
            )
        assert self._mechanism is not None
        try:
            exchange = self._same_exchange(self._mechanism)
            response = await exchange.respond(message)
            identity = exchange.identity
            return LoginStep(response) if identity is None else self._complete(response, identity)
        except AuthenticationFailedError as error:
            await self.fail(error.reason, self._mechanism)
            raise

    def _same_exchange(self, mechanism: SaslMechanism) -> SaslExchange:
        if self._exchange is None:
            raise AuthenticationFailedError(
                f"another SASL mechanism cannot re-authenticate {mechanism}", reason="changed_mechanism"
            )
        return self._exchange

    def _complete(self, response: bytes, identity: Identity) -> LoginStep:
        if self._reauthenticates not in {None, identity.name}:
            raise AuthenticationFailedError(
                "Cannot change principals during re-authentication", reason="changed_principal"
            )
        assert self._mechanism is not None
        lifetime_ms = self._lifetime_ms(identity)
        self._ends = None if lifetime_ms is None else self._clock.monotonic() + lifetime_ms / 1000
        self.user = identity.name
        self._exchange = None
        self.expects_bare_tokens = False
        self.state = LoginState.AUTHENTICATED
        self._authentication.succeeded(self._mechanism)
        return LoginStep(response, lifetime_ms or 0)

    def _lifetime_ms(self, identity: Identity) -> int | None:
        """Return how long the session lasts, None without an end."""
        ends = [self._authentication.settings.connections_max_reauth_ms or None]
        if identity.expires_ms is not None:
            left_ms = identity.expires_ms - self._clock.now_ms()
            ends.append(min(max(0, left_ms), _MAX_LIFETIME_MS))
        return min((each for each in ends if each is not None), default=None)

    async def fail(self, reason: str, mechanism: str | None = None) -> None:
        """Fail the login; return after the delay of failed logins."""
        self.state = LoginState.FAILED
        self._exchange = None
        self.user = None
        await self._authentication.failed(
            mechanism or self._mechanism or _UNKNOWN,
            reason,
            host=self.host,
            listener=self._listener,
        )
