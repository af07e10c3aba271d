"""Protection of listeners against web pages that a browser shows.

A page can send requests to loopback, and read the responses once its own host name resolves to 127.0.0.1
(DNS rebinding). The browser then still names the page's host in `Host`, and its origin in `Origin`. Both must
name this machine. `Sec-Fetch-Site` covers requests that have no `Origin`, such as those for images.

Outside loopback, a browser adds passwords and certificates to the requests of any page. The page cannot read
the responses, but a request may change something. So the origin of such a request must be the agent's host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from agent.http.errors import error_body
from core.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class BrowserCheck:
    """ASGI middleware that rejects requests of foreign pages.

    Reads are rejected on listeners whose scope says `is_local` only.
    `allowed_hosts` are names besides those of loopback, such as that of a reverse proxy.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str] = ()) -> None:
        self._app = app
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it with 403."""
        rejection = self._rejection(scope) if scope["type"] == "http" else None
        await (self._app if rejection is None else rejection)(scope, receive, send)

    def _rejection(self, scope: Scope) -> Response | None:
        headers = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if scope.get("state", {}).get("is_local"):
            rule = "this listener serves its own machine only"
            remedy = "use http://127.0.0.1 or http://localhost, or add the host to http_allowed_hosts"
            problem = self._foreign_host(hosts) or self._foreign_page(headers, hosts)
        elif scope["method"] in _READS:
            return None
        else:
            rule = "a page of another host may change nothing"
            remedy = "send the request from a page of this host, or add the page's host to http_allowed_hosts"
            problem = self._foreign_page(headers, hosts)
        if problem is None:
            return None
        body = error_body("foreign_host", f"{rule}, and {problem}", remedy)
        return Response(body, 403, media_type="application/json")

    def _foreign_host(self, hosts: list[str]) -> str | None:
        for host in hosts:
            if not self._is_own(host):
                return f"the request is for the host {host!r}"
        return None

    def _foreign_page(self, headers: list[tuple[bytes, bytes]], hosts: list[str]) -> str | None:
        for name, value in headers:
            text = value.decode("latin-1")
            origin = text.partition("://")[2]
            if name == b"origin" and origin not in hosts and _name_of(origin) not in self._allowed_hosts:
                return f"the request comes from a page of {text!r}"
            if name == b"sec-fetch-site" and text not in {"same-origin", "none"}:
                return f"the request comes from a page of another site ({text})"
        return None

    def _is_own(self, host: str) -> bool:
        name = _name_of(host)
        return is_loopback(name) or name in self._allowed_hosts


def _name_of(host: str) -> str:
    """Return a host without its port."""
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return name.lower()
