"""Logins on a listener with SASL, request by request, as a client that does not keep the rules sends them.

One agent serves all tests. Its clients have the address of the listener SASL, which has all mechanisms.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from agent.authentication_settings import AuthenticationSettings
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.listeners import KafkaListener, SaslMechanism, SecurityProtocol
from catalog.errors import CatalogUnavailableError
from catalog.security.scram import ScramMechanism, new_credential
from catalog.security.users import CredentialKey
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, read_response, request_frame
from tests.agent.security.scram_client import ScramClient
from tests.agent.security.token_issuer import AUDIENCE, ISSUER, Issuer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.agent.kafka.brokers import BrokerThread

_PASSWORDS = {"ada": "planted-secret-1", "a,b=c": "planted-secret-2"}
_LIFETIME_MS = 600_000
_NONE, _FAILED = ErrorCode.none, ErrorCode.sasl_authentication_failed
_MAX_BYTES = 100_000


class SaslListener:
    """The listener of one agent, its catalog, and the issuer of its tokens."""

    def __init__(self, broker: BrokerThread, issuer: Issuer) -> None:
        self.broker = broker
        self.issuer = issuer

    def address(self, name: str = "SASL") -> tuple[str, int]:
        addresses: Mapping[str, str] = self.broker.addresses
        host, _, port = addresses["kafka" if name == "SASL" else f"kafka.{name}"].rpartition(":")
        return host, int(port)

    @contextmanager
    def wire(self, name: str = "SASL") -> Iterator[Wire]:
        with Wire(self.address(name)) as opened:
            yield opened

    def metric(self, name: str, **labels: str) -> float:
        return self.broker.agent.metrics.registry.get_sample_value(f"siltstone_{name}", labels) or 0.0

    def failures(self, mechanism: str) -> float:
        return self.metric("authentications_total", mechanism=mechanism, outcome="failure")


@pytest.fixture
def listener(start_broker: Any, catalog: Any, ids: Any, tmp_path: Path) -> SaslListener:  # noqa: ANN401  # of other modules
    issuer = Issuer()
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set())
    sasl = KafkaListener(
        name="SASL", port=0, protocol=SecurityProtocol.SASL_PLAINTEXT, mechanisms=tuple(SaslMechanism)
    )
    strict = KafkaListener(
        name="STRICT",
        port=0,
        protocol=SecurityProtocol.SASL_PLAINTEXT,
        mechanisms=(SaslMechanism.SCRAM_SHA_512,),
    )
    for name, password in _PASSWORDS.items():
        catalog.users.alter(
            upsertions=[(name, new_credential(each, password, ids)) for each in ScramMechanism]
        )
    broker = start_broker(
        kafka_listeners=(sasl, strict, KafkaListener(name="OPEN", port=0)),
        authentication=AuthenticationSettings(
            connections_max_reauth_ms=_LIFETIME_MS,
            connection_failed_authentication_delay_ms=1,
            sasl_server_max_receive_size=_MAX_BYTES,
            max_unauthenticated_connections=3,
            user_cache_ms=1,
            jwks_retry_ms=1,
            sasl_oauthbearer_jwks_endpoint_url=keys.as_uri(),
            sasl_oauthbearer_expected_issuer=ISSUER,
            sasl_oauthbearer_expected_audience=AUDIENCE,
            sasl_oauthbearer_clock_skew_seconds=0,
        ),
    )
    return SaslListener(broker, issuer)


def _handshake(wire: Wire, mechanism: str, version: int = 1) -> Struct:
    return wire.ask("sasl_handshake", version, Struct(mechanism=mechanism))


def _token(wire: Wire, message: bytes, version: int = 2) -> Struct:
    return wire.ask("sasl_authenticate", version, Struct(auth_bytes=message))


def _plain(name: str, password: str) -> bytes:
    return f"\0{name}\0{password}".encode()


def _bearer(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def _log_in(wire: Wire, mechanism: str, message: bytes) -> Struct:
    assert _handshake(wire, mechanism).error_code == _NONE
    return _token(wire, message)


def _may_send_requests(wire: Wire) -> bool:
    return len(wire.ask("metadata", 12, Struct(topics=[])).brokers) == 1


def test_logins(listener: SaslListener) -> None:
    """The steps share one agent, which takes longer to start than all of them."""
    with capture_logs() as logs:
        _check_mechanisms(listener)
        _check_versions_and_bare_tokens(listener)
        _check_failed_logins(listener)
        _check_order(listener)
        _check_bounds(listener)
        _check_sessions(listener)
        _check_changes_of_users(listener)
        _check_unavailable_catalog(listener)
    failed = [each for each in logs if each["event"] == "a client failed to authenticate"]
    assert {each["mechanism"] for each in failed} >= {"PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "unknown"}
    assert all(each["client"] == "127.0.0.1" and each["listener"] in {"SASL", "STRICT"} for each in failed)
    written = repr(logs) + listener.broker.agent.metrics.render().decode()
    for secret in (*_PASSWORDS.values(), "wrong-secret", "eyJ"):
        assert secret not in written


def _check_mechanisms(listener: SaslListener) -> None:
    for name, password in _PASSWORDS.items():
        for version in (0, 1, 2):
            with listener.wire() as wire:
                handshake = _handshake(wire, "PLAIN")
                assert handshake.mechanisms == [str(each) for each in SaslMechanism]
                response = _token(wire, _plain(name, password), version)
                assert (response.error_code, response.auth_bytes) == (_NONE, b"")
                assert response.session_lifetime == (_LIFETIME_MS if version else 0)
                assert _may_send_requests(wire)
        for mechanism in ScramMechanism:
            client = ScramClient(mechanism, name, password)
            with listener.wire() as wire:
                first = _log_in(wire, mechanism.sasl_name, client.first())
                assert first.session_lifetime == 0
                last = _token(wire, client.final(bytes(first.auth_bytes)))
                assert (last.error_code, last.auth_bytes) == (_NONE, client.expected)
                assert _may_send_requests(wire)
    with listener.wire() as wire:
        response = _log_in(wire, "OAUTHBEARER", _bearer(listener.issuer.token()))
        assert (response.error_code, response.auth_bytes) == (_NONE, b"")
        assert 0 < response.session_lifetime <= 600_000
        assert _may_send_requests(wire)
    with listener.wire("OPEN") as wire:
        for version in (0, 1):
            assert _handshake(wire, "PLAIN", version).error_code == ErrorCode.illegal_sasl_state
        for version in (0, 1, 2):
            assert _token(wire, b"", version).error_code == ErrorCode.illegal_sasl_state
        assert _may_send_requests(wire)


def _check_versions_and_bare_tokens(listener: SaslListener) -> None:
    """ApiVersions is allowed once before the handshake; a rejected one may be sent again, as in Kafka."""
    named = Struct(client_software_name="test", client_software_version="1")
    with listener.wire() as wire:
        wire.send(request_frame("api_versions", 4, 5, named).replace(b"\0\x12\0\4", b"\0\x12\0\x63"))
        response = wire.receive()
        assert response is not None
        assert read_response("api_versions", 0, response[1]).error_code == ErrorCode.unsupported_version
        assert wire.ask("api_versions", 4, named).error_code == _NONE
        assert _log_in(wire, "PLAIN", _plain("ada", _PASSWORDS["ada"])).error_code == _NONE
        assert wire.ask("api_versions", 4, named).error_code == _NONE
    with listener.wire() as wire:
        wire.ask("api_versions", 4, named)
        wire.send(request_frame("api_versions", 4, 5, named))
        assert wire.is_closed()
    client = ScramClient(ScramMechanism.SHA_256, "ada", _PASSWORDS["ada"])
    with listener.wire() as wire:
        assert _handshake(wire, "SCRAM-SHA-256", 0).error_code == _NONE
        first = _bare(wire, client.first())
        assert _bare(wire, client.final(first)) == client.expected
        assert _may_send_requests(wire)
    with listener.wire() as wire:
        _handshake(wire, "PLAIN", 0)
        _send_bare(wire, b"\0a\0b")  # shorter than any request
        assert wire.is_closed()


def _send_bare(wire: Wire, token: bytes) -> None:
    wire.send(len(token).to_bytes(4, "big") + token)


def _bare(wire: Wire, token: bytes) -> bytes:
    _send_bare(wire, token)
    size = wire._exactly(4)
    assert size is not None
    return wire._exactly(int.from_bytes(size, "big")) or b""


def _check_failed_logins(listener: SaslListener) -> None:
    password, before = _PASSWORDS["ada"], listener.failures("PLAIN")
    messages = set()
    for message in (
        _plain("ada", "wrong-secret"),
        _plain("eve", "wrong-secret"),
        _plain("eve", password),
        _plain("ada\x01", password),
    ):
        messages.add(_rejection(listener, "PLAIN", message))
    assert len(messages) == 1, "clients cannot learn which users exist"
    assert "too long" in _rejection(listener, "PLAIN", _plain("x" * 1_025, password))
    for message in (b"", b"ada", b"\0ada", b"\0\0", b"root\0ada\0" + password.encode(), b"\0\xff\0x"):
        _rejection(listener, "PLAIN", message)
    assert listener.failures("PLAIN") == before + 11
    for name in ("ada", "eve"):
        client = ScramClient(ScramMechanism.SHA_256, name, "wrong-secret")
        with listener.wire() as wire:
            first = _log_in(wire, "SCRAM-SHA-256", client.first())
            assert _token(wire, client.final(bytes(first.auth_bytes))).error_code == _FAILED
            assert wire.is_closed()
    thief = Issuer()
    for token in (listener.issuer.unsigned(), thief.token(), listener.issuer.token(exp=1)):
        with listener.wire() as wire:
            report = _log_in(wire, "OAUTHBEARER", _bearer(token))
            assert (report.error_code, report.auth_bytes) == (_NONE, b'{"status":"invalid_token"}')
            assert _token(wire, b"\x01").error_code == _FAILED
            assert wire.is_closed()
    for message in (
        b"",
        b"\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
    ):
        _rejection(listener, "OAUTHBEARER", message)
    valid = listener.issuer.token()
    _rejection(listener, "OAUTHBEARER", f"n,a=root,\x01auth=Bearer {valid}\x01\x01".encode())
    for weaker in ("PLAIN", "SCRAM-SHA-256", "GSSAPI", "scram-sha-512", ""):
        with listener.wire("STRICT") as wire:
            refused = _handshake(wire, weaker)
            assert refused.error_code == ErrorCode.unsupported_sasl_mechanism
            assert refused.mechanisms == ["SCRAM-SHA-512"]
            assert wire.is_closed()


def _rejection(listener: SaslListener, mechanism: str, message: bytes) -> str:
    with listener.wire() as wire:
        response = _log_in(wire, mechanism, message)
        assert response.error_code == _FAILED
        assert response.session_lifetime == 0
        assert wire.is_closed()
        return str(response.error_message)


def _check_order(listener: SaslListener) -> None:
    """Only the requests of a login are handled before its end, and none of them twice."""
    before = listener.metric("kafka_requests_total", api="metadata", version="12")
    requests = {
        "metadata": request_frame("metadata", 12, 1, Struct(topics=[])),
        "produce": request_frame("produce", 9, 1, Struct(acks=-1, timeout=1000, topic_data=[])),
        "sasl_authenticate": request_frame("sasl_authenticate", 2, 1, Struct(auth_bytes=b"")),
        "unknown": b"\0\0\0\x0a\x7f\xff\0\0\0\0\0\1\xff\xff",
    }
    for name, request in requests.items():
        with listener.wire() as wire:
            wire.send(request)
            assert wire.is_closed(), name
    for request in (requests["metadata"], request_frame("sasl_handshake", 1, 1, Struct(mechanism="PLAIN"))):
        with listener.wire() as wire:
            _handshake(wire, "PLAIN")
            wire.send(request)
            assert wire.is_closed()
    login = request_frame("sasl_handshake", 1, 1, Struct(mechanism="PLAIN"))
    login += request_frame("sasl_authenticate", 2, 2, Struct(auth_bytes=_plain("ada", "wrong-secret")))
    with listener.wire() as wire:  # requests that do not wait for the failure
        wire.send(login + requests["metadata"] * 5)
        assert wire.receive() is not None
        failed = wire.receive()
        assert failed is not None
        assert read_response("sasl_authenticate", 2, failed[1]).error_code == _FAILED
        assert wire.is_closed()
    assert listener.metric("kafka_requests_total", api="metadata", version="12") == before


def _check_bounds(listener: SaslListener) -> None:
    with listener.wire() as wire:
        wire.send((_MAX_BYTES + 1).to_bytes(4, "big"))
        assert wire.is_closed()
    server = listener.broker.agent.kafka.server
    assert server is not None
    with listener.wire() as wire:  # it takes no memory from requests of others
        wire.send(_MAX_BYTES.to_bytes(4, "big") + bytes(8))
        until(lambda: server._login_memory.budget.used > 0)
        assert server._login_memory.budget.used < _MAX_BYTES // 10
        assert listener.broker.agent.resources.request_budget.used == 0
    until(lambda: server._login_memory.budget.used == 0)
    with listener.wire() as wire:  # the bound ends with the login
        _log_in(wire, "PLAIN", _plain("ada", _PASSWORDS["ada"]))
        large = Struct(topics=[Struct(topic_id=None, name="x" * 200) for _ in range(1_000)])
        assert len(
            wire.ask("metadata", 12, Struct(topics=large.topics, allow_auto_topic_creation=False)).topics
        )
    with listener.wire() as wire:
        _log_in(wire, "PLAIN", _plain("ada", _PASSWORDS["ada"]))
        until(lambda: listener.metric("unauthenticated_connections") == 0)
        waiting = [socket.create_connection(listener.address()) for _ in range(5)]
        for each in waiting[:2]:
            each.settimeout(60)
            assert each.recv(1) == b"", "the oldest ones that have not logged in are closed"
        assert listener.metric("unauthenticated_connections") == 3
        assert _may_send_requests(wire)
        for each in waiting:
            each.close()
    until(lambda: listener.metric("unauthenticated_connections") == 0)


def _check_sessions(listener: SaslListener) -> None:
    """The session ends with the token; before, the client may log in again as the same user (KIP-368)."""
    issuer = listener.issuer
    with listener.wire() as wire:
        now = issuer.claims()["iat"]
        response = _log_in(wire, "OAUTHBEARER", _bearer(issuer.token(exp=now + 2)))
        assert 0 <= response.session_lifetime <= 2_000
        until(lambda: not _is_served(wire))
        assert listener.metric("kafka_connections_closed_total", reason="session_expired") == 1
    _check_queued_requests(listener)
    other_user, other_mechanism = _bearer(issuer.token(sub="bob")), _plain("ada", _PASSWORDS["ada"])
    _check_changed_identity(listener, "OAUTHBEARER", other_user, "principal")
    _check_changed_identity(listener, "PLAIN", other_mechanism, "mechanism")


def _check_queued_requests(listener: SaslListener) -> None:
    """A request that waits behind a long poll is not served if the session has ended meanwhile.

    Requests that follow a new login in the same packet are served, and none between its messages.
    """
    issuer = listener.issuer
    listener.broker.create_topic("queued")
    part = Struct(partition=0, fetch_offset=0, partition_max_bytes=1_000, current_leader_epoch=-1)
    topics = [Struct(topic="queued", partitions=[part])]
    poll = Struct(replica_id=-1, max_wait=4_000, min_bytes=1, max_bytes=1_000, topics=topics)
    with listener.wire() as wire:
        _log_in(wire, "OAUTHBEARER", _bearer(issuer.token(exp=issuer.claims()["iat"] + 2)))
        wire.send(request_frame("fetch", 12, 1, poll) + request_frame("metadata", 12, 2, Struct(topics=[])))
        assert 2 not in _responses(wire)
    handshake = request_frame("sasl_handshake", 1, 1, Struct(mechanism="PLAIN"))
    token = Struct(auth_bytes=_plain("ada", _PASSWORDS["ada"]))
    login = request_frame("sasl_authenticate", 2, 2, token)
    metadata = request_frame("metadata", 12, 3, Struct(topics=[]))
    for sent, served in (
        (handshake + login + metadata, [1, 2, 3]),
        (handshake + metadata + login, [1]),
        (handshake + handshake + login + metadata, [1]),
        (login + metadata, [2, 3]),  # the first one is ILLEGAL_SASL_STATE
    ):
        with listener.wire() as wire:
            _log_in(wire, "PLAIN", token.auth_bytes)
            wire.send(sent)
            wire.socket.shutdown(socket.SHUT_WR)
            assert _responses(wire) == served


def _responses(wire: Wire) -> list[int]:
    """Return the correlation ids of all responses, until the agent closes the connection."""
    found = []
    while (response := wire.receive()) is not None:
        found.append(response[0])
    return found


def _check_changed_identity(listener: SaslListener, mechanism: str, token: bytes, what: str) -> None:
    issuer = listener.issuer
    with listener.wire() as wire:
        _log_in(wire, "OAUTHBEARER", _bearer(issuer.token()))
        assert _log_in(wire, "OAUTHBEARER", _bearer(issuer.token(issuer.rsa))).error_code == _NONE
        assert _may_send_requests(wire)
        early = _handshake(wire, "OAUTHBEARER")
        assert early.error_code == ErrorCode.illegal_sasl_state, "once a second at most"
        assert _may_send_requests(wire)
        until(lambda: _handshake(wire, mechanism).error_code == _NONE)
        refused = _token(wire, token)
        assert refused.error_code == _FAILED
        assert what in refused.error_message
        assert wire.is_closed()


def _is_served(wire: Wire) -> bool:
    wire.send(request_frame("metadata", 12, 7, Struct(topics=[])))
    return wire.receive() is not None


def _check_changes_of_users(listener: SaslListener) -> None:
    """A changed password and a deleted user count at the next login, even if the password was remembered."""
    users = listener.broker.catalog.users
    new = new_credential(ScramMechanism.SHA_512, "planted-secret-3", listener.broker.ids)
    users.alter(upsertions=[("a,b=c", new)])
    until(lambda: _can_log_in(listener, "a,b=c", "planted-secret-3"))
    assert not _can_log_in(listener, "a,b=c", _PASSWORDS["a,b=c"])
    _check_slow_authentication(listener)
    users.alter(deletions=[CredentialKey("a,b=c", each) for each in ScramMechanism])
    until(lambda: not _can_log_in(listener, "a,b=c", "planted-secret-4"))


def _check_slow_authentication(listener: SaslListener) -> None:
    """A client that authenticates again may take as long as it wants, but not with the old password."""
    client = ScramClient(ScramMechanism.SHA_512, "a,b=c", "planted-secret-3")
    with listener.wire() as wire:
        first = _log_in(wire, "SCRAM-SHA-512", client.first())
        assert _token(wire, client.final(bytes(first.auth_bytes))).error_code == _NONE
        begun = _log_in(wire, "SCRAM-SHA-512", client.first())
        assert begun.error_code == _NONE
        new = new_credential(ScramMechanism.SHA_512, "planted-secret-4", listener.broker.ids)
        listener.broker.catalog.users.alter(upsertions=[("a,b=c", new)])
        until(lambda: _can_log_in(listener, "a,b=c", "planted-secret-4"))
        assert _token(wire, client.final(bytes(begun.auth_bytes))).error_code == _FAILED
        assert wire.is_closed()


def _can_log_in(listener: SaslListener, name: str, password: str) -> bool:
    with listener.wire() as wire:
        return bool(_log_in(wire, "PLAIN", _plain(name, password)).error_code == _NONE)


def _check_unavailable_catalog(listener: SaslListener) -> None:
    """A client whose login cannot be judged is disconnected, so that it tries again."""
    users = listener.broker.catalog.users
    real, failures = users.lookup, listener.failures("PLAIN")

    def unavailable(user: str) -> Any:  # noqa: ANN401  # it never returns
        raise CatalogUnavailableError(f"no server for {user}")

    users.lookup = unavailable  # type: ignore[method-assign]  # only this agent's
    try:
        with listener.wire() as wire:
            _handshake(wire, "PLAIN")
            wire.send(request_frame("sasl_authenticate", 2, 1, Struct(auth_bytes=_plain("ada", "x"))))
            assert wire.is_closed()
    finally:
        users.lookup = real  # type: ignore[method-assign]  # as above
    assert listener.failures("PLAIN") == failures


def test_a_token_may_be_valid_for_longer_than_a_response_can_say(
    start_broker: Any,  # noqa: ANN401  # of another module
    tmp_path: Path,
) -> None:
    issuer = Issuer()
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set())
    sasl = KafkaListener(
        name="SASL",
        port=0,
        protocol=SecurityProtocol.SASL_PLAINTEXT,
        mechanisms=(SaslMechanism.OAUTHBEARER,),
    )
    settings = AuthenticationSettings(
        sasl_oauthbearer_jwks_endpoint_url=keys.as_uri(),
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_expected_audience=AUDIENCE,
    )
    broker = start_broker(kafka_listeners=(sasl,), authentication=settings)
    with Wire(broker.host_and_port) as wire:
        response = _log_in(wire, "OAUTHBEARER", _bearer(issuer.token(exp=10**18)))
        assert (response.error_code, response.session_lifetime) == (_NONE, 2**63 - 1)
        assert _may_send_requests(wire)


def test_a_login_has_a_time_limit(start_broker: Any) -> None:  # noqa: ANN401  # of another module
    sasl = KafkaListener(
        name="SASL",
        port=0,
        protocol=SecurityProtocol.SASL_PLAINTEXT,
        mechanisms=(SaslMechanism.SCRAM_SHA_256,),
    )
    broker = start_broker(
        kafka_listeners=(sasl,), authentication=AuthenticationSettings(authentication_timeout_ms=50)
    )
    for sent in (b"", request_frame("api_versions", 0, 1, Struct())[:6]):
        with Wire(broker.host_and_port) as wire:
            wire.send(sent)
            assert wire.is_closed()
    closed = broker.agent.metrics.registry.get_sample_value(
        "siltstone_kafka_connections_closed_total", {"reason": "login_timeout"}
    )
    assert closed == 2
