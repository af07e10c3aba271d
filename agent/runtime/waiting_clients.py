"""Connections whose clients have not done their part yet, and which of them makes room for another one."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from core.addresses import network_of

T = TypeVar("T")


class WaitingClients(Generic[T]):
    """Connections by address, each in the order of their arrival. Belongs to the event loop.

    The addresses of an IPv6 network (a /64) belong to one client as far as it makes room for others.
    """

    def __init__(self) -> None:
        self._addresses: dict[T, str] = {}
        self._counts: Counter[str] = Counter()
        self._by_network: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, connection: object) -> bool:
        return connection in self._addresses

    def all(self) -> list[T]:
        """Return all connections."""
        return list(self._addresses)

    def count(self, address: str) -> int:
        """Return the number of connections of an address."""
        return self._counts[address]

    def add(self, connection: T, address: str) -> None:
        """Note a new connection."""
        self._addresses[connection] = address
        self._counts[address] += 1
        self._by_network.setdefault(network_of(address), {})[connection] = None

    def remove(self, connection: T) -> None:
        """Forget a connection, if it is known."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
        network = network_of(address)
        del self._by_network[network][connection]
        if not self._by_network[network]:
            del self._by_network[network]

    def to_evict(self) -> T:
        """Return the oldest connection of a network that has most: none evicts those of all others."""
        most = max(self._by_network, key=lambda network: len(self._by_network[network]))
        return next(iter(self._by_network[most]))
