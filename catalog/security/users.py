"""Users of Kafka and HTTP clients: their SCRAM credentials (KIP-554).

A lookup returns credentials for every name. Those of an unknown name are simulated: no password matches them,
and they are the same at each lookup, at each agent. So a client cannot learn which users exist.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.database.sql_files import load_queries
from catalog.errors import InvalidCredentialError
from catalog.security.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism, check_user_name, text_salt

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("users")
MAX_CREDENTIALS: Final = 20_000
"""Bound on the credentials of all users, and so on the response that describes them."""


class CredentialKey(NamedTuple):
    """The key of one credential."""

    user: str
    mechanism: ScramMechanism


class CredentialInfo(NamedTuple):
    """The public properties of one credential."""

    user: str
    mechanism: ScramMechanism
    iterations: int


class UserLookup(NamedTuple):
    """The credentials of one name, one for each mechanism. No client can log in with the simulated ones.

    `strongest` is the strongest mechanism for which any user has a credential.
    """

    credentials: Mapping[ScramMechanism, ScramCredential]
    simulated: Mapping[ScramMechanism, ScramCredential]
    strongest: ScramMechanism

    def scram(self, mechanism: ScramMechanism) -> ScramCredential:
        """Return the credential for a SCRAM login."""
        return self.credentials.get(mechanism) or self.simulated[mechanism]

    def for_password(self) -> ScramCredential:
        """Return the credential that verifies a password which the server receives: the strongest one.

        An unknown name takes the hash of other users, and so the same time.
        """
        if not self.credentials:
            return self.simulated[self.strongest]
        return self.credentials[max(self.credentials)]


class Users:
    """Users of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lookup(self, user: str) -> UserLookup:
        """Return the credentials of a user, real or simulated, with one query for any name."""
        rows = self._database.read("users.lookup", _SQL["look_up_user"], {"user_name": user})
        found = {
            credential.mechanism: credential
            for credential in (_credential_from_row(row) for row in rows if row.mechanism is not None)
        }
        strongest = ScramMechanism.SHA_256 if rows[0].iterations_512 is None else ScramMechanism.SHA_512
        return UserLookup(found, _simulated(user, rows[0]), strongest)

    def describe(self, users: Collection[str] | None = None) -> list[CredentialInfo]:
        """Return the credentials of these users or of all, by name, without their keys."""
        params = {"user_names": None if users is None else list(users)}
        rows = self._database.read("users.describe", _SQL["describe_users"], params)
        return [CredentialInfo(row.user_name, ScramMechanism(row.mechanism), row.iterations) for row in rows]

    def alter(
        self,
        *,
        deletions: Sequence[CredentialKey] = (),
        upsertions: Sequence[tuple[str, ScramCredential]] = (),
    ) -> set[CredentialKey]:
        """Delete and set credentials in one transaction; return the deletions that found no credential.

        InvalidCredentialError: a name is invalid, or there would be too many credentials.
        """
        for user, _ in upsertions:
            check_user_name(user)
        # In one order, so that two transactions cannot wait for each other.
        ordered = sorted(upsertions, key=lambda each: (each[0], each[1].mechanism))

        def work(transaction: Transaction) -> set[CredentialKey]:
            transaction.rows(_SQL["lock_users"])
            missing = {key for key in sorted(set(deletions)) if not _delete(transaction, key)}
            for user, credential in ordered:
                transaction.send(_SQL["set_credential"], _params(user, credential))
            if ordered and transaction.rows(_SQL["count_credentials"])[0].credentials > MAX_CREDENTIALS:
                raise InvalidCredentialError(
                    f"there are {MAX_CREDENTIALS} credentials of users",
                    remedy="delete users that are no longer used",
                )
            return missing

        return self._database.transact("users.alter", work)

    def delete(self, user: str) -> int:
        """Delete all credentials of a user; return their number."""

        def work(transaction: Transaction) -> int:
            transaction.rows(_SQL["lock_users"])
            return transaction.count(_SQL["delete_user"], {"user_name": user})

        return self._database.transact("users.delete", work)


def _delete(transaction: Transaction, key: CredentialKey) -> bool:
    params = {"user_name": key.user, "mechanism": int(key.mechanism)}
    return transaction.count(_SQL["delete_credential"], params) > 0


def _params(user: str, credential: ScramCredential) -> dict[str, object]:
    return {
        "user_name": user,
        "mechanism": int(credential.mechanism),
        "salt": credential.salt,
        "iterations": credential.iterations,
        "stored_key": credential.stored_key,
        "server_key": credential.server_key,
    }


def _credential_from_row(row: Row) -> ScramCredential:
    return ScramCredential(
        mechanism=ScramMechanism(row.mechanism),
        salt=bytes(row.salt),
        iterations=row.iterations,
        stored_key=bytes(row.stored_key),
        server_key=bytes(row.server_key),
    )


def _simulated(user: str, row: Row) -> dict[ScramMechanism, ScramCredential]:
    """Return credentials for a name without any, as similar as possible to those of a real user."""
    secret = bytes(row.secret)
    usual = {ScramMechanism.SHA_256: row.iterations_256, ScramMechanism.SHA_512: row.iterations_512}
    found = {}
    for mechanism, iterations in usual.items():
        seed = hmac.digest(secret, f"{mechanism.sasl_name}\0{user}".encode(errors="replace"), "sha512")
        found[mechanism] = ScramCredential(
            mechanism=mechanism,
            salt=text_salt(seed[:24]),
            iterations=iterations or MIN_ITERATIONS,
            stored_key=hashlib.new(mechanism.hash_name, seed + b"stored").digest(),
            server_key=hashlib.new(mechanism.hash_name, seed + b"server").digest(),
        )
    return found
