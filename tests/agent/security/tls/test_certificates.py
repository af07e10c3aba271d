from __future__ import annotations

import os
import ssl
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier
from structlog.testing import capture_logs

from agent.listeners import ClientAuth, TlsSettings
from agent.runtime.metrics import AgentMetrics
from agent.security.tls.certificates import Certificate, load_context
from agent.security.tls.distinguished_name import subject_of
from core.clock import ManualClock, SystemClock
from core.errors import InvalidInputError
from tests.fixtures.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

_EMAIL = NameOID.EMAIL_ADDRESS


def _subject(*attributes: tuple[ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (
            _subject(
                (NameOID.COUNTRY_NAME, "DE"),
                (NameOID.ORGANIZATION_NAME, "Quarry"),
                (NameOID.COMMON_NAME, "m"),
            ),
            "CN=m,O=Quarry,C=DE",
        ),
        (_subject((NameOID.COMMON_NAME, 'a,b+c="#;\\ <>')), r"CN=a\,b\+c\=\"\#\;\\ \<\>"),
        (_subject((NameOID.COMMON_NAME, " m ä ")), "CN=\\ m ä\\ "),
        (
            _subject((_EMAIL, "a@b"), (NameOID.USER_ID, "7"), (NameOID.DOMAIN_COMPONENT, "org")),
            "DC=org,UID=7,1.2.840.113549.1.9.1=#1603614062",
        ),
        (x509.Name([]), ""),
    ],
)
def test_a_subject_is_written_as_java_does(subject: x509.Name, expected: str, tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("client", subject=subject)
    certificate = x509.load_pem_x509_certificate(issued.certificate.read_bytes())
    assert subject_of(certificate.public_bytes(Encoding.DER)) == expected


def _settings(tmp_path: Path, **changes: Any) -> TlsSettings:  # noqa: ANN401 - any field
    issued = Authority(tmp_path).issue("server", "localhost")
    return TlsSettings(**{"certificate": issued.certificate, "key": issued.key, **changes})


def test_the_key_may_be_encrypted_and_its_password_in_a_file(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("server", password=b"hunter2")
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    open_settings = TlsSettings(certificate=issued.certificate, key=issued.key)
    settings = replace(open_settings, key_password_file=password)
    load_context("SSL", settings)
    with pytest.raises(InvalidInputError, match=r"listener SSL.*is encrypted.*ssl_key_password_file"):
        load_context("SSL", open_settings)
    password.write_text("wrong-secret")
    with pytest.raises(InvalidInputError, match="cannot be used") as caught:
        load_context("SSL", settings)
    assert "wrong-secret" not in str(caught.value)
    password.write_text("")
    with pytest.raises(InvalidInputError, match="has no password"):
        load_context("SSL", settings)


def test_key_and_certificate_may_be_in_one_file(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("server")
    both = tmp_path / "both.pem"
    both.write_bytes(issued.certificate.read_bytes() + issued.key.read_bytes())
    load_context("SSL", TlsSettings(certificate=both))


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    absent, empty = tmp_path / "absent.pem", tmp_path / "empty.pem"
    empty.write_text("")
    other = Authority(tmp_path, "other").issue("another")
    for wrong, message in (
        (TlsSettings(certificate=absent), "absent.pem of ssl_certificate_location.*No such file"),
        (TlsSettings(certificate=settings.certificate, key=absent), "absent.pem of ssl_key_location"),
        (TlsSettings(certificate=empty), "empty.pem cannot be used"),
        (TlsSettings(certificate=settings.certificate, key=other.key), "key values mismatch"),
        (_settings(tmp_path, client_auth=ClientAuth.REQUIRED, client_ca=absent), "ssl_ca_location"),
        (_settings(tmp_path, client_auth=ClientAuth.REQUIRED, client_ca=empty), "authorities in"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            load_context("SSL", wrong)


def test_a_failure_to_load_a_changed_certificate_is_repaired_by_a_later_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files stay as they are, such as after a lack of file descriptors."""
    issued = Authority(tmp_path).issue("server", "localhost", password=b"hunter2")
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    settings = TlsSettings(certificate=issued.certificate, key=issued.key, key_password_file=password)
    certificate = Certificate("SSL", settings, AgentMetrics())
    first = certificate.context
    os.utime(issued.certificate, (1, 1))

    def fails(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    with capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr("ssl.SSLContext.load_cert_chain", fails)
            certificate.refresh()
            certificate.refresh()
        assert certificate.context is first
        certificate.refresh()
        assert certificate.context is not first
    assert [each["log_level"] for each in logs] == ["error", "info"], "the same failure is logged once"
    second = certificate.context
    password.write_bytes(b"\xff\xfe")
    with capture_logs() as logs:
        certificate.refresh()
    assert certificate.context is second
    assert "0xff" not in repr(logs), "a part of the password"


def _shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a connection in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname="localhost", session=session),
        server.wrap_bio(up, down, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends


def test_a_resumed_session_does_not_outlive_the_certificate_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", "localhost")
    settings = TlsSettings(
        certificate=issued.certificate,
        key=issued.key,
        client_auth=ClientAuth.REQUIRED,
        client_ca=authority.file,
    )
    server = load_context("SSL", settings)
    client = authority.issue("mason").context(authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    first, _ = _shake_hands(server, client)
    again, accepted = _shake_hands(server, client, first.session)
    assert (again.session_reused, accepted.session_reused) == (True, True)
    clock = ManualClock(SystemClock().now_ms() + 2 * 24 * 3600 * 1000)
    monkeypatch.setattr("agent.security.tls.certificates._CLOCK", clock)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        _shake_hands(server, client, first.session)
    assert (caught.value.reason, caught.value.verify_message) == (
        "CERTIFICATE_VERIFY_FAILED",
        "certificate has expired",
    )


def test_a_removed_authority_admits_no_client_any_more(tmp_path: Path) -> None:
    """Neither by a handshake nor by a session that began before. A half-written file admits nobody else."""
    authority, removed = Authority(tmp_path), Authority(tmp_path, "removed")
    issued = authority.issue("server", "localhost")
    both = authority.file.read_bytes() + removed.file.read_bytes()
    clients = tmp_path / "clients.pem"
    clients.write_bytes(both)
    settings = TlsSettings(
        certificate=issued.certificate, key=issued.key, client_auth=ClientAuth.REQUIRED, client_ca=clients
    )
    certificate = Certificate("SSL", settings, AgentMetrics())
    stays = authority.issue("stays").context(authority)
    leaves = removed.issue("leaves").context(authority)
    leaves.maximum_version = ssl.TLSVersion.TLSv1_2
    first, _ = _shake_hands(certificate.context, leaves)
    for size in (len(both) - 2, len(both) - 100, len(authority.file.read_bytes()) + 40, 100, 0):
        before = certificate.context
        clients.write_bytes(both[:size])
        certificate.refresh()
        assert certificate.context is before
    clients.write_bytes(both[: len(authority.file.read_bytes()) + 10])  # as if there was no other one
    certificate.refresh()
    for session in (None, first.session):
        with pytest.raises(ssl.SSLError):
            _shake_hands(certificate.context, leaves, session)
    _shake_hands(certificate.context, stays)


def test_a_changed_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", "localhost")
    metrics = AgentMetrics()
    certificate = Certificate("SSL", TlsSettings(certificate=issued.certificate, key=issued.key), metrics)
    first = certificate.context
    certificate.refresh()
    assert certificate.context is first
    key = issued.key.read_bytes()
    issued.key.write_bytes(b"not a key")
    with capture_logs() as logs:
        certificate.refresh()
        certificate.refresh()
    assert [(each["log_level"], each["listener"]) for each in logs] == [("error", "SSL")]
    assert certificate.context is first
    issued.key.write_bytes(key)
    certificate.refresh()
    second = certificate.context
    assert second is not first
    issued.certificate.unlink()
    certificate.refresh()
    assert certificate.context is second
    authority.issue("server", "localhost")
    os.utime(issued.certificate)
    certificate.refresh()
    assert certificate.context is not second
    (family,) = metrics.tls_reloads.collect()
    values = {each.labels["outcome"]: each.value for each in family.samples}
    assert values == {"failed": 2, "loaded": 2}
