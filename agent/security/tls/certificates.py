"""The certificate of a listener: PEM files, which are read again when they change.

A broken new file keeps the old certificate. Connections that are open keep theirs in any case.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

import structlog
from typing_extensions import override

from agent.listeners import ClientAuth, TlsVersion
from core.clock import SystemClock
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.listeners import TlsSettings
    from agent.runtime.metrics import AgentMetrics
    from core.clock import Clock

_log = structlog.get_logger(__name__)
_VERSIONS: Final = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}
_VERIFICATION: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
_CLOCK: Clock = SystemClock()  # OpenSSL compares certificates with the time of the system, too


class _ServerSide(ssl.SSLObject):
    """The agent's side of a connection whose client has a certificate that has not expired.

    OpenSSL resumes a session of TLS 1.2 for hours and does not look at the certificate. Python cannot turn
    its cache off.
    """

    @override
    def do_handshake(self) -> None:
        super().do_handshake()
        if self.session_reused and self._has_expired():
            error = ssl.SSLCertVerificationError("certificate verify failed: certificate has expired")
            error.reason, error.verify_message = "CERTIFICATE_VERIFY_FAILED", "certificate has expired"
            raise error

    def _has_expired(self) -> bool:
        certificate = self.getpeercert()
        if not certificate:
            return False  # the client has presented none
        end = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        return _CLOCK.now_ms() >= end * 1000


class Certificate:
    """The files of one listener, as a context for new connections."""

    def __init__(self, listener: str, settings: TlsSettings, metrics: AgentMetrics) -> None:
        self._listener = listener
        self._settings = settings
        self._metrics = metrics
        self._seen = self._stamps()
        self._failure: tuple[object, str] | None = None
        self.context = load_context(listener, settings)

    def refresh(self) -> None:
        """Read the files again if they have changed since they were loaded. Blocks.

        A failure is logged once, and each later call tries again until one succeeds.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return
        try:
            self.context = load_context(self._listener, self._settings)
        except (InvalidInputError, OSError, ValueError) as error:
            failure = stamps, str(error)
            if failure != self._failure:
                self._failure = failure
                self._metrics.tls_reloads.labels("failed").inc()
                _log.error("a changed certificate is not used", listener=self._listener, reason=failure[1])
            return
        self._seen, self._failure = stamps, None
        self._metrics.tls_reloads.labels("loaded").inc()
        _log.info("a changed certificate is used", listener=self._listener)

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        settings = self._settings
        files = (settings.certificate, settings.key, settings.key_password_file, settings.client_ca)
        return tuple(_stamp(file) for file in files if file is not None)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


async def refresh_regularly(certificates: Sequence[Certificate], seconds: float) -> None:
    """Read changed files again, for ever."""
    while True:
        await asyncio.sleep(seconds)
        for each in certificates:
            await asyncio.to_thread(each.refresh)


def load_context(listener: str, settings: TlsSettings) -> ssl.SSLContext:
    """Return a context for the server side. Raises InvalidInputError, which names the file that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[each] for each in settings.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = _VERIFICATION[settings.client_auth]
    if settings.client_auth is not ClientAuth.NONE:
        # A resumed session would not prove the certificate again, which may have expired.
        context.sslobject_class = _ServerSide
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    where = f"listener {listener}"
    password = _password(where, settings)
    _read(where, "ssl_certificate_location", settings.certificate)
    if settings.key is not None:
        _read(where, "ssl_key_location", settings.key)
    try:
        context.load_cert_chain(settings.certificate, settings.key, lambda: password or _no_password(where))
    except ssl.SSLError as error:
        files = f"{settings.certificate}{f' and {settings.key}' if settings.key else ''}"
        raise InvalidInputError(
            f"{where}: certificate and private key in {files} cannot be used: {_reason(error)}",
            remedy="give PEM files of a certificate chain and of its private key, and its password in"
            " ssl_key_password_file",
        ) from None
    if settings.client_ca is not None:
        _read(where, "ssl_ca_location", settings.client_ca)
        try:
            context.load_verify_locations(settings.client_ca)
        except ssl.SSLError as error:
            raise InvalidInputError(
                f"{where}: the authorities in {settings.client_ca} cannot be used: {_reason(error)}",
                remedy="give a PEM file of certificates in ssl_ca_location",
            ) from None
    return context


def _password(where: str, settings: TlsSettings) -> str | None:
    if settings.key_password_file is None:
        return None
    lines = _read(where, "ssl_key_password_file", settings.key_password_file).splitlines()
    if not lines or not lines[0]:
        raise InvalidInputError(
            f"{where}: {settings.key_password_file} has no password in its first line",
            remedy="write it there, or remove ssl_key_password_file",
        )
    try:
        return lines[0].decode()
    except UnicodeDecodeError:
        raise InvalidInputError(
            f"{where}: the password in {settings.key_password_file} is not UTF-8",
            remedy="encode the file in UTF-8",
        ) from None


def _no_password(where: str) -> str:
    """Raise an error: without it, OpenSSL would ask for the password on the terminal."""
    raise InvalidInputError(f"{where}: the private key is encrypted", remedy="set ssl_key_password_file")


def _read(where: str, setting: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"{where}: {file} of {setting} cannot be read: {error.strerror}",
            remedy="name a file that the agent may read",
        ) from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "it is not PEM").lower().replace("_", " ")
