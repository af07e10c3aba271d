"""From an open installation to TLS with client certificates, while a producer and a consumer stay connected.

These are the steps of `docs/how-to/secure.md` with certificates, on two agents that restart one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.listeners import ClientAuth, KafkaListener, SecurityProtocol, TlsSettings
from tests.agent.kafka.traffic import Ledger, Traffic
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.fixtures.certificates import Authority
from tests.fixtures.ports import lasting_ports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = [pytest.mark.integration]


def test_clients_stay_connected_from_an_open_listener_to_mutual_tls(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    issued, mason = authority.issue("server", "127.0.0.1"), authority.issue("mason")
    tls = TlsSettings(
        certificate=issued.certificate,
        key=issued.key,
        client_ca=authority.file,
        client_auth=ClientAuth.REQUIRED,
    )
    ports = lasting_ports(4)
    plain = [KafkaListener(port=port) for port in ports[:2]]
    secure = [
        KafkaListener(name="SSL", port=port, protocol=SecurityProtocol.SSL, tls=tls) for port in ports[2:]
    ]

    def start(*listeners: KafkaListener) -> BrokerThread:
        return start_broker(kafka_listeners=listeners, groups=QUICK_GROUPS)

    def servers(listeners: list[KafkaListener]) -> str:
        return ",".join(f"127.0.0.1:{each.port}" for each in listeners)

    agents = [start(each) for each in plain]
    agents[0].create_topic("granite", partitions=4)
    ledger = Ledger()
    opened = {"bootstrap.servers": servers(plain)}
    traffic = Traffic(opened, opened, "granite", ledger)
    try:
        traffic.continues()
        for at in range(2):
            agents[at].stop()
            agents[at] = start(plain[at], secure[at])
            traffic.continues()
        with_tls = {
            "bootstrap.servers": servers(secure),
            "security.protocol": "ssl",
            "ssl.ca.location": str(authority.file),
            "ssl.certificate.location": str(mason.certificate),
            "ssl.key.location": str(mason.key),
        }
        moved = Traffic(with_tls, with_tls, "granite", ledger)
        try:
            moved.continues()
            traffic.stop()
            moved.continues()
            for at in range(2):
                agents[at].stop()
                agents[at] = start(secure[at])
                moved.continues()
        finally:
            moved.stop()
        assert moved.failures == []
    finally:
        traffic.stop()
    assert traffic.failures == []
    remaining = Traffic(with_tls, with_tls, "granite", ledger)
    until(ledger.is_read)
    remaining.stop()
