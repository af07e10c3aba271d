"""Connections whose clients have not done their part yet, and which of them makes room for another one."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingClients(Generic[T]):
    """Connections by address, each in the order of their arrival. Belongs to the event loop."""

    def __init__(self) -> None:
        self._addresses: dict[T, str] = {}
        self._by_address: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, connection: object) -> bool:
        return connection in self._addresses

    def all(self) -> list[T]:
        """Return all connections."""
        return list(self._addresses)

    def count(self, address: str) -> int:
        """Return the number of connections of an address."""
        return len(self._by_address.get(address, ()))

    def add(self, connection: T, address: str) -> None:
        """Note a new connection."""
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None

    def remove(self, connection: T) -> None:
        """Forget a connection, if it is known."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        del self._by_address[address][connection]
        if not self._by_address[address]:
            del self._by_address[address]

    def to_evict(self) -> T:
        """Return the oldest connection of an address that has most, so that no address evicts all others."""
        most = max(self._by_address, key=lambda address: len(self._by_address[address]))
        return next(iter(self._by_address[most]))
