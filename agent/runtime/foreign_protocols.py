"""Recognition of clients that speak another protocol than the listener, by their first bytes."""

from __future__ import annotations

from typing import Final

_TLS: Final = b"\x16\x03"  # a handshake record of SSL 3.0 to TLS 1.3 (RFC 8446, section 5.1)
_HTTP: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
_PLAIN_KAFKA: Final = "set security.protocol=PLAINTEXT at the client, or SASL_PLAINTEXT with authentication"
_TLS_KAFKA: Final = "set security.protocol=SSL at the client, or SASL_SSL with SASL"
FIRST_BYTES: Final = 4
"""How many bytes are needed."""


def on_kafka_port(first: bytes) -> str | None:
    """Return what a client sent instead of a Kafka request, and the remedy; None for a Kafka request."""
    if first.startswith(_TLS):
        return f"it sent a TLS hello, and this listener has no TLS ({_PLAIN_KAFKA})"
    if first.startswith(_HTTP):
        return "it sent an HTTP request to the Kafka listener (use the address of the HTTP listener)"
    return None


def on_tls_port(first: bytes) -> str | None:
    """Return what a client sent instead of a TLS hello, and the remedy; None for a hello."""
    if first.startswith(_TLS):
        return None
    if first.startswith(_HTTP):
        return "it sent an HTTP request without TLS, and this listener has TLS (use https://)"
    if first.startswith(b"\0"):  # the length of a request
        return f"it sent a Kafka request without TLS, and this listener has TLS ({_TLS_KAFKA})"
    return "it sent no TLS hello, and this listener has TLS"


def on_http_port(first: bytes) -> str | None:
    """Return what a client sent instead of an HTTP request, and the remedy; None for anything else."""
    if first.startswith(_TLS):
        return "it sent a TLS hello, and this listener has no TLS (use http:// instead of https://)"
    if first.startswith(b"\0"):  # the length of a request
        return "it sent a Kafka request to the HTTP listener (use the address of the Kafka listener)"
    return None
