"""The client's side of SCRAM, step by step, so that a test can change each message."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from catalog.security.scram import ScramMechanism


@dataclass
class ScramClient:
    """One login. `header` is the GS2 header that the client sends first and signs last."""

    mechanism: ScramMechanism
    name: str
    password: str
    nonce: str = "rOprNGfwEbeRWgbNEkqO"
    header: str = "n,,"

    @property
    def _bare(self) -> str:
        return f"n={self.name.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"

    def first(self) -> bytes:
        return f"{self.header}{self._bare}".encode()

    def final(self, server_first: bytes, *, header: str | None = None, nonce: str | None = None) -> bytes:
        """Return the last message, with a proof for exactly what it says."""
        fields = dict(each.split("=", 1) for each in server_first.decode().split(","))
        hash_name = self.mechanism.hash_name
        salted = hashlib.pbkdf2_hmac(
            hash_name, self.password.encode(), b64decode(fields["s"]), int(fields["i"])
        )
        binding = b64encode((self.header if header is None else header).encode()).decode()
        unproven = f"c={binding},r={fields['r'] if nonce is None else nonce}"
        signed = f"{self._bare},{server_first.decode()},{unproven}".encode()
        key = hmac.digest(salted, b"Client Key", hash_name)
        signature = hmac.digest(hashlib.new(hash_name, key).digest(), signed, hash_name)
        proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        server_key = hmac.digest(salted, b"Server Key", hash_name)
        self.expected = b"v=" + b64encode(hmac.digest(server_key, signed, hash_name))
        return f"{unproven},p={proof}".encode()
