"""Listening sockets: bind first, listen once the agent is ready to serve."""

from __future__ import annotations

import errno
import socket

from core.addresses import join_address
from core.errors import InvalidInputError

_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket that does not `listen` yet; port 0 takes a free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise _cannot_listen(f"{host}:{port}", error) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect. Until this call, the system refuses their connections."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:  # another process bound the same address and was the first to listen
        raise _cannot_listen(address_of(listener), error) from error


def _cannot_listen(address: str, error: OSError) -> InvalidInputError:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        remedy = "choose an address of this machine; 0.0.0.0 and [::] are all of them"
    elif error.errno == errno.EACCES:
        remedy = "choose a port from 1024 on, or let this user bind lower ports"
    else:
        remedy = (
            "stop the program that listens there, such as another agent, or choose another host or port; "
            "port 0 takes a free port"
        )
    return InvalidInputError(f"cannot listen on {address}: {error.strerror or error}", remedy=remedy)


def address_of(listener: socket.socket) -> str:
    """Return the socket's address as HOST:PORT, with brackets around an IPv6 host."""
    return join_address(*listener.getsockname()[:2])
