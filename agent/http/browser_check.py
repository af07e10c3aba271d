"""Protection of a listener on loopback against web pages that a browser on the same machine shows.

A page can send requests to loopback, and read the responses once its own host name resolves to 127.0.0.1 (DNS
rebinding). The browser then still names the page's host in `Host`, and its origin in `Origin`. Both must name
this machine. `Sec-Fetch-Site` covers requests that have no `Origin`, such as those for images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from agent.http.errors import error_body
from core.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send


class BrowserCheck:
    """ASGI middleware that rejects requests of foreign pages, on listeners whose scope says `is_local`.

    `allowed_hosts` are names besides those of loopback, such as that of a reverse proxy.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str] = ()) -> None:
        self._app = app
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it with 403."""
        if scope["type"] == "http" and scope.get("state", {}).get("is_local"):
            problem = self._problem(scope["headers"])
            if problem is not None:
                body = error_body(
                    "foreign_host",
                    f"this listener serves its own machine only, and {problem}",
                    "use http://127.0.0.1 or http://localhost, or add the host to http_allowed_hosts",
                )
                await Response(body, 403, media_type="application/json")(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, headers: list[tuple[bytes, bytes]]) -> str | None:
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        for host in hosts:
            if not self._is_own(host):
                return f"the request is for the host {host!r}"
        for name, value in headers:
            text = value.decode("latin-1")
            if name == b"origin" and text.partition("://")[2] not in hosts:
                return f"the request comes from a page of {text!r}"
            if name == b"sec-fetch-site" and text not in {"same-origin", "none"}:
                return f"the request comes from a page of another site ({text})"
        return None

    def _is_own(self, host: str) -> bool:
        name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
        return is_loopback(name) or name.lower() in self._allowed_hosts
