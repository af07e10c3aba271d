"""The keys that verify tokens: a JWKS (RFC 7517) from a URL or a file, read again as keys rotate.

Keys are read at the first token, then at each interval, when the file changes, and when a token names an
unknown key; never more often than `retry_ms`. If that fails, the last keys stay valid, as in Kafka. Only
public keys for signatures count: a symmetric key would let everybody sign who can verify.
"""

from __future__ import annotations

import asyncio
import ipaddress
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import httpx
import orjson
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from typing_extensions import override

from core.errors import InvalidInputError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joserfc.jwk import Key
    from prometheus_client import Counter

    from agent.authentication_settings import AuthenticationSettings
    from agent.runtime.work_pool import WorkPool
    from core.clock import Clock

_log = structlog.get_logger(__name__)
_MAX_BYTES: Final = 1024 * 1024
_MAX_KEYS: Final = 200
_MIN_RSA_BITS: Final = 2048
_NOT_COMPRESSED: Final = {"Accept-Encoding": "identity"}
_KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})  # not those of shared secrets


class KeysUnavailableError(RetryableError):
    """The keys could not be read."""


class SigningKeys:
    """The current keys. Belongs to the event loop; files are read and keys parsed in a thread of `pool`."""

    def __init__(
        self, url: str, settings: AuthenticationSettings, pool: WorkPool, clock: Clock, refreshes: Counter
    ) -> None:
        self._source = _Source.of(url, settings.jwks_timeout_ms / 1000)
        self._refresh_seconds = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._retry_seconds = settings.jwks_retry_ms / 1000
        self._pool = pool
        self._clock = clock
        self._refreshes = refreshes
        self._keys: Sequence[Key] = ()
        self._succeeded: float | None = None
        self._attempted: float | None = None
        self._version: object = None
        self._reading: asyncio.Task[None] | None = None

    async def candidates(self, key_id: str | None) -> Sequence[Key]:
        """Return the keys that may have signed a token with this key id; with None, all of them."""
        now = self._clock.monotonic()
        is_old = self._succeeded is None or now - self._succeeded >= self._refresh_seconds
        if is_old or self._source.version() != self._version:
            await self._read_if_allowed()
        found = self._matching(key_id)
        if not found:
            await self._read_if_allowed()
            found = self._matching(key_id)
        return found

    @property
    def is_known(self) -> bool:
        """Return True once keys have been read."""
        return self._succeeded is not None

    def _matching(self, key_id: str | None) -> Sequence[Key]:
        return [each for each in self._keys if key_id is None or each.kid == key_id]

    async def _read_if_allowed(self) -> None:
        """Read the keys, once for all callers, unless the last attempt was too recent."""
        now = self._clock.monotonic()
        if self._reading is None:
            if self._attempted is not None and now - self._attempted < self._retry_seconds:
                return
            self._attempted = now
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="read signing keys")
        reading = self._reading
        await asyncio.shield(reading)

    async def _read(self) -> None:
        try:
            version = self._source.version()
            document = await self._source.read(self._pool)
            self._keys = await self._pool.run(partial(parse_keys, document))
            self._version = version
            self._succeeded = self._clock.monotonic()
            self._refreshes.labels("success").inc()
        except (RetryableError, InvalidInputError) as failure:
            self._refreshes.labels("failure").inc()
            _log.warning(
                "the keys that verify tokens cannot be read", source=self._source.shown, reason=str(failure)
            )
        finally:
            self._reading = None


class _Source(ABC):
    """Source of the keys; `version` changes with a file."""

    shown: str

    @staticmethod
    def of(url: str, timeout_seconds: float) -> _Source:
        """Return the source; raise InvalidInputError for a URL that cannot be trusted."""
        parts = urlsplit(url)
        if parts.scheme == "file" and parts.path.startswith("/") and parts.netloc in {"", "localhost"}:
            return _File(Path(unquote(parts.path)))
        host = parts.hostname if parts.username is None and parts.password is None else None
        if host and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))):
            return _Url(url, timeout_seconds)
        raise InvalidInputError(
            "setting sasl_oauthbearer_jwks_endpoint_url is not an acceptable URL",
            remedy="use https://HOST/… without a user and a password, or file:///PATH",
        )

    def version(self) -> object:
        """Return a value that changes when the keys are known to have changed."""
        return None

    @abstractmethod
    async def read(self, pool: WorkPool) -> bytes:
        """Return the JSON of the key set; calls that block run in a thread of `pool`."""


class _File(_Source):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown = str(path)

    @override
    def version(self) -> object:
        with suppress(OSError):
            found = self._path.stat()
            return found.st_mtime_ns, found.st_size, found.st_ino
        return None

    @override
    async def read(self, pool: WorkPool) -> bytes:
        return await pool.run(self._read)

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(_MAX_BYTES + 1)
        except OSError as failure:
            raise KeysUnavailableError(failure.strerror or "it cannot be read") from None


class _Url(_Source):
    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._url = url
        self._timeout = timeout_seconds
        parts = urlsplit(url)
        self._may_use_proxy = parts.scheme == "https"  # a proxy could change the keys over http
        self.shown = f"{parts.scheme}://{parts.hostname}{parts.path}"  # a query may contain a secret

    @override
    async def read(self, pool: WorkPool) -> bytes:
        context = await pool.run(httpx.create_ssl_context)  # reads files
        try:
            # httpx has a timeout for each step only, and a server may need any number of steps.
            async with (
                asyncio.timeout(self._timeout),
                httpx.AsyncClient(
                    verify=context, timeout=self._timeout, trust_env=self._may_use_proxy
                ) as client,
                client.stream("GET", self._url, headers=_NOT_COMPRESSED) as response,
            ):
                return await _bounded_body(response)
        except TimeoutError:
            raise KeysUnavailableError(f"the response takes more than {self._timeout} s") from None
        except httpx.HTTPError as failure:
            raise KeysUnavailableError(type(failure).__name__) from None


async def _bounded_body(response: httpx.Response) -> bytes:
    """Return the body as it was sent, and not much more of it than `parse_keys` accepts."""
    if response.status_code != httpx.codes.OK:
        raise KeysUnavailableError(f"the response has status {response.status_code}")
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > _MAX_BYTES:
            break
    return bytes(body)


def parse_keys(document: bytes) -> list[Key]:
    """Return the usable keys of a key set; raise InvalidInputError if it is not one, or has none."""
    if len(document) > _MAX_BYTES:
        raise InvalidInputError(f"the key set has more than {_MAX_BYTES} bytes")
    try:
        entries = orjson.loads(document)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise InvalidInputError("the document is not a JSON Web Key Set") from None
    if not isinstance(entries, list) or len(entries) > _MAX_KEYS:
        raise InvalidInputError(f"the key set is not a list of at most {_MAX_KEYS} keys")
    keys = [key for key in map(_usable_key, entries) if key is not None]
    if not keys:
        raise InvalidInputError("the key set has no public key for signatures")
    return keys


def _usable_key(entry: object) -> Key | None:
    """Return a public key for signatures; None for any other, such as a key for encryption."""
    if not isinstance(entry, dict) or entry.get("kty") not in _KEY_TYPES or entry.get("use", "sig") != "sig":
        return None
    with suppress(JoseError, ValueError, TypeError, KeyError):
        key = JWKRegistry.import_key(entry)
        if isinstance(key, RSAKey):
            return key if key.public_key.key_size >= _MIN_RSA_BITS else None
        if isinstance(key, ECKey | OKPKey):
            return key
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
