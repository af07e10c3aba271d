"""SCRAM's server against a client that attacks it."""

from __future__ import annotations

import asyncio
import hmac
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from agent.security.errors import AuthenticationFailedError
from agent.security.sasl.scram import ScramExchange
from catalog.security.scram import ScramMechanism, new_credential
from catalog.security.users import UserLookup
from core.clock import ManualClock
from core.ids import SeededIds
from tests.agent.security.scram_client import ScramClient

if TYPE_CHECKING:
    from collections.abc import Callable

_IDS = SeededIds(1, ManualClock())
_SHA_256, _SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
_PASSWORDS = {"ada": "pencil", "a,b=c": "comma, and = sign", "=2C": "escaped", "Ada ü": "unicode ü"}
_USERS = {
    name: {each: new_credential(each, password, _IDS) for each in ScramMechanism}
    for name, password in _PASSWORDS.items()
}
_SIMULATED = {each: new_credential(each, "simulated", _IDS) for each in ScramMechanism}


async def _look_up(name: str) -> UserLookup:
    return UserLookup(_USERS.get(name, {}), _SIMULATED, max(_SIMULATED))


def _exchange(mechanism: ScramMechanism = _SHA_256) -> ScramExchange:
    return ScramExchange(mechanism, _look_up, _IDS)


def _send(exchange: ScramExchange, message: bytes) -> bytes:
    return asyncio.run(exchange.respond(message))


def _rejected(exchange: ScramExchange, message: bytes) -> str:
    with pytest.raises(AuthenticationFailedError) as caught:
        _send(exchange, message)
    assert exchange.identity is None
    return caught.value.reason


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize("name", list(_PASSWORDS))
def test_a_user_logs_in_and_the_server_proves_itself(name: str, mechanism: ScramMechanism) -> None:
    exchange, client = _exchange(mechanism), ScramClient(mechanism, name, _PASSWORDS[name])
    final = client.final(_send(exchange, client.first()))
    assert _send(exchange, final) == client.expected
    assert exchange.identity == (name, None)
    with pytest.raises(AuthenticationFailedError):
        _send(exchange, final)


def test_a_wrong_password_and_an_unknown_user_fail_alike() -> None:
    outcomes = []
    for name in ("ada", "eve"):
        exchange, client = _exchange(), ScramClient(_SHA_256, name, "wrong")
        first = _send(exchange, client.first())
        with pytest.raises(AuthenticationFailedError) as caught:
            _send(exchange, client.final(first))
        shape = [len(each) for each in first.decode().split(",")]
        outcomes.append((shape, str(caught.value), caught.value.reason))
    assert outcomes[0] == outcomes[1]
    simulated = ScramClient(_SHA_256, "eve", "simulated")  # even the password that is behind the simulation
    exchange = _exchange()
    assert _SIMULATED[_SHA_256].iterations == 4096
    first = _send(exchange, simulated.first())
    assert first.decode().split(",")[2] == "i=4096"


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_password_that_was_changed_during_the_login_proves_nothing(*, is_deleted: bool) -> None:
    """A client could otherwise keep an old password usable by a slow login."""
    users = dict(_USERS)

    async def look_up(name: str) -> UserLookup:
        return UserLookup(users.get(name, {}), _SIMULATED, max(_SIMULATED))

    exchange, client = ScramExchange(_SHA_256, look_up, _IDS), ScramClient(_SHA_256, "ada", "pencil")
    final = client.final(_send(exchange, client.first()))
    users["ada"] = {} if is_deleted else {each: new_credential(each, "new", _IDS) for each in ScramMechanism}
    assert _rejected(exchange, final) == "invalid_credentials"


def test_replayed_messages_prove_nothing() -> None:
    exchange, client = _exchange(), ScramClient(_SHA_256, "ada", "pencil")
    final = client.final(_send(exchange, client.first()))
    _send(exchange, final)
    another = _exchange()
    _send(another, client.first())
    assert _rejected(another, final) == "invalid_credentials"


