"""Issues tokens and serves its keys, for tests."""

from __future__ import annotations

import threading
from base64 import urlsafe_b64encode
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from typing import TYPE_CHECKING, Any, cast

import orjson
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from typing_extensions import override

from core.clock import SystemClock

if TYPE_CHECKING:
    from joserfc.jwk import Key

ISSUER, AUDIENCE = "https://issuer.test", "siltstone"
_RSA = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})  # takes a second


class Issuer:
    """An issuer with an RSA and an EC key."""

    def __init__(self) -> None:
        self.rsa: Key = _RSA
        self.ec: Key = ECKey.generate_key("P-256", {"kid": "ec"})
        self.published: list[Key] = [self.rsa, self.ec]

    def key_set(self) -> bytes:
        return orjson.dumps({"keys": [each.as_dict(private=False) for each in self.published]})

    def claims(self, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # any claim
        now = SystemClock().now_ms() // 1000
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 600, **changes}
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, key: Key | None = None, algorithm: str = "", **changes: Any) -> str:  # noqa: ANN401  # as above
        """Return a token; a claim of None is left out."""
        key = key or self.ec
        algorithm = algorithm or ("RS256" if isinstance(key, RSAKey) else "ES256")
        header = {"alg": algorithm, "kid": key.kid}
        return jwt.encode(header, self.claims(**changes), key, algorithms=[algorithm])

    def unsigned(self, **changes: Any) -> str:  # noqa: ANN401  # as above
        return f"{segment({'alg': 'none', 'typ': 'JWT'})}.{segment(self.claims(**changes))}."


def segment(value: object) -> str:
    return urlsafe_b64encode(orjson.dumps(value)).rstrip(b"=").decode()


class KeyServer:
    """Serves the keys of an issuer over HTTP on loopback, and counts requests."""

    def __init__(self, issuer: Issuer) -> None:
        self.requests = 0
        self.status = 200
        self.drips = False  # a header every few milliseconds, and never the last one
        self.drops = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                body = issuer.key_set()
                self.send_response(outer.status)
                self.flush_headers()
                with suppress(OSError):
                    while outer.drips:
                        self.wfile.write(b"X-Slow: 1\r\n")
                        outer.drops += 1
                        sleep(0.005)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            @override
            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = cast("tuple[str, int]", self._server.server_address)
        return f"http://{host}:{port}/jwks"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
