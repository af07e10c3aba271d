from __future__ import annotations

from pathlib import Path

import pytest

from agent.listener_settings import ListenerSettings, http_listeners, kafka_listeners
from agent.listeners import (
    ClientAuth,
    HttpAuthentication,
    HttpListener,
    KafkaListener,
    SaslMechanism,
    SecurityProtocol,
    TlsSettings,
    TlsVersion,
)
from core.errors import InvalidInputError

_TLS = {"ssl_certificate_location": Path("c.pem")}


def _kafka(**given: object) -> tuple[KafkaListener, ...]:
    return kafka_listeners(ListenerSettings(**given))  # type: ignore[arg-type]  # any setting


def _http(**given: object) -> tuple[HttpListener, ...]:
    return http_listeners(ListenerSettings(**given))  # type: ignore[arg-type]  # any setting


def test_a_listener_named_like_a_protocol_has_this_protocol() -> None:
    assert _kafka(listeners="PLAINTEXT://127.0.0.1:9092, sasl_plaintext://[::1]:0") == (
        KafkaListener(name="PLAINTEXT", host="127.0.0.1", port=9092),
        KafkaListener(
            name="SASL_PLAINTEXT",
            host="::1",
            port=0,
            protocol=SecurityProtocol.SASL_PLAINTEXT,
            mechanisms=(SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512),
        ),
    )


def test_other_names_have_the_protocol_of_the_map_and_the_advertised_address() -> None:
    (inner, outer) = _kafka(
        listeners="INTERNAL://10.0.0.1:9092,external://:9093",
        advertised_listeners="EXTERNAL://agent-1.example.org:0",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:SSL",
        **_TLS,
    )
    assert inner == KafkaListener(name="INTERNAL", host="10.0.0.1", port=9092)
    assert (outer.host, outer.port) == ("0.0.0.0", 9093)
    assert (outer.advertised_host, outer.advertised_port) == ("agent-1.example.org", 0)
    assert outer.tls == TlsSettings(certificate=Path("c.pem"))


def test_one_listener_may_differ_from_the_others() -> None:
    (inner, outer) = _kafka(
        listeners="MY-SSL://127.0.0.1:1,SASL_SSL://127.0.0.1:2",
        listener_security_protocol_map="MY-SSL:SSL",
        ssl_client_auth="required",
        ssl_ca_location=Path("ca.pem"),
        ssl_enabled_protocols="TLSv1.3",
        overrides={
            "listener_name_my_ssl_ssl_certificate_location": "mine.pem",
            "listener_name_my_ssl_ssl_key_location": "key.pem",
            "listener_name_sasl_ssl_sasl_enabled_mechanisms": "oauthbearer",
        },
        **_TLS,
    )
    assert inner.tls == TlsSettings(
        certificate=Path("mine.pem"),
        key=Path("key.pem"),
        client_ca=Path("ca.pem"),
        client_auth=ClientAuth.REQUIRED,
        versions=(TlsVersion.TLS_1_3,),
    )
    assert outer.tls is not None
    assert outer.tls.certificate == Path("c.pem")
    assert outer.tls.client_auth is ClientAuth.NONE  # KIP-684: only its own setting counts
    assert outer.mechanisms == (SaslMechanism.OAUTHBEARER,)


def test_a_listener_authenticates_by_sasl_a_certificate_or_a_header() -> None:
    tls = TlsSettings(certificate=Path("c"), client_auth=ClientAuth.REQUIRED)
    assert KafkaListener(protocol=SecurityProtocol.SASL_PLAINTEXT).authenticates
    assert KafkaListener(protocol=SecurityProtocol.SSL, tls=tls).authenticates
    assert not KafkaListener(
        protocol=SecurityProtocol.SSL, tls=TlsSettings(certificate=Path("c"))
    ).authenticates
    assert not KafkaListener().authenticates
    assert HttpListener(tls=tls).authenticates
    assert HttpListener(authentication=(HttpAuthentication.BASIC,)).authenticates
    assert not HttpListener().authenticates


def test_http_listeners_have_tls_and_authentication_of_their_own() -> None:
    (plain, secure) = _http(
        http_listeners="LOCAL://127.0.0.1:8080,WEB://0.0.0.0:8443",
        listener_security_protocol_map="LOCAL:PLAINTEXT,WEB:SSL",
        overrides={"listener_name_web_http_authentication": "basic,bearer"},
        **_TLS,
    )
    assert plain == HttpListener(name="LOCAL", host="127.0.0.1", port=8080)
    assert secure.tls == TlsSettings(certificate=Path("c.pem"))
    assert secure.authentication == (HttpAuthentication.BASIC, HttpAuthentication.BEARER)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"listeners": "127.0.0.1:9092"}, ["setting listeners", "NAME://HOST:PORT"]),
        ({"listeners": "PLAINTEXT://127.0.0.1:70000"}, ["setting listeners", "70000"]),
        ({"listeners": "A://127.0.0.1:1"}, ["listener A", "listener_security_protocol_map"]),
        ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, ["two entries", "PLAINTEXT"]),
        ({"listeners": "SSL://h:1"}, ["listener SSL", "ssl_certificate_location"]),
        ({"advertised_listeners": "B://h:1"}, ["advertised_listeners names B", "listeners"]),
        (
            {"listeners": "PLAINTEXT://h:1", "advertised_listeners": "PLAINTEXT://0.0.0.0:1"},
            ["advertised_listeners", "0.0.0.0"],
        ),
        ({"listeners": "PLAINTEXT://h:1", "listener_security_protocol_map": "A"}, ["NAME:PROTOCOL"]),
        ({"listeners": "PLAINTEXT://h:1", "listener_security_protocol_map": "A:TLS"}, ["SASL_SSL"]),
        (
            {"listeners": "SASL_PLAINTEXT://h:1", "sasl_enabled_mechanisms": "GSSAPI"},
            ["sasl_enabled_mechanisms", "GSSAPI", "SCRAM-SHA-512"],
        ),
        ({"listeners": "SSL://h:1", "ssl_client_auth": "yes", **_TLS}, ["ssl_client_auth", "requested"]),
        ({"listeners": "SSL://h:1", "ssl_client_auth": "required", **_TLS}, ["ssl_ca_location"]),
        ({"listeners": "SSL://h:1", "ssl_enabled_protocols": "TLSv1.1", **_TLS}, ["TLSv1.1", "TLSv1.2"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(given: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        _kafka(**given)
    for part in parts:
        assert part in str(caught.value)


def test_an_http_listener_has_no_sasl() -> None:
    with pytest.raises(InvalidInputError, match=r"WEB cannot have SASL_SSL .*http_authentication"):
        _http(http_listeners="WEB://h:1", listener_security_protocol_map="WEB:SASL_SSL")
