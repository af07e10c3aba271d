"""DescribeUserScramCredentials and AlterUserScramCredentials, with an admin client and scripted requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public in its documentation
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.security import scram
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from tests.agent.kafka.brokers import BrokerThread

_SALTED = bytes(range(32))


def _upsertion(name: str, mechanism: int = 1, iterations: int = 4096, salted: bytes = _SALTED) -> Struct:
    return Struct(name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=salted)


def test_credentials_are_set_described_and_deleted(broker: BrokerThread) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    change = UserScramCredentialUpsertion("a,b=c", info, b"admin-secret")
    admin.alter_user_scram_credentials([change])["a,b=c"].result(60)
    found = broker.catalog.users.lookup("a,b=c").for_password()
    salted = scram.salted_password(found.mechanism, b"admin-secret", found.salt, found.iterations)
    assert scram.stored_key(found.mechanism, salted) == found.stored_key
    described: Any = admin.describe_user_scram_credentials(["a,b=c"])
    (listed,) = described["a,b=c"].result(60).scram_credential_infos
    assert (listed.mechanism, listed.iterations) == (ScramMechanism.SCRAM_SHA_256, 8192)
    deletion = UserScramCredentialDeletion("a,b=c", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])["a,b=c"].result(60)
    assert broker.catalog.users.describe() == []

    with Wire(broker.host_and_port) as wire:
        _check_errors_of_users(broker, wire)
        _check_descriptions(wire)


def _check_errors_of_users(broker: BrokerThread, wire: Wire) -> None:
    """Each user has its own error, and valid changes are applied."""
    changes = Struct(
        deletions=[Struct(name="none", mechanism=1), Struct(name="both", mechanism=1)],
        upsertions=[
            _upsertion("ada"),
            _upsertion("ada", mechanism=2, salted=bytes(64)),
            _upsertion("both"),
            _upsertion("few", iterations=4095),
            _upsertion("zero", iterations=0),
            _upsertion("many", iterations=2**31 - 1),
            _upsertion("odd", mechanism=3),
            _upsertion("short", salted=b"1"),
            _upsertion(""),
        ],
    )
    response = wire.ask("alter_user_scram_credentials", 0, changes)
    assert {each.user: ErrorCode(each.error_code) for each in response.results} == {
        "none": ErrorCode.resource_not_found,
        "both": ErrorCode.duplicate_resource,
        "ada": ErrorCode.none,
        "few": ErrorCode.unacceptable_credential,
        "zero": ErrorCode.unacceptable_credential,
        "many": ErrorCode.unacceptable_credential,
        "odd": ErrorCode.unsupported_sasl_mechanism,
        "short": ErrorCode.unacceptable_credential,
        "": ErrorCode.unacceptable_credential,
    }
    assert [(each.user, int(each.mechanism)) for each in broker.catalog.users.describe()] == [
        ("ada", 1),
        ("ada", 2),
    ]


def _check_descriptions(wire: Wire) -> None:
    names = [Struct(name=each) for each in ("ada", "eve", "twice", "twice")]
    found = wire.ask("describe_user_scram_credentials", 0, Struct(users=names)).results
    assert [(each.user, ErrorCode(each.error_code), len(each.credential_infos)) for each in found] == [
        ("ada", ErrorCode.none, 2),
        ("eve", ErrorCode.resource_not_found, 0),
        ("twice", ErrorCode.duplicate_resource, 0),
    ]
    everyone: tuple[list[str] | None, ...] = (None, [])
    for users in everyone:
        (result,) = wire.ask("describe_user_scram_credentials", 0, Struct(users=users)).results
        assert result.user == "ada"
