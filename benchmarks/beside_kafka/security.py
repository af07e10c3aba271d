"""SASL_SSL for both servers: an authority, a certificate of the server, and a user with SCRAM-SHA-512."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from agent.listeners import KafkaListener, SaslMechanism, SecurityProtocol, TlsSettings
from tests.fixtures.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

USER: Final = "benchmark"
PASSWORD: Final = "of-the-benchmark"
ITERATIONS: Final = 4096
_HOST = "127.0.0.1"
_ADMIN_SECONDS = 60.0


class SecureListener:
    """Settings of a listener with SASL_SSL, for each server and for clients. Its files are in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._authority = Authority(directory)
        self._server = self._authority.issue("server", _HOST)
        self._keystore = directory / "server.pem"
        self._keystore.write_bytes(self._server.key.read_bytes() + self._server.certificate.read_bytes())

    @property
    def client_settings(self) -> Mapping[str, str]:
        """Return what librdkafka needs besides the address; `java_settings` translates it."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._authority.file),
            "sasl.mechanism": str(SaslMechanism.SCRAM_SHA_512),
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }

    @property
    def of_broker(self) -> Mapping[str, object]:
        """Return the settings of a Kafka broker."""
        return {
            "sasl.enabled.mechanisms": SaslMechanism.SCRAM_SHA_512,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._keystore,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }

    @property
    def of_agent(self) -> KafkaListener:
        """Return the listener of an agent."""
        return KafkaListener(
            name="SASL_SSL",
            port=0,
            protocol=SecurityProtocol.SASL_SSL,
            tls=TlsSettings(certificate=self._server.certificate, key=self._server.key),
            mechanisms=(SaslMechanism.SCRAM_SHA_512,),
        )


def add_user(address: str) -> None:
    """Add the user through an open listener of a Kafka broker."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin.alter_user_scram_credentials([change])[USER].result(_ADMIN_SECONDS)


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a client under the names of Kafka's own clients."""
    found = dict(settings)
    if "sasl.username" not in found:
        return found
    user, password = found.pop("sasl.username"), found.pop("sasl.password")
    authority = found.pop("ssl.ca.location")
    return {
        **found,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority,
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{password}";'
        ),
    }
