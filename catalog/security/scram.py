"""SCRAM credentials: the stored data of a password, and how it is derived (RFC 5802, section 3).

A credential proves that a client knows the password. Neither the password nor anything that a client could
log in with can be computed from it: `stored_key` is the hash of the client's key. `server_key` proves to the
client that the server has the credential.

Passwords and names are used as UTF-8, without SASLprep, as Kafka does. Otherwise two names that SASLprep maps
to the same name would be one principal here and two in Kafka.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from catalog.errors import InvalidCredentialError

if TYPE_CHECKING:
    from core.ids import Ids

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
"""Kafka's bounds. Java clients refuse a server that asks for more iterations."""

MAX_NAME_BYTES: Final = 1024
MAX_SALT_BYTES: Final = 1024
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_DIGITS: Final = 26


class ScramMechanism(IntEnum):
    """A SCRAM mechanism with Kafka's number."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name of the SASL mechanism."""
        return "SCRAM-SHA-256" if self is ScramMechanism.SHA_256 else "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """The hash function, as `hashlib` names it."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """The length of each key."""
        return 32 if self is ScramMechanism.SHA_256 else 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The stored data of one user's password for one mechanism. Its text form shows no keys."""

    mechanism: ScramMechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def check_user_name(name: str) -> None:
    """Raise InvalidCredentialError for a name that no user can have."""
    if not name:
        raise InvalidCredentialError("Username must not be empty")
    if "\0" in name:
        raise InvalidCredentialError("a user's name contains a NUL", remedy="choose a name without NUL")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidCredentialError(
            "the name of a user is not Unicode text", remedy="choose a name without lone surrogates"
        ) from None
    if size > MAX_NAME_BYTES:
        raise InvalidCredentialError(
            f"the name of a user has more than {MAX_NAME_BYTES} bytes", remedy="choose a shorter name"
        )


def check_iterations(iterations: int) -> None:
    """Raise InvalidCredentialError for a number of iterations that Kafka rejects."""
    if iterations < MIN_ITERATIONS:
        raise InvalidCredentialError("Too few iterations", remedy=f"use at least {MIN_ITERATIONS}")
    if iterations > MAX_ITERATIONS:
        raise InvalidCredentialError("Too many iterations", remedy=f"use at most {MAX_ITERATIONS}")


def text_salt(entropy: bytes) -> bytes:
    """Return a salt in the form of Kafka's tools: base-36 digits.

    The salts of simulated users have the same form, so that clients cannot tell them from others.
    """
    number = int.from_bytes(entropy, "big")
    digits = []
    for _ in range(_SALT_DIGITS):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits).encode()


def salted_password(mechanism: ScramMechanism, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return the password, salted and iterated; this takes milliseconds and releases the interpreter."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)


def stored_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    """Return the key that verifies a client, from the salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return hashlib.new(mechanism.hash_name, client_key).digest()


def credential_from_salted(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a password that a client has salted (KIP-554).

    InvalidCredentialError: the iterations, the salt or the length of the salted password are unacceptable.
    """
    check_iterations(iterations)
    if not salt or len(salt) > MAX_SALT_BYTES:
        raise InvalidCredentialError(
            f"a salt has {len(salt)} bytes", remedy=f"use 1 to {MAX_SALT_BYTES} random bytes"
        )
    if len(salted) != mechanism.key_bytes:
        raise InvalidCredentialError(
            f"a salted password for {mechanism.sasl_name} has {len(salted)} bytes",
            remedy=f"salt and iterate it with {mechanism.hash_name}, for {mechanism.key_bytes} bytes",
        )
    return ScramCredential(
        mechanism=mechanism,
        salt=salt,
        iterations=iterations,
        stored_key=stored_key(mechanism, salted),
        server_key=hmac.digest(salted, b"Server Key", mechanism.hash_name),
    )


def new_credential(
    mechanism: ScramMechanism, password: str, ids: Ids, *, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Return a credential for a password with a new salt; raise InvalidCredentialError if it is empty."""
    check_iterations(iterations)
    if not password:
        raise InvalidCredentialError("the password is empty", remedy="give a password")
    salt = text_salt(ids.random_bytes(24))
    salted = salted_password(mechanism, password.encode(), salt, iterations)
    return credential_from_salted(mechanism, salted, salt, iterations)
