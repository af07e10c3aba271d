"""Kafka's precedence of client quotas: which limit holds for a user and a client id, and who shares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from catalog.config.quota_entities import DEFAULT, QuotaKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from catalog.config.client_quotas import Quotas


class Limit(NamedTuple):
    """A limit, and the user and client id whose amounts count together; None stands for all.

    `is_of_any_id` is True if each client id has the limit for itself, also one that a client has invented.
    """

    value: float
    user: str | None
    client_id: str | None
    is_of_any_id: bool = False


class ClientLimits:
    """The limits of one key, by user and client id.

    The first entity with a quota decides: user and client id, user and default client id, user, default user
    and client id, default user and default client id, default user, client id, default client id. All clients
    that the entity names share the limit, but each user or client id of a default has the limit for itself.
    """

    def __init__(self, quotas: Quotas, key: QuotaKey) -> None:
        self._limits: dict[tuple[str | None, str | None], float] = {
            (entity.user, entity.client_id): values[key]
            for entity, values in quotas.items()
            if key in values and entity.ip is None
        }

    def __bool__(self) -> bool:
        """Return True if there is any limit."""
        return bool(self._limits)

    def find(self, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client, or None.

        A client without a client id is one of the default's. It would escape from its quota otherwise.
        """
        if not self._limits:
            return None
        find = self._limits.get
        for named in (user, DEFAULT):
            for id_ in (client_id, DEFAULT):
                if (value := find((named, id_))) is not None:
                    return Limit(value, user, client_id, id_ == DEFAULT)
            if (value := find((named, None))) is not None:
                return Limit(value, user, None)
        for id_ in (client_id, DEFAULT):
            if (value := find((None, id_))) is not None:
                return Limit(value, None, client_id, id_ == DEFAULT)
        return None


class AddressLimits:
    """The limits of new connections by IP address, each address for itself."""

    def __init__(self, quotas: Quotas) -> None:
        self._limits: Mapping[str, float] = {
            entity.ip: values[QuotaKey.CONNECTION_CREATION_RATE]
            for entity, values in quotas.items()
            if entity.ip is not None and QuotaKey.CONNECTION_CREATION_RATE in values
        }

    def __bool__(self) -> bool:
        """Return True if there is any limit."""
        return bool(self._limits)

    def find(self, address: str) -> float | None:
        """Return the limit of an address in its canonical form, or None."""
        return self._limits.get(address, self._limits.get(DEFAULT))

    def has_own(self, address: str) -> bool:
        """Return True if the address has a limit that is not that of the default."""
        return address in self._limits
