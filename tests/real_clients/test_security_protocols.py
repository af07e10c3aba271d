"""Every installed client library connects with the security protocols and SASL mechanisms that it has.

The tables of `docs/reference/kafka.md` list the combinations; a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.listeners import SaslMechanism
from tests.real_clients.client_driver import CLIENTS, ROOT
from tests.real_clients.sasl_agent import NAME, ORDINARY_NAME, PASSWORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.real_clients.client_driver import Driver
    from tests.real_clients.sasl_agent import SaslAgent

pytestmark = pytest.mark.integration
_CLIENTS = [each for each in CLIENTS if "KIP-848" not in each]
_MECHANISMS = tuple(SaslMechanism)
# kcat needs an issuer of tokens over HTTPS, and a librdkafka that was built with libcurl. With librdkafka
# 2.0.2 it fails to log in by SCRAM; confluent-kafka with a newer librdkafka does not.
_NOT_TESTED = {"kcat": {SaslMechanism.OAUTHBEARER, SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512}}
# kafka-python (3.0.12) does not escape names for SCRAM.
_WITHOUT_ESCAPES = {"kafka-python"}


def _ways(agent: SaslAgent, client: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Return listener, mechanism and settings of each way in which a client connects."""
    encrypted = {"authority": str(agent.authority.file)}
    own = {"certificate": str(agent.client.certificate), "key": str(agent.client.key)}
    yield "SSL", "", {"protocol": "SSL", **encrypted}
    yield "MUTUAL", "", {"protocol": "SSL", **encrypted, **own}
    for mechanism in _MECHANISMS:
        if mechanism in _NOT_TESTED.get(client, ()):
            continue
        if mechanism is SaslMechanism.OAUTHBEARER:
            login = {"token": agent.issuer.token()}
        else:
            login = {"username": ORDINARY_NAME if client in _WITHOUT_ESCAPES else NAME, "password": PASSWORD}
        yield "SASL", mechanism, {"protocol": "SASL_PLAINTEXT", "mechanism": mechanism, **login}
        yield "SASL_SSL", mechanism, {"protocol": "SASL_SSL", "mechanism": mechanism, **login, **encrypted}


@pytest.mark.parametrize("client", _CLIENTS)
def test_a_client_connects_in_every_way(
    sasl_agent: SaslAgent, drivers: Callable[[str], Driver], client: str
) -> None:
    driver = drivers(client)
    topic = f"secure-{CLIENTS.index(client)}"
    sasl_agent.broker.create_topic(topic)
    addresses = {"kafka.SASL": sasl_agent.address, **sasl_agent.broker.addresses}
    for number, (listener, mechanism, security) in enumerate(_ways(sasl_agent, client)):
        where = {"bootstrap": addresses[f"kafka.{listener}"], "topic": topic}
        before = sasl_agent.logins(mechanism) if mechanism else 0
        driver("secure", **security)
        try:
            value = f"{listener}-{mechanism}"
            driver("produce", values=[value], codec="none", acks=-1, idempotent=False, **where)
            found = driver("read", offset=number, count=1, group=f"{topic}-{number}", **where)
        finally:
            driver("secure")
        assert found == [[number, value]]
        if mechanism:
            assert sasl_agent.logins(mechanism) >= before + 2


def test_the_documentation_lists_what_is_tested(sasl_agent: SaslAgent) -> None:
    page = (ROOT / "docs" / "reference" / "kafka.md").read_text(encoding="utf-8")
    table = page.partition("| client | SSL |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    columns = ["SSL", "client certificate", *_MECHANISMS]
    assert ["SSL", *rows[0]] == columns
    documented = {name: [cell == "yes" for cell in cells] for name, *cells in rows[2:]}
    for client in _CLIENTS:
        tested = {(listener, mechanism) for listener, mechanism, _ in _ways(sasl_agent, client)}
        without = [("SSL", "") in tested, ("MUTUAL", "") in tested]
        both = [{("SASL", each), ("SASL_SSL", each)} <= tested for each in _MECHANISMS]
        assert documented[client] == [*without, *both], client
