"""Authentication of HTTP requests: Basic with the users of Kafka clients, bearer tokens, and certificates.

A listener with `http_authentication` accepts requests that authenticate in one of its ways, or whose client
has presented a certificate. Probes are exempt: `/livez`, `/readyz` and `/healthz` show only whether
the agent works. Every other path is protected, also those that do not exist.

Basic sends the password with each request, so a listener offers it only over TLS or on loopback. A failed
request is counted, logged and delayed like a failed login of a Kafka client.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from agent.http.errors import error_body
from agent.listeners import HttpAuthentication
from agent.security.errors import AuthenticationFailedError, LoginUnavailableError
from agent.security.identity import ANONYMOUS, Client, Principal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from agent.listeners import HttpListener
    from agent.runtime.metrics import AgentMetrics
    from agent.security.authentication import Authentication
    from agent.security.sasl.exchange import Identity

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/healthz"})
_MAX_BASIC_BYTES: Final = 8 * 1024
_CHALLENGES: Final = {
    HttpAuthentication.BASIC: 'Basic realm="siltstone", charset="UTF-8"',
    HttpAuthentication.BEARER: 'Bearer realm="siltstone"',
}


class HttpAuthenticator:
    """The application as one listener serves it: `client` is in the state of each request, or it gets 401."""

    def __init__(
        self, app: ASGIApp, listener: HttpListener, authentication: Authentication, metrics: AgentMetrics
    ) -> None:
        self._app = app
        self._listener = listener
        self._authentication = authentication
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request whose client is known, or need not be."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        before: Client | None = state.get("client")  # with the principal of the connection's certificate
        host = scope["client"][0] if scope.get("client") else ""
        # A client for this request alone: the next one of the connection may be from somebody else.
        client = Client(host, self._listener.name, ANONYMOUS if before is None else before.principal)
        state["client"] = client
        response: Response | None = None
        if self._listener.authentication and scope["path"] not in OPEN_PATHS:
            response = await self._authenticate(scope, client)
        if response is not None:
            self._metrics.http_requests.labels(scope["method"], "none", response.status_code).inc()
        await (self._app if response is None else response)(scope, receive, send)

    async def _authenticate(self, scope: Scope, client: Client) -> Response | None:
        """Set the principal of a request; return a response if it has none."""
        listener = self._listener
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if not given:
            return None if client.principal != ANONYMOUS else _unauthorized(listener)
        try:
            identity = await self._identity(given, client.host)
        except AuthenticationFailedError as error:
            way = _way_of(given)
            await self._authentication.failed(way, error.reason, host=client.host, listener=client.listener)
            return _unauthorized(listener)
        except LoginUnavailableError:
            body = error_body("busy", "the agent cannot verify credentials now", "retry later")
            return Response(body, 503, headers={"Retry-After": "1"}, media_type="application/json")
        self._authentication.succeeded(_way_of(given))
        client.principal = Principal("User", identity.name)
        return None

    async def _identity(self, given: list[bytes], host: str) -> Identity:
        ways = self._listener.authentication if len(given) == 1 else ()
        scheme, _, credentials = given[0].partition(b" ")
        match scheme.lower():
            case b"basic" if HttpAuthentication.BASIC in ways:
                name, password = _name_and_password(credentials.strip())
                return await self._authentication.verify_password(name, password, host=host)
            case b"bearer" if HttpAuthentication.BEARER in ways:
                token = credentials.strip().decode("latin-1")
                return await self._authentication.verify_token(token, host=host)
            case _:
                raise AuthenticationFailedError("unsupported", reason="unsupported_mechanism")


def _name_and_password(credentials: bytes) -> tuple[str, str]:
    """Return the parts of RFC 7617."""
    try:
        text = b64decode(credentials[:_MAX_BASIC_BYTES], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        text = ""
    name, separator, password = text.partition(":")
    if not separator or not name or not password or "\0" in text:
        raise AuthenticationFailedError("malformed", reason="malformed")
    return name, password


def _way_of(given: list[bytes]) -> str:
    """Return the value of the metric's label, one of a few."""
    scheme = given[0].partition(b" ")[0].lower().decode("latin-1")
    return f"HTTP {scheme}" if scheme in set(HttpAuthentication) else "HTTP other"


def _unauthorized(listener: HttpListener) -> Response:
    body = error_body(
        "unauthorized",
        "this listener requires authentication",
        f"authenticate with {' or '.join(listener.authentication)}, or with a certificate of the client",
    )
    response = Response(body, 401, media_type="application/json")
    for each in listener.authentication:
        response.headers.append("WWW-Authenticate", _CHALLENGES[each])
    return response
