"""TLS of all listeners of an agent: their certificates, and the bounds that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.listeners import KafkaListener
from agent.runtime.health import start_essential_task, stop_task
from agent.security.tls.certificates import Certificate, refresh_regularly
from agent.security.tls.handshakes import Handshakes
from agent.security.tls.transport import TlsListener

if TYPE_CHECKING:
    import asyncio

    from agent.listeners import HttpListener
    from agent.runtime.metrics import AgentMetrics
    from agent.settings import AgentSettings


class TlsListeners:
    """The listeners with TLS. Belongs to the event loop.

    Raises InvalidInputError if a file of a certificate is wrong.
    """

    def __init__(self, settings: AgentSettings, metrics: AgentMetrics) -> None:
        self.handshakes = Handshakes(
            seconds=settings.tls_handshake_ms / 1000,
            max_handshakes=settings.max_tls_handshakes,
            metrics=metrics,
        )
        self._poll_seconds = settings.certificate_poll_ms / 1000
        self._certificates: list[Certificate] = []
        self._listeners: dict[str, TlsListener] = {}
        self._metrics = metrics
        for kafka in settings.kafka_listeners:
            self._add(kafka)
        for http in settings.http_listeners:
            self._add(http)
        self._polling: asyncio.Task[None] | None = None

    def _add(self, listener: KafkaListener | HttpListener) -> None:
        if listener.tls is None:
            return
        certificate = Certificate(listener.name, listener.tls, self._metrics)
        self._certificates.append(certificate)
        self._listeners[listener.name] = TlsListener(
            listener.name,
            certificate,
            self.handshakes,
            rules=listener.tls.principal_mapping_rules,
            maps_principals=not (isinstance(listener, KafkaListener) and listener.protocol.has_sasl),
        )

    def of(self, listener: KafkaListener | HttpListener) -> TlsListener | None:
        """Return the TLS of a listener, None if it has none."""
        return self._listeners.get(listener.name)

    def start(self) -> None:
        """Start to look for changes of the files."""
        if self._certificates:
            polling = refresh_regularly(self._certificates, self._poll_seconds)
            self._polling = start_essential_task(polling, name="certificates")

    @property
    def is_running(self) -> bool:
        """Return True while changes of the files are noticed."""
        return not self._certificates or (self._polling is not None and not self._polling.done())

    async def stop(self) -> None:
        """End incomplete handshakes and the task."""
        self.handshakes.abort()
        await stop_task(self._polling)
