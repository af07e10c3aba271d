"""Users in a real catalog: stored data, public data, and unknown names."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from catalog.errors import InvalidCredentialError
from catalog.security import users as users_module
from catalog.security.scram import (
    ScramMechanism,
    check_user_name,
    credential_from_salted,
    new_credential,
    salted_password,
    stored_key,
)
from catalog.security.users import CredentialInfo, CredentialKey

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.ids import Ids

_SHA_256, _SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def test_keys_are_those_of_rfc_7677() -> None:
    """The client's proof of the example in section 3 of the RFC matches the credential."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password(_SHA_256, b"pencil", salt, 4096)
    credential = credential_from_salted(_SHA_256, salted, salt, 4096)
    message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(credential.stored_key, message, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == credential.stored_key
    server = hmac.digest(credential.server_key, message, "sha256")
    assert base64.b64encode(server) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_a_password_is_set_changed_and_deleted(catalog: Catalog, ids: Ids) -> None:
    for password in ("old-secret", "new-secret"):
        changed = [("ada", new_credential(each, password, ids)) for each in ScramMechanism]
        assert catalog.users.alter(upsertions=changed) == set()
        lookup = catalog.users.lookup("ada")
        for mechanism in ScramMechanism:
            found = lookup.scram(mechanism)
            salted = salted_password(mechanism, password.encode(), found.salt, found.iterations)
            assert stored_key(mechanism, salted) == found.stored_key
        assert lookup.for_password().mechanism is _SHA_512
    assert catalog.users.describe(["ada", "eve"]) == [
        CredentialInfo("ada", _SHA_256, 4096),
        CredentialInfo("ada", _SHA_512, 4096),
    ]
    gone, unknown = CredentialKey("ada", _SHA_512), CredentialKey("eve", _SHA_256)
    assert catalog.users.alter(deletions=[gone, unknown]) == {unknown}
    assert catalog.users.lookup("ada").for_password().mechanism is _SHA_256
    assert (catalog.users.delete("ada"), catalog.users.delete("ada")) == (1, 0)
    assert catalog.users.describe() == []


def test_an_unknown_user_looks_like_a_known_one(catalog: Catalog, ids: Ids) -> None:
    catalog.users.alter(upsertions=[("ada", new_credential(_SHA_256, "secret", ids, iterations=8192))])
    known, unknown = catalog.users.lookup("ada"), catalog.users.lookup("eve")
    assert not unknown.credentials
    assert known.for_password().mechanism is unknown.for_password().mechanism, "the same hash"
    for credential in (known.scram(_SHA_256), unknown.scram(_SHA_256)):
        assert credential.iterations == 8192
        assert re.fullmatch(rb"[0-9a-z]{26}", credential.salt)
    assert catalog.users.lookup("eve") == unknown, "it is the same at each lookup"
    assert catalog.users.lookup("bob").scram(_SHA_256).salt != unknown.scram(_SHA_256).salt
    before = catalog.operation_counts()["users.lookup"].statements
    catalog.users.lookup("ada")
    between = catalog.operation_counts()["users.lookup"].statements
    catalog.users.lookup("nobody")
    after = catalog.operation_counts()["users.lookup"].statements
    assert after - between == between - before
    catalog.users.alter(upsertions=[("ada", new_credential(_SHA_512, "secret", ids))])
    assert catalog.users.lookup("eve").for_password().mechanism is _SHA_512


def test_no_password_is_stored_and_no_key_is_shown(catalog: Catalog, catalog_url: str, ids: Ids) -> None:
    credential = new_credential(_SHA_256, "planted-secret", ids)
    catalog.users.alter(upsertions=[("ada", credential)])
    salted = salted_password(_SHA_256, b"planted-secret", credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    with psycopg.connect(make_conninfo(catalog_url)) as connection:
        (row,) = connection.execute("SELECT scram_credentials::text FROM scram_credentials").fetchall()
        for secret in (b"planted-secret", salted, client_key):
            assert secret.hex() not in row[0]
            assert secret not in row[0].encode()
    shown = repr(catalog.users.lookup("ada"))
    for hidden in (credential.stored_key, credential.server_key, credential.salt):
        assert repr(hidden) not in shown


def test_unacceptable_credentials_are_rejected_and_the_number_is_bounded(
    catalog: Catalog, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    salted = bytes(32)
    for iterations in (-1, 0, 1, 4095, 16385, 2**31 - 1):
        with pytest.raises(InvalidCredentialError, match=r"iterations"):
            credential_from_salted(_SHA_256, salted, b"salt", iterations)
    for salt, password in ((b"", salted), (bytes(2000), salted), (b"salt", bytes(64)), (b"salt", b"")):
        with pytest.raises(InvalidCredentialError):
            credential_from_salted(_SHA_256, password, salt, 4096)
    for name in ("", "a\0b", "é" * 600):
        with pytest.raises(InvalidCredentialError):
            check_user_name(name)
    monkeypatch.setattr(users_module, "MAX_CREDENTIALS", 1)
    one = new_credential(_SHA_256, "secret", ids)
    catalog.users.alter(upsertions=[("ada", one)])
    with pytest.raises(InvalidCredentialError, match="credentials of users"):
        catalog.users.alter(upsertions=[("bob", one)])
    assert len(catalog.users.describe()) == 1
