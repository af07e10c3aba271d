"""SCRAM-SHA-256 and SCRAM-SHA-512 without channel binding (RFC 5802, RFC 7677): the server's side.

Written here because scramp (1.5.0, MIT-0, maintained) maps names and passwords with SASLprep, which Kafka and
librdkafka do not: one user would have two principals. It also rejects salts below 12 bytes, which Kafka's
tools may set (KIP-554), and looks up users in the middle of a blocking call.

The nonce of the server makes each exchange unique, so a replayed message proves nothing. The client repeats
its first header in the last message, signed, so an attacker cannot change it. The proof is compared in
constant time. An unknown user has a simulated credential and takes the same steps as a wrong password. A
credential that was changed or deleted between the two messages of the client proves nothing.
Delegation tokens (`tokenauth=true`) are refused.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.security.sasl.exchange import Identity, decode, fail

if TYPE_CHECKING:
    from agent.security.sasl.exchange import LookUp
    from catalog.security.scram import ScramCredential, ScramMechanism
    from core.ids import Ids

_NAME: Final = r"(?:[^\0=,]|=2C|=3D)+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^\0,]*)*"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproven>c=(?P<header>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_NONCE_BYTES: Final = 24


class _Begun(NamedTuple):
    """An exchange after the server's first message."""

    name: str
    header: bytes
    nonce: str
    credential: ScramCredential
    signed_so_far: bytes


class ScramExchange:
    """One login with SCRAM."""

    def __init__(self, mechanism: ScramMechanism, look_up: LookUp, ids: Ids) -> None:
        self.identity: Identity | None = None
        self._mechanism = mechanism
        self._look_up = look_up
        self._ids = ids
        self._begun: _Begun | None = None
        self._is_over = False

    async def respond(self, message: bytes) -> bytes:
        """Process one of the two messages of the client."""
        if self._is_over:
            fail(self._mechanism.sasl_name, "out_of_order")
        self._is_over = True  # unless this message is the first one, and valid
        text = decode(message, self._mechanism.sasl_name)
        if self._begun is not None:
            return await self._finish(text, self._begun)
        response = await self._begin(text)
        self._is_over = False
        return response

    async def _begin(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            fail(self._mechanism.sasl_name, "malformed")
        name = found["name"].replace("=2C", ",").replace("=3D", "=")
        authorized_as = (found["authzid"] or found["name"]).replace("=2C", ",").replace("=3D", "=")
        if authorized_as != name or ",tokenauth=" in found["extensions"]:
            fail(self._mechanism.sasl_name, "unsupported_extension")
        credential = (await self._look_up(name)).scram(self._mechanism)
        nonce = found["nonce"] + b64encode(self._ids.random_bytes(_NONCE_BYTES)).decode()
        salt = b64encode(credential.salt).decode()
        first = f"r={nonce},s={salt},i={credential.iterations}"
        signed = f"{found['bare']},{first},".encode()
        self._begun = _Begun(name, found["header"].encode(), nonce, credential, signed)
        return first.encode()

    async def _finish(self, text: str, begun: _Begun) -> bytes:
        mechanism, credential = self._mechanism, begun.credential
        # A client may take long between its messages, without an end while it authenticates again.
        is_current = (await self._look_up(begun.name)).scram(mechanism) == credential
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            fail(mechanism.sasl_name, "malformed")
        header, proof = _from_base64(found["header"]), _from_base64(found["proof"])
        is_same = hmac.compare_digest(header, begun.header)
        is_same &= hmac.compare_digest(found["nonce"], begun.nonce)
        signed = begun.signed_so_far + found["unproven"].encode()
        signature = hmac.digest(credential.stored_key, signed, mechanism.hash_name)
        proof = proof if len(proof) == len(signature) else bytes(len(signature))
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        claimed_key = hashlib.new(mechanism.hash_name, client_key).digest()
        is_proven = hmac.compare_digest(claimed_key, credential.stored_key)
        if not (is_same and is_proven and is_current):
            fail(mechanism.sasl_name, "invalid_credentials")
        self.identity = Identity(begun.name)
        return b"v=" + b64encode(hmac.digest(credential.server_key, signed, mechanism.hash_name))


def _from_base64(text: str) -> bytes:
    """Return the bytes; wrong text is bytes that match nothing."""
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        return b""
