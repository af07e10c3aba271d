"""An agent with a listener for each security protocol, its users, and an issuer of tokens."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.authentication_settings import AuthenticationSettings
from agent.listeners import ClientAuth, KafkaListener, SaslMechanism, SecurityProtocol, TlsSettings
from catalog.open import open_catalog
from catalog.security.scram import ScramMechanism, new_credential
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.waiting import QUICK_GROUPS
from tests.agent.security.token_issuer import AUDIENCE, ISSUER, Issuer
from tests.fixtures.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.postgres import PostgresForTests

NAME, PASSWORD = "a,b=c", 'planted "secret", =ü'
"""A user whose name and password need escapes in SCRAM's messages."""

ORDINARY_NAME = "ada"
"""Another user with the same password."""


class SaslAgent:
    """A running agent. `issuer` signs tokens that it accepts."""

    def __init__(self, broker: BrokerThread, issuer: Issuer, authority: Authority) -> None:
        self.broker = broker
        self.issuer = issuer
        self.authority = authority
        self.client = authority.issue("client")
        self.encrypted_address = broker.addresses["kafka.SASL_SSL"]
        self.address = broker.addresses["kafka"]
        self.open_address = broker.addresses["kafka.OPEN"]

    def logins(self, mechanism: str, outcome: str = "success") -> float:
        """Return how many logins the agent has counted."""
        labels = {"mechanism": mechanism, "outcome": outcome}
        registry = self.broker.agent.metrics.registry
        return registry.get_sample_value("siltstone_authentications_total", labels) or 0.0


@contextmanager
def running_sasl_agent(
    postgres: PostgresForTests, directory: Path, *, max_reauth_ms: int = 0
) -> Iterator[SaslAgent]:
    """Run an agent with the listeners SASL and SASL_SSL, which have all mechanisms, SSL, MUTUAL and OPEN."""
    clock = SystemClock()
    ids, issuer = SystemIds(clock), Issuer()
    keys = directory / "keys.json"
    keys.write_bytes(issuer.key_set())
    sasl = KafkaListener(
        name="SASL", port=0, protocol=SecurityProtocol.SASL_PLAINTEXT, mechanisms=tuple(SaslMechanism)
    )
    authority = Authority(directory)
    issued = authority.issue("agent", "127.0.0.1")
    tls = TlsSettings(certificate=issued.certificate, key=issued.key)
    encrypted = KafkaListener(
        name="SASL_SSL",
        port=0,
        protocol=SecurityProtocol.SASL_SSL,
        mechanisms=tuple(SaslMechanism),
        tls=tls,
    )
    ssl = KafkaListener(name="SSL", port=0, protocol=SecurityProtocol.SSL, tls=tls)
    certificates = replace(tls, client_ca=authority.file, client_auth=ClientAuth.REQUIRED)
    mutual = KafkaListener(name="MUTUAL", port=0, protocol=SecurityProtocol.SSL, tls=certificates)
    changes = {
        "kafka_listeners": (sasl, encrypted, ssl, mutual, KafkaListener(name="OPEN", port=0)),
        "groups": QUICK_GROUPS,
        "authentication": AuthenticationSettings(
            connections_max_reauth_ms=max_reauth_ms,
            connection_failed_authentication_delay_ms=1,
            user_cache_ms=1,
            sasl_oauthbearer_jwks_endpoint_url=keys.as_uri(),
            sasl_oauthbearer_expected_issuer=ISSUER,
            sasl_oauthbearer_expected_audience=AUDIENCE,
        ),
    }
    address = postgres.create()
    with ExitStack() as stack:
        stack.callback(postgres.drop, address)
        catalog = stack.enter_context(open_catalog(address, clock, ids))
        users = [(name, each) for name in (NAME, ORDINARY_NAME) for each in ScramMechanism]
        new = [(name, new_credential(each, PASSWORD, ids)) for name, each in users]
        catalog.users.alter(upsertions=new)
        store = FaultyStore(LocalStore(directory / "objects", ids))
        broker = BrokerThread(catalog, store, clock, ids, changes)
        broker.start()
        stack.callback(broker.stop)
        yield SaslAgent(broker, issuer, authority)