@pytest.mark.parametrize(
    "forge",
    [
        lambda nonce: nonce[:-1],
        lambda nonce: nonce + "x",
        lambda nonce: nonce[:20],
        lambda nonce: "attacker" + nonce[20:],
    ],
)
def test_a_forged_nonce_is_rejected_even_with_a_valid_proof(forge: Callable[[str], str]) -> None:
    exchange, client = _exchange(), ScramClient(_SHA_256, "ada", "pencil")
    first = _send(exchange, client.first())
    nonce = first.decode().split(",")[0].removeprefix("r=")
    assert _rejected(exchange, client.final(first, nonce=forge(nonce))) == "invalid_credentials"


@pytest.mark.parametrize(("sent", "signed"), [("n,,", "y,,"), ("y,,", "n,,"), ("n,,", "p=tls-unique,,")])
def test_a_changed_channel_binding_is_rejected(sent: str, signed: str) -> None:
    exchange, client = _exchange(), ScramClient(_SHA_256, "ada", "pencil", header=sent)
    first = _send(exchange, client.first())
    assert _rejected(exchange, client.final(first, header=signed)) == "invalid_credentials"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=ada",
        b"p=tls-unique,,n=ada,r=nonce",
        b"n,,m=ext,n=ada,r=nonce",
        b"n,,n=a=da,r=nonce",
        b"n,,n=,r=nonce",
        b"n,,n=ada,r=",
        b"n,,n=ada,r=no nce",
        b"n,,n=a\0da,r=nonce",
        b"n,,n=\xff,r=nonce",
        b"n,,n=ada,r=nonce\0",
        b"n,a=root,n=ada,r=nonce",
        b"n,,n=ada,r=nonce,tokenauth=true",
        b"n,,n=" + b"a" * 20_000 + b",r=nonce",
    ],
)
def test_malformed_first_messages_are_rejected(message: bytes) -> None:
    exchange = _exchange()
    _rejected(exchange, message)
    assert _rejected(exchange, b"n,,n=ada,r=nonce") == "out_of_order"


def test_malformed_last_messages_are_rejected() -> None:
    client = ScramClient(_SHA_256, "ada", "pencil")
    changes: list[Callable[[bytes], bytes]] = [
        lambda final: final.split(b",p=")[0],
        lambda final: final.split(b",p=")[0] + b",p=",
        lambda final: final.split(b",p=")[0] + b",p=AAAA",
        lambda final: final.split(b",p=")[0] + b",p=" + b64encode(bytes(32)),
        lambda final: final.split(b",p=")[0] + b",p=" + b64encode(bytes(64)),
        lambda final: final.replace(b"c=biws", b"c=!"),
        lambda final: final + b",p=" + b64encode(bytes(32)),
        lambda final: b"x" * 20_000 + final,
    ]
    for change in changes:
        exchange = _exchange()
        _rejected(exchange, change(client.final(_send(exchange, client.first()))))


def test_the_mechanism_of_another_credential_does_not_help() -> None:
    """A client cannot use its proof for SCRAM-SHA-256 in an exchange of SCRAM-SHA-512."""
    exchange, client = _exchange(_SHA_512), ScramClient(_SHA_256, "ada", "pencil")
    assert _rejected(exchange, client.final(_send(exchange, client.first()))) == "invalid_credentials"


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(len(a))
        return real(a, b)

    real = hmac.compare_digest
    monkeypatch.setattr("hmac.compare_digest", compare)
    for password in ("pencil", "wrong"):
        compared.clear()
        exchange, client = _exchange(), ScramClient(_SHA_256, "ada", password)
        final = client.final(_send(exchange, client.first()))
        if password == "wrong":
            _rejected(exchange, final)
        else:
            _send(exchange, final)
        assert 32 in compared, "the stored key"
        assert len(compared) == 3, "all three, whichever of them differs"
