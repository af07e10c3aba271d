"""Listeners outside loopback need TLS and authentication; those on loopback reject web pages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.listeners import ClientAuth, HttpListener, KafkaListener, SecurityProtocol, TlsSettings
from agent.runtime.sockets import bind
from agent.security.exposure import InsecureListenerError, check_authorization, check_exposure
from tests.fixtures.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.running_agents import Agents


@pytest.fixture
def tls(tmp_path: Path) -> TlsSettings:
    authority = Authority(tmp_path)
    issued = authority.issue("server", "127.0.0.1")
    return TlsSettings(certificate=issued.certificate, key=issued.key, client_ca=authority.file)


def _check(listener: KafkaListener | HttpListener, *, allow: bool = False) -> None:
    with bind(listener.host, listener.port) as bound:
        check_exposure(listener, bound, allow_insecure=allow)


def test_a_listener_outside_loopback_needs_tls_and_authentication(tls: TlsSettings) -> None:
    """The message names what is missing and the settings that fix it."""
    mutual = replace(tls, client_auth=ClientAuth.REQUIRED)
    for kafka, parts in (
        (
            KafkaListener(host="0.0.0.0", port=0),
            ["PLAINTEXT on 0.0.0.0:", "no TLS and authenticates no clients"],
        ),
        (
            KafkaListener(name="X", host="0.0.0.0", port=0, protocol=SecurityProtocol.SSL, tls=tls),
            ["and it authenticates no clients", "X:SASL_SSL", "ssl_client_auth=required"],
        ),
        (
            KafkaListener(name="X", host="0.0.0.0", port=0, protocol=SecurityProtocol.SASL_PLAINTEXT),
            ["and it has no TLS", "listener_security_protocol_map", "ssl_certificate_location"],
        ),
        (HttpListener(host="0.0.0.0", port=0), ["HTTP on 0.0.0.0:", "HTTP:SSL", "http_authentication"]),
    ):
        with pytest.raises(InsecureListenerError) as caught:
            _check(kafka)
        for part in [*parts, "allow_insecure_listeners=true"]:
            assert part in str(caught.value)
    _check(KafkaListener(host="0.0.0.0", port=0, protocol=SecurityProtocol.SSL, tls=mutual))
    _check(HttpListener(host="0.0.0.0", port=0, tls=mutual))
    _check(KafkaListener(host="127.0.0.2", port=0))


def test_an_insecure_listener_can_be_accepted_and_is_logged() -> None:
    with capture_logs() as logs:
        _check(KafkaListener(host="0.0.0.0", port=0), allow=True)
    assert [each["log_level"] for each in logs] == ["warning"]


def test_authentication_without_an_authorizer_is_logged(tls: TlsSettings) -> None:
    """Each authenticated client may then do everything, such as change the passwords of others."""
    login = KafkaListener(name="LOGIN", port=0, protocol=SecurityProtocol.SASL_PLAINTEXT)
    mutual = HttpListener(name="MUTUAL", port=0, tls=replace(tls, client_auth=ClientAuth.REQUIRED))
    listeners = (KafkaListener(port=0), HttpListener(port=0), login, mutual)
    with capture_logs() as logs:
        check_authorization(listeners, authorizes=True)
        check_authorization(listeners[:2], authorizes=False)
        assert not logs
        check_authorization(listeners, authorizes=False)
    (warning,) = logs
    assert (warning["log_level"], warning["listeners"]) == ("warning", ["LOGIN", "MUTUAL"])
    assert "authorizer_enable" in warning["remedy"]


@pytest.mark.anyio
@pytest.mark.integration
async def test_an_agent_with_an_insecure_listener_does_not_start(agents: Agents) -> None:
    exposed = HttpListener(host="0.0.0.0", port=0)
    with pytest.raises(InsecureListenerError, match="allow_insecure_listeners"):
        async with agents.running(http_listeners=(exposed,)):
            pass
    async with agents.running(
        http_listeners=(exposed,), allow_insecure_listeners=True, http_allowed_hosts=("proxy.example",)
    ) as running:
        port = running.http.base_url.port
        # It is open to other machines, so that names of hosts say nothing.
        response = await running.http.get(f"http://127.0.0.1:{port}/livez", headers={"Host": "agent-1"})
        assert response.status_code == 200
        topic = f"http://127.0.0.1:{port}/v1/topics/granite"
        own = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
        # A browser sends passwords and certificates by itself, so a page could use them to change something.
        for method, headers, status in (
            ("POST", {"Origin": "http://evil.example"}, 403),
            ("POST", {"Sec-Fetch-Site": "cross-site"}, 403),
            ("DELETE", {"Origin": "null"}, 403),
            ("POST", own, 404),
            ("POST", {"Origin": "https://Proxy.example:8443", "Sec-Fetch-Site": "same-origin"}, 404),
            ("POST", {}, 404),
            ("GET", {"Sec-Fetch-Site": "cross-site"}, 404),
        ):
            url = f"{topic}/undelete" if method == "POST" else topic
            response = await running.http.request(method, url, headers=headers)
            assert response.status_code == status, (method, headers)


@pytest.mark.anyio
@pytest.mark.integration
async def test_a_web_page_cannot_use_a_listener_on_loopback(agents: Agents) -> None:
    """DNS rebinding, requests of other sites, and of other pages of this machine."""
    async with agents.running(http_allowed_hosts=("proxy.example",)) as running:
        port = running.http.base_url.port or 0
        own = f"127.0.0.1:{port}"
        for headers, status in (
            ({}, 200),
            ({"Host": f"localhost:{port}"}, 200),
            ({"Host": f"[::1]:{port}"}, 200),
            ({"Host": "Proxy.example"}, 200),
            ({"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}, 200),
            ({"Sec-Fetch-Site": "none"}, 200),
            ({"Host": f"evil.example:{port}"}, 403),
            ({"Host": f"127.0.0.1.evil.example:{port}"}, 403),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": f"http://localhost:{port + 1}"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
        ):
            response = await running.http.get("/v1/topics", headers=headers)
            assert response.status_code == status, headers
            if status == 403:
                assert response.json()["error"]["code"] == "foreign_host"
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        created = await running.http.post("/v1/topics", json={"name": "granite"}, headers=rebound)
        assert created.status_code == 403
        assert (await running.http.get("/v1/topics/granite")).status_code == 404
