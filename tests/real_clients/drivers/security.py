"""How a client connects: the security protocol, its certificate, and its credentials."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Settings in no library's terms; files are PEM. An empty text stands for none."""

    protocol: str = "PLAINTEXT"
    authority: str = ""
    certificate: str = ""
    key: str = ""
    mechanism: str = ""
    username: str = ""
    password: str = ""
    token: str = ""

    def context(self) -> ssl.SSLContext | None:
        """Return the context of a connection with TLS."""
        if not self.authority:
            return None
        context = ssl.create_default_context(cafile=self.authority)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context

    def librdkafka(self) -> dict[str, str]:
        """Return the properties of librdkafka, without a token."""
        settings = {
            "security.protocol": self.protocol,
            "ssl.ca.location": self.authority,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }
        return {name: value for name, value in settings.items() if value}
