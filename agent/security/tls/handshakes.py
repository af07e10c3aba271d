"""Bounds on TLS handshakes, and what the log says about those that fail.

A handshake costs its client nothing. All listeners of an agent together have at most `max_handshakes` that
are not complete, and each has `seconds`. For another one, the oldest of an address that has most is ended: a
client that does its part needs a few round trips only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog

from agent.runtime.waiting_clients import WaitingClients

if TYPE_CHECKING:
    import ssl

    from agent.runtime.metrics import AgentMetrics

_log = structlog.get_logger(__name__)
_REMEDIES: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "give the client a certificate (ssl.keystore.location,"
    " ssl.certificate.location)",
    "CERTIFICATE_VERIFY_FAILED": "give the client a valid certificate of an authority in ssl_ca_location",
    "TLSV1_ALERT_UNKNOWN_CA": "give the client the authority of this listener's certificate"
    " (ssl.truststore.location, ssl.ca.location)",
    "UNSUPPORTED_PROTOCOL": "use a version of TLS in ssl_enabled_protocols",
}
_REJECTED: Final = (
    "check that the client trusts this listener's certificate, that it has not expired, and that it names the"
    " advertised host"
)


class Handshake(Protocol):
    """A connection whose handshake is not complete."""

    @property
    def host(self) -> str:
        """Address of the client without its port."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class Handshakes:
    """Handshakes that are not complete. Belongs to the event loop."""

    def __init__(self, *, seconds: float, max_handshakes: int, metrics: AgentMetrics) -> None:
        self.seconds = seconds
        self._max_handshakes = max_handshakes
        self._metrics = metrics
        self._open = WaitingClients[Handshake]()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, handshake: Handshake) -> None:
        """Count a handshake; end another one if there are too many."""
        self._open.add(handshake, handshake.host)
        if len(self._open) > self._max_handshakes:
            evicted = self._open.to_evict()
            self.end(evicted, "evicted")
            evicted.abort()

    def count(self, host: str) -> int:
        """Return the number of incomplete handshakes of an address."""
        return self._open.count(host)

    def end(self, handshake: Handshake, outcome: str) -> None:
        """Count the outcome of a handshake, once."""
        if handshake in self._open:
            self._open.remove(handshake)
            self._metrics.tls_handshakes.labels(outcome).inc()

    def abort(self) -> None:
        """End all of them."""
        for each in self._open.all():
            self.end(each, "lost")
            each.abort()


def log_failure(listener: str, host: str, error: ssl.SSLError) -> None:
    """Log why a handshake failed, and what to do about it."""
    reason = error.reason or "unknown"
    remedy = _REMEDIES.get(reason, _REJECTED if "ALERT" in reason else None)
    detail = getattr(error, "verify_message", "")
    text = reason.lower().replace("_", " ") + (f": {detail}" if detail else "")
    _log.warning("a TLS handshake failed", listener=listener, client=host, reason=text, remedy=remedy)
