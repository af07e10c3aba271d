"""The rules for listeners: TLS and authentication outside loopback, and authorization of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from agent.listeners import KafkaListener
from core.addresses import is_loopback, join_address
from core.errors import InvalidInputError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from agent.listeners import HttpListener

_log = structlog.get_logger(__name__)


class InsecureListenerError(InvalidInputError):
    """A listener outside loopback lacks TLS or authentication."""


def check_exposure(
    listener: KafkaListener | HttpListener, bound: socket.socket, *, allow_insecure: bool
) -> None:
    """Raise InsecureListenerError if other machines could read or write without protection.

    With `allow_insecure`, log a warning instead.
    """
    host, port = bound.getsockname()[:2]
    if is_loopback(host) or (listener.tls is not None and listener.authenticates):
        return
    lacks = " and ".join(
        lacked
        for lacked, is_lacking in (
            ("has no TLS", listener.tls is None),
            ("authenticates no clients", not listener.authenticates),
        )
        if is_lacking
    )
    where = f"listener {listener.name} on {join_address(host, port)}"
    message = f"other machines can connect to {where}, and it {lacks}"
    if allow_insecure:
        _log.warning("an insecure listener is open to other machines", listener=listener.name, reason=message)
        return
    raise InsecureListenerError(message, remedy=_remedy(listener))


def check_authorization(listeners: Iterable[KafkaListener | HttpListener], *, authorizes: bool) -> None:
    """Log a warning if clients authenticate, but each of them may do everything."""
    names = [each.name for each in listeners if each.authenticates]
    if names and not authorizes:
        _log.warning(
            "authenticated clients may do everything, such as change the passwords of others",
            listeners=names,
            remedy="set super_users and authorizer_enable",
        )


def _remedy(listener: KafkaListener | HttpListener) -> str:
    secured = (
        f"set listeners and ssl_certificate_location, and in listener_security_protocol_map {listener.name}:"
        "SASL_SSL, or SSL with ssl_client_auth=required"
        if isinstance(listener, KafkaListener)
        else f"set http_listeners, ssl_certificate_location, {listener.name}:SSL in"
        " listener_security_protocol_map, and http_authentication or ssl_client_auth=required"
    )
    return f"{secured}; or bind it to 127.0.0.1; or accept the risk with allow_insecure_listeners=true"
