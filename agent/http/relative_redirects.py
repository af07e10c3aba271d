"""Redirects without a host: the router would repeat the one that a client names in `Host`.

Behind a cache or a proxy, that may be the host of an attacker, or the wrong scheme and port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RelativeRedirects:
    """ASGI middleware that reduces each `Location` to its path and query."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_relative(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, _path_of(value) if name == b"location" else value)
                    for name, value in message["headers"]
                ]
            await send(message)

        await self._app(scope, receive, send_relative)


def _path_of(location: bytes) -> bytes:
    parts = urlsplit(location.decode("latin-1"))
    path = "/" + parts.path.lstrip("/")  # `//NAME` would be a host
    return urlunsplit(("", "", path, parts.query, "")).encode("latin-1")
