"""The listeners of an agent: plain values, as the settings define them.

`agent.listener_settings` makes them from what users write.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - pydantic evaluates the annotations
from typing import Final

DEFAULT_KAFKA_NAME: Final = "PLAINTEXT"
"""Name of the listener that the setting `kafka` defines, and of the only one of previous releases."""

DEFAULT_HTTP_NAME: Final = "HTTP"
"""Name of the listener that the setting `http` defines."""


class SecurityProtocol(StrEnum):
    """Kafka's security protocols."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Return True if connections are encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        """Return True if a client must authenticate by SASL before any other request."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


class ClientAuth(StrEnum):
    """Kafka's `ssl.client.auth`: the rule for certificates of clients."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class SaslMechanism(StrEnum):
    """SASL mechanisms, by their registered names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class HttpAuthentication(StrEnum):
    """Ways in which an HTTP client authenticates by a header."""

    BASIC = "basic"
    BEARER = "bearer"


class TlsVersion(StrEnum):
    """Versions of TLS, by Kafka's names."""

    TLS_1_2 = "TLSv1.2"
    TLS_1_3 = "TLSv1.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Certificate and rules of a listener with TLS. All files are PEM.

    `key` is None if the private key is in the file of the certificate. `client_ca` has the certificates of
    the authorities that may sign clients' certificates.
    """

    certificate: Path
    key: Path | None = None
    key_password_file: Path | None = None
    client_ca: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    versions: tuple[TlsVersion, ...] = tuple(TlsVersion)
    principal_mapping_rules: str = "DEFAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaListener:
    """A listener for Kafka clients. Port 0 takes a free port.

    `advertised_host` and `advertised_port` are what clients receive; None and 0 stand for the address that
    the listener is bound to. `tls` is not None if and only if the protocol has TLS. `mechanisms` is not empty
    if and only if it has SASL.
    """

    name: str = DEFAULT_KAFKA_NAME
    host: str = "127.0.0.1"
    port: int = 9092
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    advertised_host: str | None = None
    advertised_port: int = 0
    tls: TlsSettings | None = None
    mechanisms: tuple[SaslMechanism, ...] = ()

    @property
    def authenticates(self) -> bool:
        """Return True if every client of the listener is authenticated."""
        return self.protocol.has_sasl or _requires_certificate(self.tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpListener:
    """A listener for HTTP clients; `tls` is None for plain HTTP. Port 0 takes a free port.

    With `authentication`, every request must authenticate in one of these ways, or by a certificate of the
    client if `tls` requests one.
    """

    name: str = DEFAULT_HTTP_NAME
    host: str = "127.0.0.1"
    port: int = 8080
    tls: TlsSettings | None = None
    authentication: tuple[HttpAuthentication, ...] = ()

    @property
    def authenticates(self) -> bool:
        """Return True if every client of the listener is authenticated."""
        return bool(self.authentication) or _requires_certificate(self.tls)


def _requires_certificate(tls: TlsSettings | None) -> bool:
    return tls is not None and tls.client_auth is ClientAuth.REQUIRED
